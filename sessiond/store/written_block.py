"""Bytes that were written into an open file, and whether they stand there still. Knows descriptors and offsets."""

from __future__ import annotations

import os
from typing import NamedTuple

# Compared in pieces of this size, because that is also done when memory is short.
PIECE_BYTES = 256 * 1024


class WrittenBlock(NamedTuple):
    """Bytes that were written into an open file."""

    fd: int
    offset: int
    data: bytes

    def is_unchanged(self) -> bool:
        starts = range(0, len(self.data), PIECE_BYTES)
        pieces = ((start, self.data[start : start + PIECE_BYTES]) for start in starts)
        return all(os.pread(self.fd, len(piece), self.offset + start) == piece for start, piece in pieces)

    def is_unchanged_line(self) -> bool:
        """Whether it is unchanged and at the beginning of a line."""
        if not self.offset:
            return self.is_unchanged()
        if len(self.data) > PIECE_BYTES:
            return os.pread(self.fd, 1, self.offset - 1) == b"\n" and self.is_unchanged()
        return os.pread(self.fd, len(self.data) + 1, self.offset - 1) == b"\n" + self.data
