"""Limit messages sent in very small pieces: how many are parsed at once, and how many a message may have.

A byte in a WebSocket fragment or an HTTP chunk of its own costs the parser as much as a kilobyte in one: 64 KiB of them
would block the event loop for 300 ms. Knows how frames and chunks begin; decodes nothing.
"""

from __future__ import annotations

import re

import h11

from sessiond.transports.exchange import HttpError

# Frames or chunks parsed at once, which takes 2 ms.
PIECES_AT_ONCE = 64
# Per message. A client that sends each generated token in a fragment stays below it; longer messages need longer ones.
MAX_PIECES = 4096
MIN_MEAN_BYTES = 256
# Lines in the head of a request, or in its trailers. Browsers send twenty.
MAX_HEAD_LINES = 128

_BLANK_LINE = re.compile(rb"\n\r?\n")
_LAST_CHUNK = re.compile(rb"\A[\r\n]*0+[ \t;\r\n]")
_LENGTH_BYTES = {126: 2, 127: 8}
_CONTROL = 0x8


class TooManyPieces(Exception):
    """The message is in too many and too small pieces."""

    def __init__(self, pieces: str) -> None:
        super().__init__(
            f"A message has at most {MAX_PIECES} {pieces}, or more of {MIN_MEAN_BYTES} bytes each. Send larger ones."
        )


def has_too_many_pieces(pieces: int, size: int) -> bool:
    """Whether a message of `size` bytes in so many pieces is refused."""
    return pieces > MAX_PIECES and size < pieces * MIN_MEAN_BYTES


class FrameCutter:
    """Follows the frames of a client (RFC 6455, section 5.2) through received bytes, in any chunking."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._payload_left = 0
        self._fragments = 0
        self._message_bytes = 0

    def cut(self, data: bytes, start: int) -> int:
        """The end of the part of `data` from `start` on that has at most `PIECES_AT_ONCE` frames.

        Call it for all of `data`, in order. Raises TooManyPieces.
        """
        at, frames, size = start, 0, len(data)
        while at < size:
            if self._payload_left:
                step = min(self._payload_left, size - at)
                self._payload_left -= step
                at += step
                continue
            if frames == PIECES_AT_ONCE:
                return at
            missing = _head_bytes(self._head) - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if at <= size and _head_bytes(self._head) == len(self._head):
                frames += 1
                self._begin(bytes(self._head))
                self._head.clear()
        return min(at, size)

    def _begin(self, head: bytes) -> None:
        length = head[1] & 0x7F
        if width := _LENGTH_BYTES.get(length):
            length = int.from_bytes(head[2 : 2 + width], "big")
        self._payload_left = length
        if head[0] & _CONTROL:
            return
        self._fragments += 1
        self._message_bytes += length
        if has_too_many_pieces(self._fragments, self._message_bytes):
            raise TooManyPieces("fragments")
        if head[0] & 0x80:
            self._fragments = self._message_bytes = 0


def _head_bytes(head: bytes | bytearray) -> int:
    """The length of a frame's head, as far as its first bytes say."""
    if len(head) < 2:
        return 2
    return 2 + _LENGTH_BYTES.get(head[1] & 0x7F, 0) + (4 if head[1] & 0x80 else 0)


def check_head(received: bytes) -> None:
    """Raise HttpError 431 for a head, or the beginning of one, with too many lines."""
    if received.count(b"\n") <= MAX_HEAD_LINES:
        return
    end = _BLANK_LINE.search(received)
    if received.count(b"\n", 0, end.start() if end else len(received)) >= MAX_HEAD_LINES:
        raise HttpError(431, "bad_request", f"A request has at most {MAX_HEAD_LINES} lines of headers.")


class ChunkCounter:
    """Counts the chunks of a body (RFC 9112, section 7.1). h11 says where they begin and end."""

    def __init__(self) -> None:
        self._between_chunks = True
        self._in_trailers = False
        self._chunks = 0

    def note_incoming(self, received: bytes) -> None:
        """Look at the bytes that h11 parses next. Raises HttpError 431 for too many lines of trailers."""
        self._in_trailers = self._in_trailers or (self._between_chunks and _LAST_CHUNK.match(received) is not None)
        if self._in_trailers:
            check_head(received)

    def count(self, data: h11.Data, size: int) -> None:
        """Count one more piece of data, with which the body has `size` bytes. Raises TooManyPieces."""
        self._between_chunks = data.chunk_end
        self._chunks += data.chunk_start
        if has_too_many_pieces(self._chunks, size):
            raise TooManyPieces("chunks")
