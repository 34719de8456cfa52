"""Read transcripts whose lines change a list of messages. Only for dialects that say so (`lists`).

What the list is after a line is decided by `model.message_list`. Finding it out takes reading the file from its
beginning, or from where it was read last; only places are kept of it, and the messages that are wanted are read again.
Synchronous; usable in several threads. Knows lines and offsets. Does not know sessions.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.message_list import ListChange, ListState, apply_line, messages_in
from sessiond.model.record import Record
from sessiond.store import dirfd, transcript
from sessiond.store.joining import JoinedParts
from sessiond.store.transcript import Line

# So many markers are kept: more than anybody looks at.
MAX_MARKERS = 200
# Of shorter files no list is kept: reading one takes a few milliseconds. Of all files together so much is kept.
LEAST_KEPT_BYTES = 64 * 1024
_MOST_KEPT = 32 * 1024
_MOST_FILES = 16
_LINES_A_STEP = 16


class ListedMessage(NamedTuple):
    """Where a message of the list stands: its line, and which one of the messages in the line it is.

    `key`: that of a message of which the lines from `offset` to `end` have parts; else None.
    """

    offset: int
    end: int
    place: int
    key: str | None = None


class _KnownList(NamedTuple):
    """The list that a file has at `stop`; `check` is the checksum of the bytes before."""

    stop: int
    check: int
    cut_at: int
    state: ListState
    messages: tuple[ListedMessage, ...]
    markers: tuple[tuple[Line, int], ...]


_NOTHING = _KnownList(0, 0, 0, ListState(), (), ())


class _KeptLists:
    """The lists of files that were read last, so that the next page of a file reads only what is new in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int, int], _KnownList] = OrderedDict()

    def find(self, fd: int, stop: int) -> _KnownList | None:
        """What is known of the beginning of a file, up to `stop` at most."""
        with self._lock:
            known = self._kept.get(_identity_of(fd))
        if known is None or known.stop > stop or transcript.checksum(fd, known.stop) != known.check:
            return None
        return known

    def put(self, fd: int, known: _KnownList) -> None:
        """Keep it, if the file is long enough to be worth it."""
        if known.stop < LEAST_KEPT_BYTES or len(known.messages) > _MOST_KEPT:
            return
        key = _identity_of(fd)
        with self._lock:
            self._kept[key] = known
            self._kept.move_to_end(key)
            while sum(len(one.messages) for one in self._kept.values()) > _MOST_KEPT or len(self._kept) > _MOST_FILES:
                self._kept.popitem(last=False)


def _identity_of(fd: int) -> tuple[int, int, int]:
    # The beginning tells apart what was put together in memory, which has no inode of its own.
    status = os.fstat(fd)
    return status.st_dev, dirfd.inode_of(status), zlib.crc32(os.pread(fd, transcript.CHECKED, 0))


_KEPT = _KeptLists()


class MessageListing:
    """The list of messages that a file has at `stop`. Use it while `fd` is open. With `in_steps` it is there when
    `steps` has ended, each of which is short.

    `cut_at` is the end of the last line that took messages away, 0 where none did. `markers` are the newest lines that
    are markers, each with the number of messages before it.
    """

    def __init__(
        self, fd: int, stop: int, record_limit: int, dialect: TranscriptDialect, *, in_steps: bool = False
    ) -> None:
        self._fd, self._limit, self._dialect = fd, record_limit, dialect
        self._line: Line | None = None
        self._known = _KEPT.find(fd, stop) or _NOTHING
        self.messages, self.cut_at = list(self._known.messages), self._known.cut_at
        self.markers: deque[tuple[Line, int]] = deque(self._known.markers, maxlen=MAX_MARKERS)
        if not in_steps:
            for _ in self.steps(stop):
                pass

    def steps(self, stop: int) -> Iterator[None]:
        """Read the file up to `stop`; yields about every millisecond."""
        fd, begin, state = self._fd, self._known.stop, self._known.state
        lines = transcript.read_lines(fd, begin, self._limit, dialect=self._dialect, stop=stop)
        for read, line in enumerate(lines):
            if line.record is not None:
                state, change = apply_line(state, line.record)
                self._apply(line, line.record, change)
                if line.record.marker is not None:
                    self.markers.append((line, len(self.messages)))
            if read % _LINES_A_STEP == _LINES_A_STEP - 1:
                yield
        if stop > begin:
            check, markers = transcript.checksum(fd, stop), tuple(self.markers)
            _KEPT.put(fd, _KnownList(stop, check, self.cut_at, state, tuple(self.messages), markers))

    def _apply(self, line: Line, record: Record, change: ListChange) -> None:
        if change.is_cut:
            self.cut_at = line.end
        del self.messages[change.kept :]
        while self.markers and self.markers[-1][1] > len(self.messages):
            self.markers.pop()  # it stood among messages that are gone
        places = {id(message): place for place, message in enumerate(messages_in(record))}
        for number, message in change.placed:
            found = ListedMessage(line.offset, line.end, places[id(message)])
            if message.part_key is not None:
                begin = self.messages[number - 1].offset if number <= len(self.messages) else line.offset
                found = ListedMessage(begin, line.end, 0, message.message_id)
            self.messages[number - 1 : number] = [found]

    def read(self, number: int) -> Line:
        """The message with a number, from 1, as a line of its own."""
        found = self.messages[number - 1]
        if found.key is not None:
            return read_parts(
                self._fd, found.offset, found.end, key=found.key, record_limit=self._limit, dialect=self._dialect
            )
        line = self._line
        if line is None or line.offset != found.offset:
            lines = transcript.read_lines(self._fd, found.offset, self._limit, dialect=self._dialect, stop=found.end)
            line = self._line = next(lines, Line(found.offset, found.end, None, "gone"))
        if line.record is None:
            return line  # the file was rewritten meanwhile, which the feed notices
        messages = messages_in(line.record)
        return split_line(line, messages[found.place] if found.place < len(messages) else None)

    def read_backwards(self, count: int) -> Iterator[Line]:
        """The first `count` messages of the list, newest first."""
        for number in range(min(count, len(self.messages)), 0, -1):
            yield self.read(number)


def split_line(line: Line, message: Record | None) -> Line:
    """The line as if it had only one of its messages."""
    if message is None:
        return Line(line.offset, line.end, None, "gone")
    return Line(line.offset, line.end, replace(message, more=()) if message.more else message)


def read_parts(fd: int, begin: int, end: int, *, key: str, record_limit: int, dialect: TranscriptDialect) -> Line:
    """The message whose parts stand in the lines from `begin` to `end`, each in its newest form, as one line."""
    parts: dict[str, Record] = {}
    for line in transcript.read_lines(fd, begin, record_limit, dialect=dialect, stop=end):
        for record in messages_in(line.record) if line.record is not None else ():
            if record.message_id == key and record.part_key is not None:
                parts[record.part_key] = record
    if not parts:
        return Line(begin, end, None, "gone")
    # What is said of the message as a whole has no key of its own, and is the newest.
    whole = parts.pop("", None)
    joined = JoinedParts()
    for record in (*parts.values(), *(() if whole is None else (whole,))):
        joined.add(record)
    return Line(begin, end, replace(joined.record(), more=(), part_key=None))
