"""Write plain values as TOML: the types that occur in the configuration. Reads nothing."""

from __future__ import annotations

import json
import re

from sessiond.cli.terminal.output import UNSAFE_IN_JSON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def render(table: Mapping[str, Any], path: Sequence[str] = ()) -> list[str]:
    """The lines of a document: plain values first, then each sub-table under its header."""
    plain = {key: value for key, value in table.items() if not _is_table(value) and not _is_tables(value)}
    shown = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        below = [*path, key]
        header = ".".join(map(_key, below))
        if _is_tables(value):
            for item in value:
                shown += ["", f"[[{header}]]", *render(item, below)]
        elif _is_table(value):
            lines = render(value, below)
            # A table that holds only tables needs no header of its own.
            has_plain = not lines or lines[0] != ""
            shown += ["", f"[{header}]", *lines] if has_plain else lines
    return shown


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_table, value))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _quote(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(key)} = {_value(item)}' for key, item in value.items())} }}"
    return _quote(str(value))


def _quote(text: str) -> str:
    """`text` as a basic string: the escapes of JSON are valid in TOML, except surrogate pairs."""
    return json.dumps(text, ensure_ascii=False).translate(UNSAFE_IN_JSON)
