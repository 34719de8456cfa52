"""What each line of a transcript changes, for those who follow it: the messages of dialects that join lines, or whose
lines change a list.

Synchronous. Knows lines and entries. Does not know subscribers.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.message_list import apply_line, state_of
from sessiond.model.record import Record
from sessiond.store import transcript
from sessiond.store.joining import ForwardJoiner
from sessiond.store.listing import read_parts, split_line
from sessiond.store.transcript import Line

# Each part of a message gives all of it again: in one step at most so many bytes.
_MAX_JOINED_BYTES = 2 * 2**20


class FoldedLine(msgspec.Struct, frozen=True):
    """One line and the entry after it, with the number of messages and the checksum there.

    `part_of` is the number of the message to which the line adds a part, and which `line` then has as a whole; else 0.
    """

    line: Line
    entry: Entry
    seq: int
    check: int
    part_of: int = 0


class JoinedSteps:
    """The steps of a dialect that joins lines. After many long messages the others have to wait for the next round."""

    __slots__ = ("_joiner", "_message_bytes")

    def __init__(self, fd: int, entry: Entry, record_limit: int, dialect: TranscriptDialect) -> None:
        opened = entry.source.opened if entry.source is not None else None
        place, count = entry.file.folded_to, entry.message_count
        self._joiner = ForwardJoiner(fd, record_limit, dialect, place=place, count=count, opened=opened, is_known=True)
        self._message_bytes = 0

    @property
    def is_long(self) -> bool:
        return self._message_bytes >= _MAX_JOINED_BYTES

    def step(self, fd: int, line: Line, entry: Entry) -> FoldedLine:
        line, part_of = self._joiner.join(line)
        if part_of and line.record is not None:
            self._message_bytes += len(line.record.message or b"")
        return FoldedLine(line, entry, entry.message_count, transcript.checksum(fd, line.end), part_of)


class ListedSteps:
    """The steps of a dialect whose lines change a list of messages. `is_cut`: messages were taken away, or one that is
    not among the newest was replaced. The newest ones keep their number, as a message that grows.
    """

    __slots__ = ("_dialect", "_fd", "_limit", "_state", "is_cut")

    def __init__(self, fd: int, entry: Entry, record_limit: int, dialect: TranscriptDialect) -> None:
        self._fd, self._limit, self._dialect = fd, record_limit, dialect
        self._state = state_of(entry)
        self.is_cut = False

    def steps(self, line: Line, entry: Entry) -> list[FoldedLine]:
        """The steps of one line, with the entry after it: one for each message that it places, or one without any."""
        check = transcript.checksum(self._fd, line.end)
        if line.record is None:
            return [FoldedLine(line, entry, entry.message_count, check)]
        before = self._state.count
        self._state, change = apply_line(self._state, line.record)
        # Followers of a list whose older messages are replaced read it anew; a part of one makes it longer.
        is_whole = line.record.part_key is None
        is_late = is_whole and any(number <= before - len(change.placed) for number, _ in change.placed)
        self.is_cut = self.is_cut or change.is_cut or is_late
        steps = []
        for number, message in change.placed:
            is_known = number <= before
            placed = self._whole(line, entry, message) if is_known else split_line(line, message)
            steps.append(FoldedLine(placed, entry, max(number, before), check, number if is_known else 0))
        bare = Line(line.offset, line.end, replace(line.record, message=None, more=()))
        return steps or [FoldedLine(bare, entry, entry.message_count, check)]

    def _whole(self, line: Line, entry: Entry, message: Record) -> Line:
        """The message that was there before, with what the line changes in it."""
        if message.part_key is None:
            return split_line(line, message)
        key = message.message_id or ""
        opened = entry.source.opened if entry.source is not None else None
        begin = opened.begin if opened is not None and opened.id == key else 0
        whole = read_parts(self._fd, begin, line.end, key=key, record_limit=self._limit, dialect=self._dialect)
        return Line(line.offset, line.end, whole.record, whole.bad)
