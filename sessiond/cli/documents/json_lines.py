"""A session as JSON lines: its row, then a line for each message and for what happened between them.

{"session": ROW}
{"seq": 1, "id": "...", "timestamp": "...", "message": {...}, "files": [...]}
{"marker": {...}}, {"run": {...}}, {"question": {...}}, {"answer": {...}}
"""

from __future__ import annotations

import json
import re

from sessiond.cli.terminal.output import UNSAFE_IN_JSON
from sessiond.cli.terminal.page_order import FACT, MARKER, MESSAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from sessiond.cli.terminal.page_order import PageEntry

is_data: Final = True
_PLACE = ("seq", "id", "timestamp")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_UNSAFE = re.compile(f"[{''.join(map(chr, UNSAFE_IN_JSON))}]")


def head(row: dict[str, Any]) -> str:
    return line({"session": row})


def line_of(entry: PageEntry, shown: Any, files: list[dict[str, Any]]) -> str:
    """The line of an entry; `shown` and `files` are what it has, with secrets masked where they are to be."""
    if entry.kind == MESSAGE:
        named = {"files": files} if files else {}
        return line({name: entry.place.get(name) for name in _PLACE} | {"message": shown} | named)
    if entry.kind == FACT:
        return line({shown.who: shown.facts})
    return line({"marker" if entry.kind == MARKER else "run": shown})


def line(value: dict[str, Any]) -> str:
    text = _encode(value)
    if not text.isascii() or "\x7f" in text:
        text = _UNSAFE.sub(lambda found: UNSAFE_IN_JSON[ord(found[0])], text)
    return text + "\n"
