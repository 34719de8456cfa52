"""Answers that cannot be read as they came: what can still be made of them, so that nobody waits for them for ever.

Knows the two ways in which programs write what is no message: text cut within an emoji (a lone surrogate, as
`JSON.stringify` writes it), which is taken with U+FFFD in its place, and numbers that are not finite. Reads leniently
what the strict readers have refused; asked only while an answer is due.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from sessiond.rpc.codecs import CodecName, decode_leniently

# Read as a whole up to this size: it is done on the loop, at 50 MB/s.
_MAX_WHOLE_BYTES = 256 * 1024
# Where in a longer one its id stands: before the result or behind it.
_EDGE_BYTES = 128
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
_LONE = re.compile("[\ud800-\udfff]")


class Salvaged(msgspec.Struct, frozen=True):
    """An answer: to which request, and as JSON text where it could be mended."""

    request_id: int
    text: bytes | None = None


def salvage(frame: bytes, codec: CodecName) -> list[Salvaged]:
    """The answers in a frame that was refused; nothing where it holds none. Never raises."""
    if codec == "json" and len(frame) > _MAX_WHOLE_BYTES:
        return _by_edges(frame)
    try:
        value = json.loads(frame) if codec == "json" else decode_leniently(frame)
    except (ValueError, RecursionError, MemoryError):
        return _by_edges(frame) if codec == "json" else []
    found = value if isinstance(value, list) else [value]
    return [_salvage(item) for item in found if _is_answer(item)]


def _is_answer(item: Any) -> bool:
    return isinstance(item, dict) and "method" not in item and type(item.get("id")) is int


def _salvage(item: dict[str, Any]) -> Salvaged:
    try:
        text = json.dumps(item, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return Salvaged(item["id"])
    return Salvaged(item["id"], _LONE.sub("\ufffd", text).encode())


def _by_edges(frame: bytes) -> list[Salvaged]:
    if b'"method"' in frame[:_EDGE_BYTES]:
        return []
    found = _ID.search(frame[:_EDGE_BYTES]) or _last(frame[-_EDGE_BYTES:])
    return [Salvaged(int(found[1]))] if found is not None else []


def _last(edge: bytes) -> re.Match[bytes] | None:
    return next(iter([*_ID.finditer(edge)][::-1]), None)
