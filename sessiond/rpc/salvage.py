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
from sessiond.rpc.codecs import SELF_DESCRIBED, CodecName, decode_leniently

# Decoded up to this size, since it is done on the event loop, where some texts take a microsecond a byte.
_MAX_WHOLE_BYTES = 32 * 1024
# In longer ones at least lone surrogates are replaced, up to this size, without decoding.
_MAX_MENDED_BYTES = 256 * 1024
# The id of an answer is looked for in so many bytes at its beginning and its end.
_EDGE_BYTES = 128
# An answer that has its id before its result, and the end of one that has it behind. A request of the client has an id
# as well, of the same numbers, and no result. Only the first id of a batch is sure to be that of an answer.
_OPEN, _VERSION = rb"\{\s*", rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
_ID, _RESULT = rb'"id"\s*:\s*(\d{1,15})\s*', rb'"(?:result|error)"'
_FIRST_ID = re.compile(rb"\s*\[?\s*" + _OPEN + _VERSION + _ID + rb",\s*" + _VERSION + _RESULT)
_RESULT_FIRST = re.compile(rb"\s*" + _OPEN + _VERSION + _RESULT)
_LAST_ID = re.compile(rb"[,{]\s*" + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
# The same in CBOR (RFC 8949, section 3): the text `id`, and an unsigned integer. Nothing closes a map there, so that it
# has to be one with as many members as were seen: a result, an id, and perhaps a version.
_CBOR_VERSION, _CBOR_RESULT = rb"\x67jsonrpc\x632\.0", rb"(?:\x66result|\x65error)"
_CBOR_ID = rb"\x62id(?:([\x00-\x17])|\x18(.)|\x19(..)|\x1a(.{4})|\x1b(.{8}))"
_FIRST_CBOR_ID = re.compile(
    rb"[\x81-\x97]?(?:[\xa2-\xb7]|\xbf)(?:%b)?%b(?:%b)?%b" % (_CBOR_VERSION, _CBOR_ID, _CBOR_VERSION, _CBOR_RESULT),
    re.DOTALL,
)
_CBOR_RESULT_FIRST = re.compile(rb"(?:\xa2|\xa3%b)%b" % (_CBOR_VERSION, _CBOR_RESULT))
_LAST_CBOR_ID = re.compile(rb"%b\Z" % _CBOR_ID, re.DOTALL)
_CBOR_RESULT_FIRST_OF_THREE = re.compile(rb"\xa3%b" % _CBOR_RESULT)
_LAST_CBOR_VERSION_AND_ID = re.compile(rb"%b%b\Z" % (_CBOR_VERSION, _CBOR_ID), re.DOTALL)
_LAST_CBOR_ID_AND_VERSION = re.compile(rb"%b%b\Z" % (_CBOR_ID, _CBOR_VERSION), re.DOTALL)
# How an answer begins, and how it ends where its id is there.
_SHAPES: dict[CodecName, list[tuple[re.Pattern[bytes], re.Pattern[bytes] | None]]] = {
    "json": [(_FIRST_ID, None), (_RESULT_FIRST, _LAST_ID)],
    "cbor": [
        (_FIRST_CBOR_ID, None),
        (_CBOR_RESULT_FIRST, _LAST_CBOR_ID),
        (_CBOR_RESULT_FIRST_OF_THREE, _LAST_CBOR_VERSION_AND_ID),
        (_CBOR_RESULT_FIRST_OF_THREE, _LAST_CBOR_ID_AND_VERSION),
    ],
}
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
    if not found or codec == "cbor" or len(frame) > _MAX_MENDED_BYTES or frame.lstrip().startswith(b"["):
        return found
    mended = mend_surrogates(frame)
    return [SalvagedAnswer(found[0].request_id, mended)] if mended != frame else found


def _is_answer(item: Any) -> bool:
    # An `undefined` result is left out; what has params was meant as a request.
    return isinstance(item, dict) and type(item.get("id")) is int and not item.keys() & {"method", "params"}


def _mend(item: dict[str, Any]) -> SalvagedAnswer:
    try:
        text = json.dumps(item, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return SalvagedAnswer(item["id"])
    return SalvagedAnswer(item["id"], _LONE_SURROGATE.sub("\ufffd", text).encode())


def _find_id(frame: bytes, codec: CodecName) -> list[SalvagedAnswer]:
    """The id of an answer that is not decoded, if it stands first or last in it.

    Where an answer was cut off, the last one may be that of something in it.
    """
    first, last = frame.removeprefix(SELF_DESCRIBED)[:_EDGE_BYTES], frame[-_EDGE_BYTES:]
    for begin, end in _SHAPES[codec]:
        found = begin.match(first)
        if found is not None and end is not None:
            found = end.search(last)
        if found is not None:
            digits: bytes = next(group for group in found.groups() if group is not None)
            return [SalvagedAnswer(int(digits) if codec == "json" else int.from_bytes(digits, "big"))]
    return []
