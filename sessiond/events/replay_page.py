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
from sessiond.store import transcript
from sessiond.store.joining import ForwardJoiner
from sessiond.store.listing import MessageListing
from sessiond.store.tail import Tail

# Large enough to be fast, small enough that queued events in between do not wait long.
PAGE_LINES = 256
PAGE_BYTES = 256 * 1024


class ReplayLine(NamedTuple):
    """A line, the checksum at its end, and the number of the message that it adds a part to, else 0."""

    line: transcript.Line
    check: int
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
    fd: int, facts: FileFacts, place: FollowPlace, record_limit: int, dialect: TranscriptDialect
) -> ReplayPage | None:
    """Lines from a place on, each with the checksum of what precedes its end; None where it is not the file that the
    feed has read.
    """
    if dialect.lists:
        page = _read_listed(fd, facts, place, record_limit, dialect)
        return page if _is_current(fd, facts, place.offset) else None
    lines: list[ReplayLine] = []
    offset, end = place.offset, None
    tail = Tail(offset, record_limit)
    joined = _JoinedLines(fd, place, record_limit, dialect) if dialect.joins else None
    for line in transcript.read_tail(fd, tail, stop=facts.folded_to, dialect=dialect):
        check = transcript.checksum(fd, line.end)
        if joined is None:
            lines.append(ReplayLine(line, check))
        else:
            joined.add(lines, line, check)
        if len(lines) >= PAGE_LINES or line.end - offset >= PAGE_BYTES or (joined is not None and joined.is_long):
            end = line.end
            break
    # Checked after reading, so that lines of another file are never used.
    if not _is_current(fd, facts, offset):
        return None
    return ReplayPage(lines, tail.whole if end is None else end)


def _is_current(fd: int, facts: FileFacts, offset: int) -> bool:
    """Whether the file is the one that the feed has read, and a line begins at `offset`."""
    if os.fstat(fd).st_ino != facts.inode or transcript.checksum(fd, facts.folded_to) != facts.check:
        return False
    return transcript.is_line_start(fd, offset)


def _read_listed(
    fd: int, facts: FileFacts, place: FollowPlace, record_limit: int, dialect: TranscriptDialect
) -> ReplayPage:
    """The messages that are new or were replaced behind the place: first the replaced ones, by their last change."""
    listing = MessageListing(fd, facts.folded_to, record_limit, dialect)
    if place.seq and listing.cut_at > place.offset:
        return ReplayPage([], place.offset, is_cut=True)
    had = min(place.seq, len(listing.messages))
    later = [number for number in range(1, had + 1) if listing.messages[number - 1].end > place.offset]
    later.sort(key=lambda number: listing.messages[number - 1].end)
    lines = []
    for number in (*later, *range(had + 1, len(listing.messages) + 1)):
        line = listing.read(number)
        lines.append(ReplayLine(line, transcript.checksum(fd, line.end), number if number <= had else 0))
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
        lines.append(ReplayLine(line, check, part_of))
