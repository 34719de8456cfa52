"""Read a transcript backwards in blocks of whole lines, for work that goes through all of it.

Knows bytes, lines and message records. Does not know sessions. Blocks are small, so that other threads run in between:
the system call for each block releases the interpreter lock.
"""

from __future__ import annotations

import os

import msgspec

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.record import BadLine
from sessiond.store import dirfd
from sessiond.store.folder import Folder

# Searching this much takes 0.1 ms. From 128 KiB on the C library would map fresh pages for each block.
BLOCK = 120 * 1024


class Block(msgspec.Struct, frozen=True, gc=False):
    """Whole lines: `data` begins at the offset `start` of the file and ends with a newline."""

    start: int
    data: bytes


def read_block_before(fd: int, end: int, record_limit: int, *, size: int = BLOCK) -> Block | None:
    """The lines that end at `end` (the end of a line): at least one, about `size` bytes. None where the file shrank.

    For a line over the limit it is a block without data that begins where the line begins; a line that is only a little
    longer may be included.
    """
    while True:
        start = max(0, end - size)
        data = os.pread(fd, end - start, start)
        if len(data) < end - start:
            return None
        if start == 0:
            return Block(0, data)
        cut = data.find(b"\n")
        if -1 < cut < len(data) - 1:
            return Block(start + cut + 1, data[cut + 1 :])
        if size > record_limit + 1:
            return Block(line_start(fd, start), b"")
        size = min(size * 4, record_limit + 2)


def read_block_of_file(
    folder: Folder, name: str, inode: int, end: int, record_limit: int, *, size: int = BLOCK
) -> Block | None:
    """As `read_block_before`, for a file in a folder. None also where it was removed or replaced."""
    try:
        fd = folder.open_file(name)
    except OSError:
        return None
    try:
        return read_block_before(fd, end, record_limit, size=size) if dirfd.inode_of(os.fstat(fd)) == inode else None
    finally:
        os.close(fd)


def line_start(fd: int, position: int) -> int:
    """The offset at which the line that contains `position` begins; `position` itself right behind a newline."""
    while position > 0:
        begin = max(0, position - BLOCK)
        newline = os.pread(fd, position - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        position = begin
    return 0


def count_messages(data: bytes, record_limit: int, *, dialect: TranscriptDialect, clean: bool) -> int:
    """The number of message records in the lines. `clean`: the file is known to have no bad line.

    Lines of a clean file are counted by the dialect without parsing, if it can.
    """
    counted = dialect.count_messages(data) if clean else None
    if counted is not None:
        return counted
    return sum(len(line) <= record_limit and is_message(line, dialect) for line in data.split(b"\n"))


def is_message(line: bytes, dialect: TranscriptDialect) -> bool:
    """Whether the line is a message record."""
    if not line or line.isspace():
        return False
    try:
        return dialect.parse(line).message is not None
    except BadLine:
        return False
