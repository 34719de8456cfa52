"""Read a page of history: by the block where the transcript allows it, else line by line.

Synchronous. Does not know sessions or callers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import msgspec

from sessiond.clock import iso_ms
from sessiond.model.dialects import TranscriptDialect
from sessiond.store import transcript
from sessiond.store.cached_reads import CachedReads, NotCached
from sessiond.store.cursor import stale_cursor_error
from sessiond.store.paging import page_backwards
from sessiond.store.plain_page import AT_ONCE_BYTES, NotPlain, read_plain_page
from sessiond.store.shown_page import MessageColumns, PageRequest, ShownMarker, ShownPage
from sessiond.store.transcript import Line


def read_shown_page(
    fd: int,
    asked: PageRequest,
    *,
    record_limit: int,
    dialect: TranscriptDialect,
    clean: bool,
    stop: int = 0,
    has_whole_lines: bool = True,
    block: int | None = None,
) -> ShownPage:
    """The page. InvalidParams (`cursor_stale`) where `end` is no end of a line.

    `clean` says that the fold found no bad line before `end`, `has_whole_lines` that a record has the bytes of one
    line. `block` is how much is read at once, for tests.
    """
    if clean and _can_be_plain(asked, dialect):
        try:
            return read_plain_page(partial(os.pread, fd), asked, record_limit, dialect, size=block)
        except NotPlain:
            pass
    # The cursor may be from before a rewrite of the file, and point into a line.
    if not transcript.is_line_start(fd, asked.end):
        raise stale_cursor_error("$.cursor")
    page = page_backwards(
        fd,
        asked.end,
        asked.end_seq,
        wanted=lambda record: record.role not in asked.without,
        limit=asked.limit,
        max_bytes=asked.max_bytes,
        record_limit=record_limit,
        dialect=dialect,
        noted=(lambda record: record.custom_type == asked.noted) if asked.noted is not None else None,
        with_hidden=asked.with_hidden,
        stop=stop,
        shorten=asked.shorten,
    )

    def check_behind(line: Line) -> int:
        return transcript.checksum_behind(fd, line) if has_whole_lines else transcript.checksum(fd, line.end)

    return ShownPage(
        _columns_of(page.lines, check_behind),
        page.start,
        page.start_seq,
        transcript.checksum(fd, page.start),
        has_more=page.has_more,
        skipped=page.skipped,
        noted=page.noted,
        markers=[ShownMarker(line, seq, check_behind(line)) for line, seq in page.markers],
    )


def read_cached_page(fd: int, asked: PageRequest, *, record_limit: int, dialect: TranscriptDialect) -> ShownPage | None:
    """The same page of a clean file where that neither waits for the disk nor takes long; else None."""
    if not _can_be_plain(asked, dialect):
        return None
    pread = CachedReads(fd, AT_ONCE_BYTES).pread
    try:
        return read_plain_page(pread, asked, record_limit, dialect, at_once=True)
    except (NotPlain, NotCached):
        return None


def _can_be_plain(asked: PageRequest, dialect: TranscriptDialect) -> bool:
    return not (asked.with_hidden or dialect.joins or dialect.lists)


def _columns_of(lines: list[tuple[Line, int]], check_behind: Callable[[Line], int]) -> MessageColumns:
    columns = MessageColumns()
    for line, seq in lines:
        record = line.record
        assert record is not None
        data = record.message if record.message is not None else record.hidden or b"{}"
        columns.data.append(msgspec.Raw(data))
        columns.seqs.append(seq)
        columns.ids.append(record.shown_id)
        columns.stamps.append(iso_ms(record.timestamp_ms) if record.timestamp_ms is not None else None)
        columns.ends.append(line.end)
        columns.checks.append(check_behind(line))
    return columns
