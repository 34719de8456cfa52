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

from sessiond.rpc.codecs import CodecName, decode_leniently

# Decoded up to this size, since it is done on the event loop, where some texts take a microsecond a byte.
_MAX_WHOLE_BYTES = 32 * 1024
# In a longer frame the id is looked for in so many bytes at its beginning and its end.
_EDGE_BYTES = 128
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
# In CBOR: the text `id`, and an unsigned integer (RFC 8949, section 3).
_CBOR_ID = re.compile(rb"\x62id(?:([\x00-\x17])|\x18(.)|\x19(..)|\x1a(.{4})|\x1b(.{8}))", re.DOTALL)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class SalvagedAnswer(msgspec.Struct, frozen=True):
    """The id of an answer, and its repaired JSON text, None where it could not be repaired."""

    request_id: int
    text: bytes | None = None


def salvage(frame: bytes, codec: CodecName) -> list[SalvagedAnswer]:
    """The answers in a frame that was refused, perhaps none. Never raises."""
    if len(frame) > _MAX_WHOLE_BYTES:
        return _find_id_at_edges(frame, codec)
    try:
        value = json.loads(frame) if codec == "json" else decode_leniently(frame)
    except (ValueError, RecursionError, MemoryError):
        return _find_id_at_edges(frame, codec)
    found = value if isinstance(value, list) else [value]
    return [_mend(item) for item in found if _is_answer(item)]


def _is_answer(item: Any) -> bool:
    return isinstance(item, dict) and "method" not in item and type(item.get("id")) is int


def _mend(item: dict[str, Any]) -> SalvagedAnswer:
    try:
        text = json.dumps(item, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return SalvagedAnswer(item["id"])
    return SalvagedAnswer(item["id"], _LONE_SURROGATE.sub("\ufffd", text).encode())


def _find_id_at_edges(frame: bytes, codec: CodecName) -> list[SalvagedAnswer]:
    first, last = frame[:_EDGE_BYTES], frame[-_EDGE_BYTES:]
    pattern, method = (_ID, b'"method"') if codec == "json" else (_CBOR_ID, b"\x66method")
    if method in first:
        return []
    found = pattern.search(first) or _last_match(pattern, last)
    if found is None:
        return []
    digits = next(group for group in found.groups() if group is not None)
    return [SalvagedAnswer(int(digits) if codec == "json" else int.from_bytes(digits, "big"))]


def _last_match(pattern: re.Pattern[bytes], edge: bytes) -> re.Match[bytes] | None:
    return next(iter([*pattern.finditer(edge)][::-1]), None)
