"""One page of a replay: lines of a transcript from a place on, with what their events need.

Synchronous; runs in worker threads. Knows lines and places. Does not know subscriptions.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from msgspec.structs import replace

from sessiond.events.subscription import FollowPlace
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import FileFacts
from sessiond.store import dirfd, transcript
from sessiond.store.joining import ForwardJoiner
from sessiond.store.listing import MessageListing
from sessiond.store.tail import Tail

# Large enough to be fast, small enough that queued events in between do not wait long.
PAGE_LINES = 256
PAGE_BYTES = 256 * 1024


class ReplayLine(NamedTuple):
    """A line, the checksum at its end, and the number of the message that it adds a part to, else 0.

    `total` is how many messages a follower has had behind it.
    """

    line: transcript.Line
    check: int
    total: int
    part_of: int = 0

    @property
    def is_message(self) -> bool:
        return self.line.record is not None and self.line.record.message is not None


class ReplayPage(NamedTuple):
    """`is_cut`: messages from before the place are gone, so that the follower has to begin again."""

    lines: list[ReplayLine]
    end: int
    is_cut: bool = False


def read_page(
    fd: int,
    facts: FileFacts,
    place: FollowPlace,
    record_limit: int,
    dialect: TranscriptDialect,
    *,
    max_lines: int = PAGE_LINES,
) -> ReplayPage | None:
    """Lines from a place on, each with the checksum of what precedes its end; None where it is not the file that the
    feed has read.
    """
    if dialect.lists:
        page = _read_listed(MessageListing(fd, facts.folded_to, record_limit, dialect), fd, facts, place, max_lines)
        return page if _is_current(fd, facts, place.offset) else None
    lines: list[ReplayLine] = []
    offset, total, end = place.offset, place.seq, None
    tail = Tail(offset, record_limit)
    joined = _JoinedLines(fd, place, record_limit, dialect) if dialect.joins else None
    for line in transcript.read_tail(fd, tail, stop=facts.folded_to, dialect=dialect):
        check = transcript.checksum(fd, line.end)
        if joined is None:
            total += line.record is not None and line.record.message is not None
            lines.append(ReplayLine(line, check, total))
        else:
            joined.add(lines, line, check)
        if len(lines) >= max_lines or line.end - offset >= PAGE_BYTES or (joined is not None and joined.is_long):
            end = line.end
            break
    # Checked after reading, so that lines of another file are never used.
    if not _is_current(fd, facts, offset):
        return None
    return ReplayPage(lines, tail.whole if end is None else end)


def _is_current(fd: int, facts: FileFacts, offset: int) -> bool:
    """Whether the file is the one that the feed has read, and a line begins at `offset`."""
    if dirfd.inode_of(os.fstat(fd)) != facts.inode or transcript.checksum(fd, facts.folded_to) != facts.check:
        return False
    return transcript.is_line_start(fd, offset)


def _read_listed(listing: MessageListing, fd: int, facts: FileFacts, place: FollowPlace, max_lines: int) -> ReplayPage:
    """The messages that are new or were replaced behind the place, in the order of their last change.

    Where messages were taken away, what was left of the list comes first: from there on a follower has the list as it
    was then, less what is still to come.
    """
    if place.seq and listing.cut_at > place.offset:
        return ReplayPage([], place.offset, is_cut=True)
    had = min(place.seq, len(listing.messages))
    ends = [message.end for message in listing.messages]
    due = [number for number, end in enumerate(ends, 1) if number > had or end > place.offset]
    due.sort(key=lambda number: (max(ends[number - 1], listing.cut_at), number))
    lines: list[ReplayLine] = []
    message_bytes = 0
    for number in due:
        reached = max(lines[-1].line.end, listing.cut_at) if lines else 0
        is_full = len(lines) >= max_lines or message_bytes >= PAGE_BYTES
        # Within one line, and up to where the list was cut, the numbers say what a follower has had.
        is_place = ends[number - 1] > reached or number > lines[-1].total if lines else False
        if is_full and is_place and place.offset <= reached < facts.folded_to:
            return ReplayPage(lines, reached)
        line = listing.read(number)
        if line.record is not None and line.record.message is not None:
            message_bytes += len(line.record.message)
        total = lines[-1].total if lines else had
        part_of = 0 if number == total + 1 else number
        lines.append(ReplayLine(line, transcript.checksum(fd, line.end), max(number, total), part_of))
    return ReplayPage(lines, facts.folded_to)


class _JoinedLines:
    """The lines of a page of a dialect that joins lines: of parts right behind one another only the last, which has the
    whole message.
    """

    def __init__(self, fd: int, place: FollowPlace, record_limit: int, dialect: TranscriptDialect) -> None:
        self._joiner = ForwardJoiner(
            fd, record_limit, dialect, place=place.offset, count=place.seq, is_known=place.offset == 0
        )
        self._newest = 0
        self._message_bytes = 0

    @property
    def is_long(self) -> bool:
        return self._message_bytes >= PAGE_BYTES

    def add(self, lines: list[ReplayLine], line: transcript.Line, check: int) -> None:
        line, part_of = self._joiner.join(line)
        if line.record is None or line.record.message is None:
            return
        before = lines[-1] if lines and part_of and part_of == self._newest else None
        if before is not None:
            lines.pop()
            line, part_of = replace(line, offset=before.line.offset), before.part_of
        self._newest = part_of or self._joiner.count
        self._message_bytes += len(line.record.message) if line.record is not None and line.record.message else 0
        lines.append(ReplayLine(line, check, self._joiner.count, part_of))
