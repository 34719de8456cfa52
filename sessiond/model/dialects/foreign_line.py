"""Lines of other programs' transcripts, opened leniently, and our messages as JSON. For all their dialects. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from sessiond.clock import parse_iso_ms
from sessiond.model.decoding_cost import find_excess, find_long_excess
from sessiond.model.lax import MAX_MS, MAX_WHOLE, decode_any, decoder_of, mend_surrogates
from sessiond.model.line_facts import LineFacts
from sessiond.model.message import UNKNOWN_MODEL
from sessiond.model.record import BadLine, Record
from sessiond.model.usage import Usage

_T = TypeVar("_T")
JsonObject = dict[str, Any]

# msgspec takes no `Raw | None`; an empty Raw stands for a missing field.
ABSENT = msgspec.Raw()
# What pi writes for an unknown price.
_NO_COST = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}
_AROUND = b"[" * 16 + b"%b" + b"]" * 16
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
_decode_items: Callable[[bytes], list[msgspec.Raw]] = decoder_of(list[msgspec.Raw]).decode
_decode_text: Callable[[bytes], str] = decoder_of(str).decode
_encode = msgspec.json.Encoder().encode


def open_line(decode: Callable[[bytes], _T], line: bytes) -> _T:
    """The fields that `decode` knows of a line. Raises BadLine where it is no JSON object, or has too many values."""
    return open_mended(decode, line)[0]


def open_mended(decode: Callable[[bytes], _T], line: bytes) -> tuple[_T, bytes]:
    """As `open_line`, with the line as it can be decoded further: without lone surrogates."""
    if (excess := find_long_excess(line)) is not None:
        raise BadLine(excess.reason)
    try:
        return decode(line), line
    except msgspec.ValidationError:
        raise BadLine("not an object") from None
    except RecursionError:
        raise BadLine("nested too deeply") from None
    except (msgspec.DecodeError, ValueError):
        mended = mend_surrogates(line)
        if mended != line:
            return open_mended(decode, mended)
        raise BadLine(bad_reason(line)) from None


def bad_reason(line: bytes) -> str:
    """Why a line is no record, as `sessiond doctor` shows it."""
    if b"\0" in line:
        return "NUL bytes"
    if not line.lstrip().startswith(b"{"):
        return "not an object"
    try:
        line.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    return "torn or not JSON"


def type_in(value: object) -> str:
    """The type of a line or a part, empty where it has none."""
    return value if type(value) is str else ""


def unknown_record(kind: str, line: bytes, stamp: int | None = None) -> Record:
    """The record of a line whose type the dialect does not know."""
    return Record(kind, line, timestamp_ms=stamp, facts=LineFacts(unknown_type=kind))


def open_part(decode: Callable[[bytes], _T], part: msgspec.Raw) -> _T | None:
    """The fields that `decode` knows of a part of a line, None where it is something else."""
    data = bytes(part)
    if not data:
        return None
    try:
        return decode(data)
    except _UNREADABLE:
        return None


def text_in(part: msgspec.Raw) -> str | None:
    """The string in a part of a line, None where it is something else."""
    data = bytes(part)
    if data[:1] != b'"':
        return None
    try:
        return _decode_text(data)
    except _UNREADABLE:
        return None


def items_in(part: msgspec.Raw) -> list[msgspec.Raw]:
    """The elements of the list in a part of a line, none where it is something else."""
    data = bytes(part)
    if data[:1] != b"[":
        return []
    try:
        return _decode_items(data)
    except _UNREADABLE:
        return []


def object_in(part: msgspec.Raw) -> msgspec.Raw:
    """A part of a line as arguments of a tool call: itself where it is an object that every reader can read, else {}.

    It is not decoded and written anew, so that its numbers stay as they are.
    """
    data = bytes(part)
    # Our message and its frames go around it, and may not be nested too deeply either.
    if data[:1] != b"{" or find_excess(_AROUND % data) is not None:
        return msgspec.Raw(b"{}")
    try:
        decode_any(data)
    except _UNREADABLE:
        return msgspec.Raw(b"{}")
    # Line breaks between members, in JSON that was a string, would end our line. Within strings JSON has none.
    return msgspec.Raw(data.replace(b"\n", b" ").replace(b"\r", b" "))


def known_text(value: object) -> str | None:
    """`value` if it is a text and not empty."""
    return value if type(value) is str and value else None


def iso_or_none(value: object) -> int | None:
    """An ISO timestamp as milliseconds since 1970, None where it is none."""
    stamp = parse_iso_ms(value) if type(value) is str else None
    return stamp if stamp is not None and 0 <= stamp < MAX_MS else None


def token_count(value: object) -> int:
    """`value` if it is a number of tokens, else 0."""
    if type(value) is not int and type(value) is not float:
        return 0
    return int(value) if 0 <= value <= MAX_WHOLE else 0


def text_block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


class Service(NamedTuple):
    """Which service answers, in pi's words."""

    api: str
    provider: str


def assistant_message(
    service: Service,
    blocks: list[JsonObject],
    stop_reason: str,
    model: str | None = None,
    usage: Usage | None = None,
) -> JsonObject:
    """A message of the assistant with every member that pi expects, without its timestamp."""
    used = usage or Usage()
    tokens = {
        "input": used.input,
        "output": used.output,
        "cacheRead": used.cache_read,
        "cacheWrite": used.cache_write,
        "totalTokens": used.total_tokens,
    }
    return {
        "role": "assistant",
        "content": blocks,
        "api": service.api,
        "provider": service.provider,
        "model": model or UNKNOWN_MODEL,
        "usage": {**tokens, "cost": _NO_COST},
        "stopReason": stop_reason,
    }


def message_bytes(message: JsonObject, timestamp_ms: int | None) -> bytes:
    """The message as JSON, with its timestamp as the last member, as in our own."""
    return _encode(message if timestamp_ms is None else {**message, "timestamp": timestamp_ms})
