"""Repair answers of clients that are not valid JSON, so that no request waits for ever for such an answer.

Programs write two kinds of invalid JSON: text cut within an emoji (a lone surrogate, as `JSON.stringify` writes it),
which is replaced by U+FFFD, and numbers that are not finite, for which at least the id is found. Used only while a
request waits for an answer.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from sessiond.model.lax import mend_surrogates
from sessiond.rpc.codecs import CodecName, decode_leniently

# Decoded up to this size, since it is done on the event loop, where some texts take a microsecond a byte.
_MAX_WHOLE_BYTES = 32 * 1024
# In longer ones at least lone surrogates are replaced, up to this size, without decoding.
_MAX_MENDED_BYTES = 256 * 1024
# The id of an answer is looked for in so many bytes at its beginning and its end.
_EDGE_BYTES = 128
# Where an answer, or a batch, begins with its id, and where it ends with it: its own, not that of something in it.
_BEGIN = rb'\s*\[?\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
_FIRST_ID = re.compile(_BEGIN + rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
_RESULT = re.compile(_BEGIN + rb'"(?:result|error)"')
_LAST_ID = re.compile(rb'[,{]\s*"id"\s*:\s*(\d{1,15})\s*\}\s*\]?\s*\Z')
# The same in CBOR (RFC 8949, section 3): the text `id`, and an unsigned integer. An answer that ends with it has no
# other members than those before it, since nothing closes a map.
_UINT = rb"(?:([\x00-\x17])|\x18(.)|\x19(..)|\x1a(.{4})|\x1b(.{8}))"
_VERSION = rb"\x67jsonrpc\x632\.0"
_FIRST_CBOR_ID = re.compile(rb"[\x81-\x97]?(?:[\xa1-\xb7]|\xbf)(?:%b)?\x62id%b" % (_VERSION, _UINT), re.DOTALL)
_CBOR_RESULT = re.compile(rb"[\x81-\x97]?(?:\xa2|\xa3%b)(?:\x66result|\x65error)" % _VERSION)
_LAST_CBOR_ID = re.compile(rb"\x62id%b\Z" % _UINT, re.DOTALL)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class SalvagedAnswer(msgspec.Struct, frozen=True):
    """The id of an answer, and its repaired JSON text, None where it could not be repaired."""

    request_id: int
    text: bytes | None = None


def salvage(frame: bytes, codec: CodecName) -> list[SalvagedAnswer]:
    """The answers in a frame that was refused, perhaps none. Never raises. Of a long batch one is found at most."""
    if len(frame) > _MAX_WHOLE_BYTES:
        return _mend_long(frame, codec)
    try:
        value = json.loads(frame) if codec == "json" else decode_leniently(frame)
    except (ValueError, RecursionError, MemoryError):
        return _find_id(frame, codec)
    found = value if isinstance(value, list) else [value]
    return [_mend(item) for item in found if _is_answer(item)]


def _mend_long(frame: bytes, codec: CodecName) -> list[SalvagedAnswer]:
    found = _find_id(frame, codec)
    if not found or codec == "cbor" or len(frame) > _MAX_MENDED_BYTES:
        return found
    mended = mend_surrogates(frame)
    return [SalvagedAnswer(found[0].request_id, mended)] if mended != frame else found


def _is_answer(item: Any) -> bool:
    return isinstance(item, dict) and "method" not in item and type(item.get("id")) is int


def _mend(item: dict[str, Any]) -> SalvagedAnswer:
    try:
        text = json.dumps(item, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return SalvagedAnswer(item["id"])
    return SalvagedAnswer(item["id"], _LONE_SURROGATE.sub("\ufffd", text).encode())


def _find_id(frame: bytes, codec: CodecName) -> list[SalvagedAnswer]:
    """The id of an answer that is not decoded, if it stands first or last in it."""
    first, last = frame[:_EDGE_BYTES], frame[-_EDGE_BYTES:]
    begin, result, end, method = (
        (_FIRST_ID, _RESULT, _LAST_ID, b'"method"')
        if codec == "json"
        else (_FIRST_CBOR_ID, _CBOR_RESULT, _LAST_CBOR_ID, b"\x66method")
    )
    found = begin.match(first)
    if found is None and result.match(first) is not None:
        found = end.search(last)
    if found is None or method in first:
        return []
    digits: bytes = next(group for group in found.groups() if group is not None)
    return [SalvagedAnswer(int(digits) if codec == "json" else int.from_bytes(digits, "big"))]
