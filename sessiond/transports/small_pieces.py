"""What comes in very small pieces: where to stop for others, and what is too fine to be taken.

A byte in a WebSocket fragment or an HTTP chunk of its own costs a parser as much as a kilobyte in one: 64 KiB of them
would hold up everybody for a third of a second. Knows how frames and chunks begin; decodes nothing.
"""

from __future__ import annotations

import re

import h11

from sessiond.transports.exchange import HttpError

# Frames or chunks that are parsed in one go: two milliseconds.
PIECES_AT_ONCE = 64
# Of one message. Whoever writes as it goes along, a token at a time, stays below; longer messages have longer pieces.
MAX_PIECES = 4096
MIN_MEAN_BYTES = 256
# Lines of a request's head, or of what stands behind its last chunk. Browsers send twenty.
MAX_HEAD_LINES = 128

_BLANK_LINE = re.compile(rb"\n\r?\n")
_LAST_CHUNK = re.compile(rb"\A[\r\n]*0+[ \t;\r\n]")
_LENGTH_BYTES = {126: 2, 127: 8}
_CONTROL = 0x8


class TooFine(Exception):
    """The message is in too many and too small pieces."""

    def __init__(self, pieces: str) -> None:
        super().__init__(
            f"A message has at most {MAX_PIECES} {pieces}, or more of {MIN_MEAN_BYTES} bytes each. Send larger ones."
        )


def is_too_fine(pieces: int, size: int) -> bool:
    """Whether so many pieces of so many bytes together are refused."""
    return pieces > MAX_PIECES and size < pieces * MIN_MEAN_BYTES


class FrameCutter:
    """Follows the frames of a client (RFC 6455, section 5.2) through what comes, wherever it was cut."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._payload_left = 0
        self._fragments = 0
        self._message_bytes = 0

    def cut(self, data: bytes, start: int) -> int:
        """Where to stop after `start`, so that the piece has few frames. Raises TooFine.

        Every byte of `data` is looked at once, in order.
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
        if is_too_fine(self._fragments, self._message_bytes):
            raise TooFine("fragments")
        if head[0] & 0x80:
            self._fragments = self._message_bytes = 0


def _head_bytes(head: bytes | bytearray) -> int:
    """How long the head of a frame is, as far as it is known yet."""
    if len(head) < 2:
        return 2
    return 2 + _LENGTH_BYTES.get(head[1] & 0x7F, 0) + (4 if head[1] & 0x80 else 0)


def check_head(came: bytes) -> None:
    """HttpError 431 for a head, or the beginning of one, of too many lines."""
    if came.count(b"\n") <= MAX_HEAD_LINES:
        return
    end = _BLANK_LINE.search(came)
    if came.count(b"\n", 0, end.start() if end else len(came)) >= MAX_HEAD_LINES:
        raise HttpError(431, "bad_request", f"A request has at most {MAX_HEAD_LINES} lines of headers.")


class ChunkCounter:
    """Follows a body in chunks (RFC 9112, section 7.1) beside h11, which says where they begin and end."""

    def __init__(self) -> None:
        self._between = True
        self._behind = False
        self._chunks = 0

    def note_incoming(self, came: bytes) -> None:
        """What h11 is about to read. HttpError 431 for too many lines behind the last chunk."""
        self._behind = self._behind or (self._between and _LAST_CHUNK.match(came) is not None)
        if self._behind:
            check_head(came)

    def count(self, data: h11.Data, size: int) -> None:
        """One more piece; the body has `size` bytes with it. Raises TooFine."""
        self._between = data.chunk_end
        self._chunks += data.chunk_start
        if is_too_fine(self._chunks, size):
            raise TooFine("chunks")
