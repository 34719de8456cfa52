"""Check a TOML text against a tree of structs. Errors name the file, the line, the key and the nearest known name.

Knows TOML and types. Does not know what any key means.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from msgspec import inspect

from sessiond.errors import ConfigError, reason_of_reader

# Cached, because it takes longer than the rest of a check, and each reload asks for the same type.
type_info = cache(inspect.type_info)
KeyPath = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MANY_DIGITS = re.compile(r"(?:\d_?){4301,}")  # more than Python reads
_AT_LINE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


class ConfigText:
    """The text of one configuration file. `name` is its name in errors. ConfigError if the text is not TOML."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text
        self.data = self._parse()

    def _parse(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self._text)
        except RecursionError:
            raise ConfigError(f"{self.name}: the file is nested too deeply") from None
        except ValueError as error:  # TOMLDecodeError, and int() of over 4,300 digits
            where = _AT_LINE.search(str(error))
            digits = None if where else _MANY_DIGITS.search(self._text)
            begins = digits.start() if digits else len(self._text)
            line = int(where[1]) if where and where[1] else self._text.count("\n", 0, begins) + 1
            sentence = _AT_LINE.sub("", reason_of_reader(error))
            raise ConfigError(f"{self.name}:{line}: this is not TOML: {sentence}") from None

    def error(self, path: KeyPath, sentence: str) -> ConfigError:
        """The error to raise about the value at `path`. `sentence` continues after the key's name."""
        return ConfigError(f"{self.name}:{line_of(self._text, path)}: {show_path(path)} {sentence}")

    def check(self, root: inspect.Type) -> None:
        """Check the whole file against `root`, a struct type of msgspec.inspect. ConfigError for the first fault."""
        self._check(self.data, root, (), root)

    def _check(self, value: object, kind: inspect.Type, path: KeyPath, root: inspect.Type) -> None:
        kind, description = _unwrap(kind)
        match kind, value:
            case inspect.StructType(), dict():
                self._check_struct(value, kind, path, root)
            case inspect.DictType(), dict():
                for name, item in value.items():
                    if not _fits(name, _unwrap(kind.key_type)[0]):
                        raise self.error((*path, name), f"is no good name: it must be {_describe(kind.key_type)}")
                    self._check(item, kind.value_type, (*path, name), root)
            case inspect.VarTupleType(), list():
                if kind.min_length and len(value) < kind.min_length:
                    raise self.error(path, "must not be empty")
                for index, item in enumerate(value):
                    self._check(item, kind.item_type, (*path, index), root)
            case _:
                if not _fits(value, kind):
                    raise self.error(path, f"must be {description or _describe(kind)}, not {show(value)}")

    def _check_struct(self, value: dict[str, Any], kind: inspect.StructType, path: KeyPath, root: inspect.Type) -> None:
        fields = {field.encode_name: field for field in kind.fields}
        for name, item in value.items():
            if name not in fields:
                raise self.error((*path, name), f"is not a known key; {_nearest(name, list(fields), path, root)}")
            self._check(item, fields[name].type, (*path, name), root)
        for name, field in fields.items():
            if field.required and name not in value:
                raise self.error(path, f"needs {name}, which must be {_describe(field.type)}")


def line_of(text: str, path: KeyPath) -> int:
    """The line (from 1) on which the value at `path` begins; 1 if the file has no such value.

    A file cut off after a complete statement is still valid TOML. So the shortest beginning of the file that parses and
    has the value ends with the statement that set it. This needs no second TOML parser.
    """
    lines = text.split("\n")
    end = _shortest(lines, path)
    if end is None or not path:
        return 1
    start = end
    while start > 1 and _whole(lines, start - 1) is None:
        start -= 1
    while start < end and (not lines[start - 1].strip() or lines[start - 1].lstrip().startswith("#")):
        start += 1
    # In a statement of many lines, prefer the line on which the name of the value is written.
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    index = next((part for part in reversed(path) if isinstance(part, int)), 0)
    written = re.compile(r"(?:^|[\s{,.\"'])" + re.escape(name) + r"[\"']?\s*[.=]")
    hits = [number for number in range(start, end + 1) if written.search(lines[number - 1])]
    return hits[min(index, len(hits) - 1)] if hits else start


def _shortest(lines: list[str], path: KeyPath) -> int | None:
    """The smallest number of lines that parse and have a value at `path`, found by bisection; None if there is none."""
    low, high = 1, len(lines)
    if not _has(_whole(lines, high), path):
        return None
    while low < high:
        middle = (low + high) // 2
        cut: int = middle
        data = _whole(lines, cut)
        while data is None and cut >= low:  # in the middle of a statement: look at what is before it
            cut -= 1
            data = _whole(lines, cut)
        if _has(data, path):
            high = cut
        else:
            low = middle + 1
    return low


