"""Lenient readers for JSON that any program may have written: unusable values are left out, nothing raises. Pure.

Every record, index entry and delivery is read through here: lone surrogates are replaced, numbers out of range and
fields of a wrong type are ignored. Knows JSON. Knows no records.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from math import isinf
from typing import Annotated, Any, TypeVar

import msgspec

from sessiond.model.decoding_cost import MAX_NESTING, find_excess

_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)

# The largest integer that every JSON reader represents exactly; larger numbers are ignored.
MAX_WHOLE = 2**53
# The end of the year 9999, where ISO timestamps end too.
MAX_MS = 253_402_300_800_000

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_WHOLE)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, lt=MAX_MS)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=MAX_WHOLE)]

# Done in one call, in which no other thread runs: some milliseconds.
_PIECE_BYTES = 128 * 1024
_ESCAPE_BYTES = len(rb"\ud83d")
# Of text without escaped backslashes.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HIGH, _LOW = rb"[89abAB][0-9a-fA-F]{2}", rb"[c-fC-F][0-9a-fA-F]{2}"
_HIGH_SURROGATE = re.compile(rb"\\u[dD]%b" % _HIGH)
# It begins with what is searched for quickly, so it looks at what is before a low one when it has read that.
_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?:%b(?!\\u[dD]%b)|%b(?<!\\u[dD]%b\\u[dD]%b))" % (_HIGH, _LOW, _LOW, _HIGH, _LOW)
)


def read_float(text: str) -> float:
    """The number, for `float_hook` of a decoder. ValueError for one that is out of range."""
    value = float(text)
    if isinf(value):
        raise ValueError("Number out of range")
    return value


def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder for a type some of whose values may be of any type.

    Numbers with a point or an exponent in those are read by `read_float`: msgspec's own reading takes 10 us for one
    like 1.7976931348623157e308, and a message of 6 MB with 250,000 of them stopped the event loop for four seconds.
    """
    return msgspec.json.Decoder(kind, float_hook=read_float)


# Any JSON value; msgspec.DecodeError.
decode_any: Callable[[bytes | bytearray | memoryview | str], Any] = decoder_of(Any).decode


def mend_surrogates(data: bytes, piece: int = _PIECE_BYTES) -> bytes:
    """The JSON text with lone surrogates replaced by U+FFFD, of the same length; `data` itself where there are none.
    `piece` bytes are done at once.

    `JSON.stringify` writes text that was cut within an emoji with a lone surrogate (`"\\ud83d"`). JavaScript reads that
    back; most other decoders refuse the whole document.
    """
    if _SURROGATE.search(data) is None or b"\0" in data:  # which no JSON has
        return data
    # The second backslash of an escaped one would be taken for the beginning of an escape.
    marked = data.replace(b"\\\\", b"\0\0")
    pieces, start = [], 0
    while start < len(marked):
        end = _end_of_piece(marked, start, piece)
        pieces.append(_LONE_SURROGATE.sub(rb"\\ufffd", marked[start:end]))
        start = end
    mended = b"".join(pieces)
    return data if mended == marked else mended.replace(b"\0\0", b"\\\\")


def _end_of_piece(marked: bytes, start: int, size: int) -> int:
    """Where a piece may end: not within an escape, nor between two surrogates that may be a pair."""
    end = start + size
    # Not among the first two, of which both may be left to the next piece: it would be this one again.
    escape = marked.rfind(b"\\", start + 2 * _ESCAPE_BYTES, end)
    if end >= len(marked) or escape < 0:
        return end
    return escape - _ESCAPE_BYTES if _HIGH_SURROGATE.match(marked, escape - _ESCAPE_BYTES) else escape


def decode(data: bytes) -> Any:
    """The JSON value in `data`, None where it is no JSON or exceeds the limits of `find_excess`."""
    if find_excess(data) is not None:
        return None
    try:
        return decode_any(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        text = mend_surrogates(data)
        return decode(text) if text != data else None


def decode_dict(data: bytes | None) -> dict[str, Any]:
    """The JSON object in `data`, an empty one where there is none."""
    decoded = decode(data) if data else None
    return decoded if type(decoded) is dict else {}


def convert_fitting(value: object, kind: type[_S]) -> _S | None:
    """The dict `value` as a struct, without fields of a wrong type. None where a required field is missing or wrong."""
    whole = convert(value, kind)
    if whole is not None or type(value) is not dict:
        return whole
    return convert(_keep_fitting(value, _fields(kind)), kind)


def decode_fitting(data: bytes | None, kind: type[_S]) -> _S | None:
    """As `view`, of an object in JSON."""
    return convert_fitting(decode(data), kind) if data else None


def keep_fitting(value: object, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The members of a dict that are fields of a struct, by their names on disk, and have the right types."""
    return _keep_fitting(value, _fields(kind)) if type(value) is dict else {}


def convert(value: object, kind: type[_T]) -> _T | None:
    """`value` converted to `kind`, None where any part of it has a wrong type."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
        return None


def keep_writable(value: Any) -> Any:
    """`value` without numbers beyond MAX_WHOLE, and without parts nested too deeply to be written as JSON.

    None where nothing is left.
    """
    kept = _keep_writable(value, MAX_NESTING // 4)
    return None if kept is _DROPPED else kept


def _keep_writable(value: Any, depth: int) -> Any:
    if not depth and isinstance(value, (dict, list)):
        return _DROPPED
    if type(value) is dict:
        return {name: kept for name, item in value.items() if (kept := _keep_writable(item, depth - 1)) is not _DROPPED}
    if type(value) is list:
        return [kept for item in value if (kept := _keep_writable(item, depth - 1)) is not _DROPPED]
    if type(value) is int or type(value) is float:
        return value if -MAX_WHOLE <= value <= MAX_WHOLE else _DROPPED
    return value


_DROPPED: Any = object()


def whole_ms(value: object) -> int | None:
    """`value` as milliseconds since 1970, None where it is no number up to the year 9999."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < MAX_MS else None


def amount(value: object) -> float | None:
    """`value` as an amount (a number from 0 to MAX_WHOLE), else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= MAX_WHOLE else None


def _keep_fitting(value: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    return {name: value[name] for name, kind in kinds.items() if name in value and _fits(value[name], kind)}


def _fits(value: object, kind: Any) -> bool:
    # Wrapped in a dict, because `convert` returns None for a failure and None may be a valid value.
    return convert({"value": value}, dict[str, kind]) is not None


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
