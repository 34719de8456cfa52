"""How far back one transcript was searched, and which stretches of it are left.

Knows the file, and how far its messages are in order of time. Does not know what is searched for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sessiond.model.record import TOOL_ROLES, BadLine, Record
from sessiond.store import blocks, dirfd
from sessiond.store.catalog import Session
from sessiond.trigrams.marks import NumberedLine, find_mark
from sessiond.trigrams.narrowing import SessionCandidates

# To find the time of a place so many lines are looked at: most are messages.
_LINES_TIMED = 16
# A stretch that is shorter is read rather than divided.
_DIVIDED_BYTES = 64 * 1024
# What is read to find the time of a place in the middle of a file.
_PROBE_BYTES = 16 * 1024


# What finding a place again has read of the beginnings of files: inode, epoch, where a line begins and the time of the
# first message behind it. A page that follows would read all of them once more.
_BEGINNINGS: WeakKeyDictionary[Session, tuple[int, int, int, int]] = WeakKeyDictionary()
_UNKNOWN = (-1, -1, -1, 0)


class Stretch(NamedTuple):
    """Whole lines that are left. `newest_ms`: no message in it, or in one before it, is newer; None where that is not
    known. `messages_before` is how many messages stand before `begin`, None where that is not known, and `marks` are
    lines of which it is known, too.
    """

    begin: int
    end: int
    newest_ms: int | None = None
    messages_before: int | None = None
    marks: str = ""

    def find_numbered(self, offset: int) -> NumberedLine | None:
        """The last line up to the one at `offset` of which is known how many messages stand before; None: of none."""
        if self.messages_before is None or offset < self.begin:
            return None
        return find_mark(self.marks, NumberedLine(self.begin, self.messages_before), offset)


def newest_time_of(session: Session, newest_ms: int) -> int:
    """No message of a session that is not newer than `newest_ms` is newer than this."""
    entry = session.entry
    return min(max(entry.updated_at, entry.created_at), newest_ms)


class SearchPlace:
    """What is left of one transcript. No message in it is newer than `bound`.

    `copied` are the messages of a fork that its original has too, with other times; None where they are not known yet.
    `stop` is the end of what was folded when the search began; `floor` is the time of a message that has none.
    """

    __slots__ = ("_disorder_ms", "_left", "_limit", "bound", "copied", "floor", "inode", "seen", "session", "stop")

    def __init__(self, session: Session, record_limit: int, newest_ms: int) -> None:
        entry = session.entry
        self.session = session
        self.inode, self.stop = entry.file.inode, entry.file.folded_to
        self.floor = entry.created_at
        self.bound = newest_time_of(session, newest_ms)
        self.copied: set[tuple[str, int]] | None = None
        # The lines of the message that was judged last, where a message may have several.
        self.seen = range(0)
        self._disorder_ms, self._limit = entry.disorder_ms, record_limit
        self._left: list[Stretch] = []

    @property
    def is_done(self) -> bool:
        return not self._left

    @property
    def next_stretch(self) -> Stretch:
        return self._left[-1]

    @property
    def bytes_left(self) -> int:
        return sum(stretch.end - stretch.begin for stretch in self._left)

    def begin(self, candidates: SessionCandidates, since_ms: int, least: int = _DIVIDED_BYTES) -> None:
        """Take what has to be looked through: what may have the text, of the time that is searched. A stretch of less
        than `least` bytes is not divided.
        """
        dialect = self.session.dialect
        has_whole_lines = not (dialect.joins or dialect.lists)
        # The time of a message in several lines is that of its last one, which may be older than another.
        slack = 0 if has_whole_lines else self._disorder_ms
        newest: int | None = 0
        for block in candidates.blocks:
            if block.oldest_ms is not None and not dialect.lists and block.oldest_ms - slack > self.bound:
                continue
            if has_whole_lines and block.newest_ms is not None and block.newest_ms < since_ms:
                continue
            newest = None if newest is None or block.newest_ms is None else max(newest, block.newest_ms)
            # A message in several lines may end behind the block that has the text, and be newer.
            known = newest if has_whole_lines else None
            self._left.append(Stretch(block.begin, block.end, known, block.messages_before, block.marks))
        if candidates.indexed_to < self.stop:
            self._left.append(Stretch(candidates.indexed_to, self.stop))
            self._skip_newer(min(least, _DIVIDED_BYTES))
        self._lower_to_next()

    def give_up(self) -> None:
        """Nothing is left: the file was replaced, or all of it was looked at."""
        self._left = []

    @contextmanager
    def open_file(self) -> Iterator[int | None]:
        """A descriptor of its file. None if that is another one now: its matches cannot be shown."""
        try:
            fd = self.session.folder.open_file(self.session.file_name)
        except OSError:
            yield None
            return
        try:
            yield fd if dirfd.inode_of(os.fstat(fd)) == self.inode else None
        finally:
            os.close(fd)

    def read(self, fd: int, size: int) -> blocks.Block | None:
        """The last lines of what is left. None if the file is shorter now."""
        stretch = self._left[-1]
        # With the newline before the stretch, so that its first line is known to begin there.
        size = min(size, stretch.end - stretch.begin + 1)
        return blocks.read_block_before(fd, stretch.end, self._limit, size=size)

    def pass_block(self, block: blocks.Block) -> None:
        """The lines of a block were looked at: what is left stands before them."""
        if len(self._left) == 1 and block.start <= self._left[0].begin:
            self._left.clear()
            return
        begin, stamp = self._first_message(block)
        self._cut_at(begin if block.start > self._left[-1].begin else block.start)
        if stamp is not None:
            self._lower(stamp + self._disorder_ms)
        self._lower_to_next()

    def _cut_at(self, offset: int) -> None:
        while self._left and self._left[-1].begin >= offset:
            self._left.pop()
        if self._left and self._left[-1].end > offset:
            self._left[-1] = self._left[-1]._replace(end=offset)

    def _lower(self, bound: int) -> None:
        self.bound = min(self.bound, max(bound, self.floor))

    def _lower_to_next(self) -> None:
        newest = self._left[-1].newest_ms if self._left else None
        if newest is not None:
            self._lower(newest)

    def _first_message(self, block: blocks.Block) -> tuple[int, int | None]:
        """Where the first message begins that has no line before the block, and its time; None where no line tells it.

        What stands before that line is looked at again, with the lines before the block.
        """
        joins, first_id = self.session.dialect.joins, None
        for offset, record in self._messages(block.data, block.start):
            if record.timestamp_ms is None:
                continue
            if not joins:
                return block.start, record.timestamp_ms
            if record.role in TOOL_ROLES:
                continue  # it may stand between the lines of a message
            if record.message_id is None or (first_id is not None and record.message_id != first_id):
                return offset, record.timestamp_ms
            first_id = record.message_id
        return block.start, None

    def _messages(self, data: bytes, offset: int) -> Iterator[tuple[int, Record]]:
        """The messages in the first lines, with their offsets."""
        for line in data.split(b"\n", _LINES_TIMED)[:_LINES_TIMED]:
            try:
                record = self.session.dialect.parse(line) if 0 < len(line) <= self._limit else None
            except BadLine:
                record = None
            if record is not None and record.message is not None:
                yield offset, record
            offset += len(line) + 1

    def _skip_newer(self, least: int) -> None:
        """Leave out what is newer than `bound`, as far as a few looks into the file tell."""
        session, tail = self.session, self._left[-1]
        if session.dialect.lists or session.entry.updated_at <= self.bound or tail.end - tail.begin < least:
            return
        inode, epoch, begin, stamp = _BEGINNINGS.get(session, _UNKNOWN)
        is_known = (inode, epoch) == (self.inode, session.epoch) and tail.begin <= begin
        if is_known and stamp - self._disorder_ms > self.bound:
            self._cut_at(begin)
            return
        with self.open_file() as fd:
            if fd is not None:
                self._cut_at(self._find_newer(fd, tail.begin, tail.end, least))

    def _find_newer(self, fd: int, low: int, high: int, least: int) -> int:
        """The offset of a line from which on everything is newer than `bound`; `high` where none is found."""
        middle = low
        while high - low >= least:
            found = self._time_at(fd, middle, high)
            if found is None:
                return high
            offset, stamp = found
            if not middle:
                _BEGINNINGS[self.session] = self.inode, self.session.epoch, offset, stamp
            if stamp - self._disorder_ms <= self.bound:
                low = middle
            elif middle == low:
                return offset
            else:
                high = offset
            middle = (low + high) // 2
        return high

    def _time_at(self, fd: int, position: int, stop: int) -> tuple[int, int] | None:
        """The time of the first message with one behind a position, and the offset of a line before it, between which
        there is no message.
        """
        begin = max(0, position - 1)
        data = os.pread(fd, min(_PROBE_BYTES, stop - begin), begin)
        first = data.find(b"\n") + 1 if position else 0
        lines, start = data[first : data.rfind(b"\n") + 1], begin + first
        for offset, record in self._messages(lines, start):
            if record.timestamp_ms is not None:
                return start, record.timestamp_ms
            start = offset + len(record.raw) + 1
        return None
