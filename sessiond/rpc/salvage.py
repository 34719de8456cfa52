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

# Decoded up to this size, since it is done on the event loop, at 50 MB/s.
_MAX_WHOLE_BYTES = 256 * 1024
# In a longer frame the id is looked for in so many bytes at its beginning and its end.
_EDGE_BYTES = 128
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class SalvagedAnswer(msgspec.Struct, frozen=True):
    """The id of an answer, and its repaired JSON text, None where it could not be repaired."""

    request_id: int
    text: bytes | None = None


def salvage(frame: bytes, codec: CodecName) -> list[SalvagedAnswer]:
    """The answers in a frame that was refused, perhaps none. Never raises."""
    if codec == "json" and len(frame) > _MAX_WHOLE_BYTES:
        return _find_id_at_edges(frame)
    try:
        value = json.loads(frame) if codec == "json" else decode_leniently(frame)
    except (ValueError, RecursionError, MemoryError):
        return _find_id_at_edges(frame) if codec == "json" else []
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


def _find_id_at_edges(frame: bytes) -> list[SalvagedAnswer]:
    if b'"method"' in frame[:_EDGE_BYTES]:
        return []
    found = _ID.search(frame[:_EDGE_BYTES]) or _last_match(frame[-_EDGE_BYTES:])
    return [SalvagedAnswer(int(found[1]))] if found is not None else []


def _last_match(edge: bytes) -> re.Match[bytes] | None:
    return next(iter([*_ID.finditer(edge)][::-1]), None)
