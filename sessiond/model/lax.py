"""What anybody may have written, as what this program takes it for. Total: used or left out, never an exception. Pure.

Every record, index entry and delivery is read through here: text that no decoder takes is mended, a number that no
program counts to is none, a field of a wrong type is as if it were not there. Knows JSON. Knows no records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)

# What every JSON reader can hold as a whole number; anything beyond is no count of anything here.
MAX_WHOLE = 2**53
# The end of the year 9999, where ISO timestamps end too.
MAX_MS = 253_402_300_800_000
# Far more than any message needs, and little enough that a decoder's recursion limit never decides what a record is.
MAX_NESTING = 128

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_WHOLE)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, lt=MAX_MS)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=MAX_WHOLE)]

_NO_BRACKET = bytes(sorted(set(range(256)) - set(b"[]{}")))
# What is looked at in one go. While one call lasts, no other thread has its turn, not even the event loop.
_PIECE_BYTES = 256 * 1024
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
# A pair, half a pair (the group), any other escape. Each is matched from its own backslash.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def mend_surrogates(data: bytes) -> bytes:
    """JSON in which half characters stand as U+FFFD; `data` itself where there are none. As long as it was.

    `JSON.stringify` writes text that was cut within an emoji as half a surrogate pair (`"\\ud83d"`). JavaScript reads
    that back; most other decoders refuse the whole document.
    """
    if b"\\u" not in data:
        return data
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], data)


def decode(data: bytes) -> Any:
    """The value in `data`, None where it is no JSON, or none that can be worked with."""
    if is_deep(data):
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        text = mend_surrogates(data)
        return decode(text) if text != data else None


def decode_dict(data: bytes | None) -> dict[str, Any]:
    """The object in `data`, an empty one where there is none."""
    decoded = decode(data) if data else None
    return decoded if type(decoded) is dict else {}


def is_deep(line: bytes) -> bool:
    """Whether objects and arrays are nested beyond the limit. Right for JSON; what is none may be called deep."""
    # A level takes two brackets, wherever they stand.
    if len(line) <= 2 * MAX_NESTING or len(line.translate(None, _NO_BRACKET)) <= 2 * MAX_NESTING:
        return False
    brackets = b"".join(_outside_strings(line)).translate(_ONE_KIND)
    for _ in range(MAX_NESTING):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    return bool(brackets)


def _outside_strings(line: bytes) -> Iterator[bytes]:
    """The brackets of a line that stand in no string, in pieces; a regular expression takes four times as long."""
    start, in_string = 0, False
    while start < len(line):
        piece = line[start : start + _PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece += line[start + _PIECE_BYTES : start + _PIECE_BYTES + 1]  # what the last backslash escapes
        start += len(piece)
        if b"\\" in piece:
            # An escaped backslash first, or the second of `\\\\"` would be taken for the escape of the quote.
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        stretches = piece.split(b'"')
        yield b"".join(stretches[in_string::2]).translate(None, _NO_BRACKET)
        in_string ^= len(stretches) % 2 == 0


def view(value: object, kind: type[_S]) -> _S | None:
    """The object `value` as a `kind`: fields of a wrong type are left out. None where one that it needs is."""
    whole = convert(value, kind)
    if whole is not None or type(value) is not dict:
        return whole
    return convert(_keep_fitting(value, _fields(kind)), kind)


def view_in(data: bytes | None, kind: type[_S]) -> _S | None:
    """As `view`, of an object in JSON."""
    return view(decode(data), kind) if data else None


def keep_fitting(value: object, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Those members of an object that are fields of a struct, by the names on disk, and have their types."""
    return _keep_fitting(value, _fields(kind)) if type(value) is dict else {}


def convert(value: object, kind: type[_T]) -> _T | None:
    """`value` as a `kind` where all of it is one, else None."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
        return None


def tame(value: Any) -> Any:
    """`value` without the numbers beyond MAX_WHOLE, and without what is nested too deeply to be written again.

    None where nothing is left of it.
    """
    kept = _tame(value, MAX_NESTING // 4)
    return None if kept is _OUT else kept


def _tame(value: Any, depth: int) -> Any:
    if not depth and isinstance(value, (dict, list)):
        return _OUT
    if type(value) is dict:
        return {name: kept for name, item in value.items() if (kept := _tame(item, depth - 1)) is not _OUT}
    if type(value) is list:
        return [kept for item in value if (kept := _tame(item, depth - 1)) is not _OUT]
    if type(value) is int or type(value) is float:
        return value if -MAX_WHOLE <= value <= MAX_WHOLE else _OUT
    return value


_OUT: Any = object()


def whole_ms(value: object) -> int | None:
    """`value` as milliseconds since 1970, None where it is no time that a calendar knows."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < MAX_MS else None


def amount(value: object) -> float | None:
    """`value` as an amount of something, None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= MAX_WHOLE else None


def _keep_fitting(value: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    return {name: value[name] for name, kind in kinds.items() if name in value and _fits(value[name], kind)}


def _fits(value: object, kind: Any) -> bool:
    # None may be the value that fits.
    return convert({"value": value}, dict[str, kind]) is not None


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
