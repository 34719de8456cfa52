"""The newest messages before a place in a transcript: pages of history.

Synchronous. Knows lines, messages and the shape of a page. Does not know sessions, callers or cursors as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.record import Record
from sessiond.store import transcript
from sessiond.store.joining import read_joined_backwards
from sessiond.store.listing import MAX_MARKERS, MessageListing
from sessiond.store.transcript import Line


class MessagePage(msgspec.Struct, frozen=True):
    """Messages read backwards, each with its `seq`, oldest first.

    `start` is where the next older page ends, with `start_seq` messages before it. `skipped` counts the bad lines of
    this page's stretch; `bytes` the messages that fit. `noted` are other records that were asked for, oldest first,
    each with the number of messages before it; so are `markers`, the newest ones.
    """

    lines: list[tuple[Line, int]]
    start: int
    start_seq: int
    has_more: bool
    skipped: int
    bytes: int
    noted: list[tuple[Line, int]] = []
    markers: list[tuple[Line, int]] = []


def page_backwards(
    fd: int,
    end: int,
    end_seq: int,
    *,
    wanted: Callable[[Record], bool],
    limit: int,
    max_bytes: int,
    record_limit: int,
    dialect: TranscriptDialect,
    noted: Callable[[Record], bool] | None = None,
    with_hidden: bool = False,
    stop: int = 0,
    shorten: Callable[[bytes], bytes] | None = None,
) -> MessagePage:
    """The newest `limit` messages before `end` that are `wanted`, at most `max_bytes` of them but always one.

    `end_seq` is how many messages stand before `end`. The limit counts what is returned, after the filter. A message
    over `max_bytes` takes none of them: `shorten` puts something small in its place, because many long ones take too
    much memory. Parts up to `stop` of a message that begins before `end` belong to it. `with_hidden` adds hidden
    messages, each with the `seq` of the message before it.
    """

    def collect(lines: Iterator[Line]) -> MessagePage:
        collector = _PageCollector(
            end_seq,
            wanted=wanted,
            limit=limit,
            max_bytes=max_bytes,
            noted=noted,
            with_hidden=with_hidden,
            shorten=shorten,
        )
        return collector.collect(lines)

    if dialect.lists:
        listing = MessageListing(fd, max(end, stop), record_limit, dialect)
        # Since the cursor was given out the list may have been cut.
        end_seq = min(end_seq, len(listing.messages))
        page = collect(listing.read_backwards(end_seq))
        first = page.start_seq + 1 if page.has_more else 0
        return replace(page, markers=[marker for marker in listing.markers if first <= marker[1] <= end_seq])
    if dialect.joins:
        return collect(read_joined_backwards(fd, end, record_limit, dialect=dialect, stop=max(end, stop)))
    return collect(transcript.read_backwards(fd, end, record_limit, dialect=dialect))


class _PageCollector:
    """Collects one page from lines that come newest first."""

    def __init__(
        self,
        end_seq: int,
        *,
        wanted: Callable[[Record], bool],
        limit: int,
        max_bytes: int,
        noted: Callable[[Record], bool] | None = None,
        with_hidden: bool = False,
        shorten: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._wanted, self._noted, self._with_hidden = wanted, noted, with_hidden
        self._shorten = shorten
        self._limit, self._max_bytes = limit, max_bytes
        self._found: list[tuple[Line, int]] = []
        self._notes: list[tuple[Line, int]] = []
        self._markers: list[tuple[Line, int]] = []
        self._seq, self._size = end_seq, 0

    def collect(self, lines: Iterator[Line]) -> MessagePage:
        """The page."""
        skipped, skipped_since, found = 0, 0, self._found
        for line in lines:
            record = line.record
            if record is None:
                skipped_since += 1
                continue
            message = record.message
            if message is None:
                self._note(line, record)
                message = record.hidden if self._with_hidden else None
                if message is None:
                    continue
            if message is record.hidden or self._wanted(record):
                fits = len(message) <= self._max_bytes
                size = self._size + (len(message) if fits else self._max_bytes)
                if len(found) == self._limit or (found and size > self._max_bytes):
                    return self._page(skipped, has_more=True)
                if fits:
                    self._size = size
                elif self._shorten is not None:
                    short, is_hidden = self._shorten(message), record.message is None
                    record = replace(record, raw=b"", decoded=None, **{"hidden" if is_hidden else "message": short})
                    line = Line(line.offset, line.end, record)
                found.append((line, self._seq))
                skipped, skipped_since = skipped + skipped_since, 0
            self._seq -= record.message is not None
        return self._page(skipped + skipped_since, has_more=False)

    def _note(self, line: Line, record: Record) -> None:
        if record.marker is not None and len(self._markers) < MAX_MARKERS:
            self._markers.append((line, self._seq))
        if self._noted is not None and self._noted(record):
            self._notes.append((line, self._seq))

    def _page(self, skipped: int, *, has_more: bool) -> MessagePage:
        start = start_seq = 0
        if has_more:
            oldest, oldest_seq = self._found[-1]
            start = oldest.offset
            start_seq = oldest_seq - (oldest.record is not None and oldest.record.message is not None)
        # What was noted before the oldest message of this page belongs to the next page.
        return MessagePage(
            self._found[::-1],
            start,
            start_seq,
            has_more=has_more,
            skipped=skipped,
            bytes=self._size,
            noted=[note for note in reversed(self._notes) if note[0].offset >= start],
            markers=[marker for marker in reversed(self._markers) if marker[0].offset >= start],
        )
