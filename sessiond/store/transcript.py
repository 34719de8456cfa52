"""Read and append one transcript file, by descriptor and offset.

Synchronous. Knows lines and offsets. Does not know sessions.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import msgspec

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.record import BadLine, Record
from sessiond.store.tail import Tail

# Reads so many bytes of a file, from an offset on.
Pread = Callable[[int, int], bytes]
BLOCK = 64 * 1024
# So many bytes before an offset identify a file: they have the end of a record's text, or its timestamp.
CHECKED = 128
_LINE_CHECKED = 2**20
# Counting the lines of so many bytes takes a few milliseconds.
_COUNTED = 16 * 2**20
# A line of this size takes 1 to 2 ms to parse, the longest ones 25 ms and more. So the feed, which runs on the event
# loop, has such lines parsed ahead in a worker thread.
LONG_LINE = 512 * 1024
# Failed appends are overwritten in pieces of this size, because memory may be short.
_PIECE = 256 * 1024
_NEWLINE = re.compile(rb"\n")


class Line(msgspec.Struct, frozen=True, gc=False):
    """One whole line: its begin and end (newline included), and its record, or the reason why it is none (`bad`)."""

    offset: int
    end: int
    record: Record | None
    bad: str | None = None


def read_lines(
    fd: int, offset: int, limit: int, *, dialect: TranscriptDialect, stop: int | None = None, block: int = BLOCK
) -> Iterator[Line]:
    """Every whole line from `offset` (the start of a line) to `stop` or the end of the file, except blank ones."""
    return read_tail(fd, Tail(offset, limit), dialect=dialect, stop=stop, block=block)


def read_tail(
    fd: int,
    tail: Tail,
    *,
    dialect: TranscriptDialect,
    stop: int | None = None,
    block: int = BLOCK,
    parsed: Mapping[int, Line] | None = None,
) -> Iterator[Line]:
    """As `read_lines`, from the position of `tail`, which keeps an incomplete line at the end.

    `parsed` are lines parsed ahead, by offset; they are used if they are unchanged in the file.
    """
    parsed = parsed or {}
    while stop is None or tail.offset < stop:
        ahead = parsed.get(tail.offset)
        if ahead is not None and tail.whole == tail.offset and _is_unchanged(fd, ahead):
            tail.skip_to(ahead.end)
            yield ahead
            continue
        size = block if stop is None else min(block, stop - tail.offset)
        if parsed:
            # Read only up to the next line that is parsed already, so that the next round finds it.
            size = min([size, *(begin - tail.offset for begin in parsed if begin > tail.offset)])
        chunk = os.pread(fd, size, tail.offset)
        if not chunk:
            return
        for begin, line in tail.feed(chunk):
            made = line_of(begin, line, tail.whole, tail.limit, dialect)
            if made is not None:
                yield made


def _is_unchanged(fd: int, line: Line) -> bool:
    if line.record is None:
        return False
    data = os.pread(fd, line.end - line.offset, line.offset)
    return len(data) == len(line.record.raw) + 1 and data.startswith(line.record.raw) and data.endswith(b"\n")


class LookAhead(NamedTuple):
    """A long line, parsed, or None; before `to` no other line begins that is long, or not whole yet."""

    line: Line | None
    to: int


def find_long_line(
    fd: int, offset: int, limit: int, *, dialect: TranscriptDialect, within: int, long: int = LONG_LINE
) -> LookAhead:
    """The first line of at least `long` bytes that begins less than `within` bytes behind `offset`. Raises OSError.
    Call it in a worker thread.
    """
    tail = Tail(offset, limit)
    while tail.whole - offset < within and (chunk := os.pread(fd, BLOCK, tail.offset)):
        for begin, line in tail.feed(chunk):
            if begin - offset >= within:
                return LookAhead(None, begin)
            if line is not None and len(line) >= long:
                return LookAhead(line_of(begin, line, tail.whole, limit, dialect), tail.whole)
        if tail.passed_to:
            break  # the line is over the limit already, so it is not parsed
    return LookAhead(None, tail.whole)


def line_of(begin: int, line: bytes | None, end: int, limit: int, dialect: TranscriptDialect) -> Line | None:
    """The parsed line between two offsets, None where it is blank. `line` is None for one over the limit."""
    if line is None or len(line) > limit:
        return Line(begin, end, None, "over the size limit")
    # Failed appends are overwritten with white space, so blank lines are neither records nor damage.
    if not line or line.isspace():
        return None
    try:
        return Line(begin, end, dialect.parse(line))
    except BadLine as bad:
        return Line(begin, end, None, bad.reason)


def read_backwards(fd: int, end: int, limit: int, *, dialect: TranscriptDialect, block: int = BLOCK) -> Iterator[Line]:
    """Every whole line that ends at or before `end` (the end of a line), newest first, read in blocks."""
    position = end
    newest_first: list[bytes] = []  # the pieces of the line whose beginning was not read yet
    held = 0
    while position > 0:
        size = min(block, position)
        position -= size
        chunk = os.pread(fd, size, position)
        if len(chunk) < size:
            return  # the file was truncated meanwhile, which the feed notices
        cut = len(chunk)
        while (newline := chunk.rfind(b"\n", 0, cut)) >= 0:
            begin = position + newline + 1
            made = _assemble(chunk[newline + 1 : cut], newest_first, held, begin, limit, dialect=dialect)
            if made is not None:
                yield made
            newest_first, held = [], 0
            cut = newline
            # The newline belongs to the line before it.
            newest_first.append(b"\n")
        rest = chunk[:cut]
        if rest:
            held += len(rest)
            if held <= limit + 1:
                newest_first.append(rest)
    made = _assemble(b"", newest_first, held, 0, limit, dialect=dialect)
    if made is not None:
        yield made


def _assemble(
    head: bytes, newest_first: list[bytes], held: int, begin: int, limit: int, *, dialect: TranscriptDialect
) -> Line | None:
    if not newest_first and not head:
        return None
    size = len(head) + held
    ended = bool(newest_first) and newest_first[0] == b"\n"
    end = begin + size + (1 if ended else 0)
    if size > limit:
        return Line(begin, end, None, "over the size limit")
    pieces = [head, *reversed(newest_first[1:] if ended else newest_first)]
    return line_of(begin, b"".join(pieces), end, limit, dialect)


def is_line_start(fd: int, offset: int) -> bool:
    """Whether a line begins at `offset`: at the start of the file, or right behind a newline."""
    if offset == 0:
        return True
    return os.pread(fd, 1, offset - 1) == b"\n"


def line_number(fd: int, offset: int) -> int | None:
    """The number, from 1, of the line that begins at `offset`; None where counting would take too long."""
    if offset > _COUNTED:
        return None
    number, at = 1, 0
    while at < offset and (chunk := os.pread(fd, min(BLOCK, offset - at), at)):
        number += chunk.count(b"\n")
        at += len(chunk)
    return number


def checksum(fd: int, offset: int) -> int:
    """A checksum of the bytes right before `offset`, by which a rewritten file is told from one that grew."""
    return checksum_by(partial(os.pread, fd), offset)


def checksum_by(pread: Pread, offset: int) -> int:
    """As `checksum`, of a file that is read by `pread`."""
    begin = max(0, offset - CHECKED)
    return zlib.crc32(pread(offset - begin, begin)) if offset else 0


def checksum_behind(fd: int, line: Line) -> int:
    """As `checksum`, right behind a line that was just read and whose record has its bytes: usually without a read."""
    raw = line.record.raw if line.record is not None else b""
    if len(raw) < CHECKED - 1 or line.end - line.offset != len(raw) + 1:
        return checksum(fd, line.end)
    return zlib.crc32(b"\n", zlib.crc32(raw[1 - CHECKED :]))


def line_checksum(fd: int, begin: int, end: int) -> int:
    """A checksum of the bytes of a line; of the first MiB of a longer one."""
    return zlib.crc32(os.pread(fd, min(end - begin, _LINE_CHECKED), begin)) if begin < end else 0


class WrittenBytes(NamedTuple):
    """What one commit wrote, verified under the file's name: `text` is that behind what stood before it.

    What was written begins at `offset` and ends with the file, which had the given inode and mtime then. That was
    found out after `seen_at`, by the monotonic clock.
    """

    text: bytes
    offset: int
    end: int
    inode: int
    mtime_ns: int
    seen_at: float = -math.inf

    @property
    def data(self) -> bytes:
        return self.text[len(self.text) - (self.end - self.offset) :]

    def checksum(self, end: int) -> int:
        """As `transcript.checksum`, of the bytes before an offset within what was written."""
        stop = len(self.text) - (self.end - end)
        return zlib.crc32(self.text[max(0, stop - CHECKED) : stop])


class HalfWritten(OSError):
    """An append failed and could not be blanked out: `data`, or part of it, is in the file at `offset`."""

    def __init__(self, code: int, offset: int, data: bytes) -> None:
        super().__init__(code, os.strerror(code))
        self.offset, self.data = offset, data


class End(NamedTuple):
    """The size of a file, and whether it ends within a line (`torn`)."""

    size: int
    torn: bool


def end_of(fd: int, status: os.stat_result) -> End:
    """The end of the file as it is now."""
    return End(status.st_size, not is_line_start(fd, status.st_size))


def append(fd: int, data: bytes, end: End | None = None) -> int:
    """Write `data` (whole lines) at the end of the file in one write, behind a newline if the file ends within a line.

    `end` is the end of the file as the caller found it. Another program may append an incomplete line afterwards, so
    a caller that needs `data` to begin a line has to check that after the write.

    Returns the offset of `data`. After a short write or an error the written part is blanked out and synced, so that
    it never becomes a record, and OSError is raised.
    """
    size, torn = end or end_of(fd, os.fstat(fd))
    payload = b"\n" + data if torn else data
    try:
        written = os.write(fd, payload)
    except OSError as error:
        # Some file systems keep part of a failed write. Compare: another program may have written there instead.
        kept = os.pread(fd, len(payload), size)
        if kept and payload.startswith(kept):
            _undo_append(fd, size, kept, error.errno or errno.EIO)
        raise
    # The end of the O_APPEND write, since another program may have appended between fstat and write.
    behind = os.lseek(fd, 0, os.SEEK_CUR)
    if written < len(payload):
        _undo_append(fd, behind - written, payload[:written], errno.ENOSPC)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return behind - len(data)


def _undo_append(fd: int, offset: int, data: bytes, code: int) -> None:
    try:
        blank_out(fd, offset, len(data))
    except OSError:
        raise HalfWritten(code, offset, data) from None
    # Synced, or a power cut could bring back the refused lines.
    with contextlib.suppress(OSError):
        os.fdatasync(fd)


def blank_out(fd: int, offset: int, length: int, *, ending: bytes = b"\n") -> None:
    """Overwrite bytes that this process appended with spaces and a newline (or another `ending`).

    Truncating could cut off what another program appended behind them; overwriting cannot. The last line is overwritten
    first, so that a crash in between leaves a shorter append, and no record without those before it.
    """
    if length <= 0:
        return
    cuts = [0, *_line_ends(fd, offset, length - 1), length]
    # On Linux pwrite ignores the offset on an O_APPEND descriptor, so the flag is cleared meanwhile: there may be no
    # free descriptor to open the file again.
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_APPEND)
    try:
        for begin, end in reversed(list(pairwise(cuts))):
            last = ending if end == length else b"\n"
            _blank_line(fd, offset + begin, end - begin, last)
    except OSError:
        # Copy-on-write file systems need free space to overwrite. If nothing follows, truncating is safe.
        if os.fstat(fd).st_size != offset + length:
            raise
        os.ftruncate(fd, offset)
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def _blank_line(fd: int, offset: int, length: int, ending: bytes) -> None:
    while length > _PIECE:
        _overwrite(fd, offset, b" " * _PIECE)
        offset, length = offset + _PIECE, length - _PIECE
    _overwrite(fd, offset, b" " * (length - len(ending)) + ending)


def _line_ends(fd: int, offset: int, length: int) -> list[int]:
    """The ends of lines within `length` bytes from `offset` on, relative to it."""
    ends: list[int] = []
    for start in range(0, length, _PIECE):
        piece = os.pread(fd, min(_PIECE, length - start), offset + start)
        ends += [start + found.end() for found in _NEWLINE.finditer(piece)]
    return ends


def _overwrite(fd: int, offset: int, data: bytes) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        if not done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        offset, data = offset + done, data[done:]
