"""Transcripts that are no lines in their files, as lines: compressed ones of Codex, documents of Gemini CLI.

Everything raises OSError with a sentence where a file cannot be used. Knows formats of files. Does not know sessions.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from sessiond.model.decoding_cost import find_long_excess
from sessiond.model.lax import mend_surrogates
from sessiond.store import dirfd

ZST, DOCUMENT = ".zst", ".json"
PACKAGE = "zstandard"
# A file may become so long in memory. Documents are read in one piece.
MOST_UNPACKED_BYTES = 64 * 2**20
_MOST_DOCUMENT_BYTES = 16 * 2**20
# So many bytes are unpacked in one go: they become 16 MiB at most, as a block of 4 bytes may stand for 128 KiB.
_ZST_BYTES = 512
# What `zstd --ultra --long` writes; the decoder holds so much.
_MAX_WINDOW_BYTES = 2**27
# Members of a document that change with every message. Before the messages they would change the place of each.
_LATE = ("summary",)
_DROPPED = ("messages", "lastUpdated")

Unpack = Callable[[int], Iterator[bytes]]

_decode_document = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list: Callable[[bytes], list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def is_packed(place: str) -> bool:
    """Whether a transcript with this name does not stand in its file line by line."""
    return place.endswith((ZST, DOCUMENT))


def can_unpack(place: str) -> bool:
    """Whether there is what it takes to unpack it."""
    return not place.endswith(ZST) or _find_zstandard() is not None


def unpack(place: str, fd: int) -> Iterator[bytes]:
    """The lines of a packed transcript in pieces, of which no more than the limit should be taken."""
    return _unpack_zst(fd) if place.endswith(ZST) else _split_document(fd)


def too_long() -> OSError:
    """The error of a file over the limit."""
    return OSError(errno.EFBIG, f"unpacked it is longer than {MOST_UNPACKED_BYTES // 2**20} MiB")


def _find_zstandard() -> Any:
    """The package, which is not required; None where it is not installed."""
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard


def _unpack_zst(fd: int) -> Iterator[bytes]:
    package = _find_zstandard()
    if package is None:
        raise OSError(errno.EOPNOTSUPP, f"it is compressed with zstd, which takes the package {PACKAGE}")
    opened = package.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    frame, offset = opened.decompressobj(), 0
    is_between = True  # frames
    try:
        while data := os.pread(fd, _ZST_BYTES, offset):
            offset += len(data)
            if offset > MOST_UNPACKED_BYTES:
                raise too_long()
            while data:
                is_between = False
                piece = frame.decompress(data)
                if piece:
                    yield piece
                data = b""
                if frame.eof:
                    data, is_between = frame.unused_data, True
                    frame = opened.decompressobj()
    except package.ZstdError:
        raise OSError(errno.EINVAL, "it cannot be unpacked: it is no zstd data, or damaged") from None
    if not is_between or not offset:
        raise OSError(errno.EINVAL, "it cannot be unpacked: its end is missing")


def _split_document(fd: int) -> Iterator[bytes]:
    """The lines that Gemini CLI itself makes of such a chat when it goes on with it: metadata, then each message."""
    data = dirfd.read_file(fd, _MOST_DOCUMENT_BYTES)
    if data is None:
        raise OSError(errno.EFBIG, f"it is a document longer than {_MOST_DOCUMENT_BYTES // 2**20} MiB")
    if (excess := find_long_excess(data)) is not None:
        raise OSError(errno.EFBIG, f"it is a document with {excess.reason}")
    members = _decode(_decode_document, data)
    if members is None or "sessionId" not in members:
        raise OSError(errno.EINVAL, "it is no chat of Gemini CLI, or only a part of one")
    messages = _decode(_decode_list, bytes(members.get("messages", b"[]"))) or []
    head = {name: value for name, value in members.items() if name not in _LATE + _DROPPED}
    yield _line_of(head)
    for message in messages:
        yield _line_of(message)
    late = {name: members[name] for name in _LATE if name in members}
    if late:
        yield _line_of({"$set": late})


def _decode(decode: Callable[[bytes], Any], data: bytes) -> Any:
    for text in (data, mend_surrogates(data)):
        try:
            return decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
    return None


def _line_of(value: object) -> bytes:
    # Within strings JSON has no line breaks.
    return _encode(value).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