def _whole(lines: list[str], count: int) -> dict[str, Any] | None:
    try:
        return tomllib.loads("\n".join(lines[:count]))
    except (ValueError, RecursionError):
        return None


def _has(data: object, path: KeyPath) -> bool:
    for part in path:
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return False
    return data is not None


def _unwrap(kind: inspect.Type) -> tuple[inspect.Type, str | None]:
    """A type without its annotations and without None (TOML has no null), and the description in its Meta."""
    description = None
    if isinstance(kind, inspect.UnionType):
        (kind,) = (member for member in kind.types if not isinstance(member, inspect.NoneType))
    if isinstance(kind, inspect.Metadata):
        description = (kind.extra_json_schema or {}).get("description")
        kind = kind.type
    if isinstance(kind, inspect.UnionType | inspect.Metadata):
        kind, inner = _unwrap(kind)
        description = description or inner
    return kind, description


def _fits(value: object, kind: inspect.Type) -> bool:
    match kind:
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType() | inspect.FloatType():
            allowed = int if isinstance(kind, inspect.IntType) else (int, float)
            if isinstance(value, bool) or not isinstance(value, allowed):
                return False
            number = float(value) if abs(value) < 2**63 else math.nan
            return (
                math.isfinite(number)
                and (kind.ge is None or number >= kind.ge)
                and (kind.gt is None or number > kind.gt)
                and (kind.le is None or number <= kind.le)
            )
        case inspect.LiteralType():
            return isinstance(value, str) and value in kind.values
        case inspect.StrType():
            return (
                isinstance(value, str)
                and "\0" not in value
                and len(value) >= (kind.min_length or 0)
                and (kind.pattern is None or re.search(kind.pattern, value) is not None)
            )
        case inspect.CustomType():  # a path, written as text
            return isinstance(value, str) and "\0" not in value and value != ""
        case _:
            return False


def _describe(kind: inspect.Type) -> str:
    kind, description = _unwrap(kind)
    match kind:
        case _ if description:
            return description
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            if kind.le is not None:
                return f"{noun} from {kind.ge} to {kind.le}"
            return f"{noun} above {kind.gt}" if kind.ge is None else f"{noun} of at least {kind.ge}"
        case inspect.LiteralType():
            return "one of " + ", ".join(json.dumps(value) for value in kind.values)
        case inspect.VarTupleType():
            return f"an array, and each item {_describe(kind.item_type)}"
        case inspect.StructType():
            needed = " and ".join(field.encode_name for field in kind.fields if field.required)
            return f"a table with {needed}" if needed else "a table"
        case inspect.DictType():
            return "a table"
        case inspect.CustomType():
            return "a path"
        case _:
            return "a text that is not empty" if getattr(kind, "min_length", None) else "a text without NUL characters"


def _nearest(name: str, names: list[str], path: KeyPath, root: inspect.Type) -> str:
    """A hint for an unknown key: a similar name here, else the same name elsewhere, else all names known here."""
    folded = {known.replace("_", "").lower(): known for known in names}
    from difflib import get_close_matches  # for a key that is misspelled

    likely = get_close_matches(name.replace("_", "").replace("-", "").lower(), folded, n=1, cutoff=0.7)
    if likely:
        return f"did you mean {show_path((*path, folded[likely[0]]))}?"
    elsewhere = [known for known in _all_keys(root) if known[-1] == name]
    if elsewhere:
        return "did you mean " + " or ".join(show_path(known) for known in elsewhere) + "?"
    return "known here: " + ", ".join(sorted(names))


def _all_keys(kind: inspect.Type, path: KeyPath = ()) -> Iterator[KeyPath]:
    kind, _ = _unwrap(kind)
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield (*path, field.encode_name)
            yield from _all_keys(field.type, (*path, field.encode_name))


def show_path(path: KeyPath) -> str:
    """A key as written in the file: `agents.list[0].id`, `models.pricing."gpt 5".input`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE_KEY.fullmatch(part) else json.dumps(part))
    return text or "the file"


def show(value: object) -> str:
    """A value as it may be quoted in an error: on one line, at most 60 characters."""
    match value:
        case Mapping():
            return "a table"
        case list():
            return "an array"
        case bool() | str():
            text = json.dumps(value)
        case int() if abs(value) >= 2**63:
            return "a number of over 64 bits"
        case _:
            text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
