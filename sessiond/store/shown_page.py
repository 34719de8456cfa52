"""Pages of history: of each message what is shown of it, and where it ends.

Messages of a clean transcript are read by the block, without a record for each line, in less than two thirds of the
time; whatever that cannot read, `paging` does. Synchronous. Does not know sessions or callers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from zlib import crc32

import msgspec
from msgspec.structs import replace

from sessiond.clock import iso_ms
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.record import LineEnvelope, marker_record, message_head, shown_stamp
from sessiond.store import transcript
from sessiond.store.cursor import stale_cursor_error
from sessiond.store.listing import MAX_MARKERS
from sessiond.store.paging import page_backwards
from sessiond.store.transcript import CHECKED, Line

# 200 messages of ordinary size.
_BLOCK = 128 * 1024
# The first block has room for as many ordinary messages as are asked for: decoding more takes as long as reading them.
_LEAST_BLOCK, _MESSAGE_BYTES = 16 * 1024, 640
# The beginning of a line is joined to its rest with a copy for each block. A line over more blocks than this is read by
# the other reader, which collects the pieces and joins them once.
_MAX_CARRIED = 4


class PageMessage(msgspec.Struct, frozen=True, gc=False):
    """A message with its number in the session, and the id and the time under which it is shown.

    `end` is the end of its line, `check` is `transcript.checksum` there.
    """

    seq: int
    data: msgspec.Raw
    id: str | None
    stamp: str | None
    end: int
    check: int


class ShownPage(msgspec.Struct, frozen=True):
    """Messages, oldest first. The others are as in `paging.MessagePage`; `start_check` is the checksum at `start`."""

    messages: list[PageMessage]
    start: int = 0
    start_seq: int = 0
    start_check: int = 0
    has_more: bool = False
    skipped: int = 0
    noted: list[tuple[Line, int]] = []
    markers: list[tuple[Line, int]] = []


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: the newest `limit` messages before `end`, before which stand `end_seq`; without those of some
    roles. With `noted` also custom records of that type. `shorten` makes what is shown of one over `max_bytes`. The
    others are as `paging.page_backwards` takes them.
    """

    end: int
    end_seq: int
    limit: int
    max_bytes: int
    shorten: Callable[[bytes], bytes] = bytes
    without: frozenset[str] = frozenset()
    noted: str | None = None
    with_hidden: bool = False


class _NotPlain(Exception):
    """Something in the file has to be read line by line."""


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
    if clean and not asked.with_hidden and not dialect.joins and not dialect.lists:
        try:
            return _read_clean(fd, asked, record_limit, dialect, block)
        except _NotPlain:
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
    return ShownPage(
        [_make_message(fd, line, seq, has_whole_lines) for line, seq in page.lines],
        page.start,
        page.start_seq,
        transcript.checksum(fd, page.start),
        has_more=page.has_more,
        skipped=page.skipped,
        noted=page.noted,
        markers=page.markers,
    )


def _make_message(fd: int, line: Line, seq: int, has_whole_lines: bool) -> PageMessage:
    record = line.record
    assert record is not None
    data = record.message if record.message is not None else record.hidden or b"{}"
    stamp = iso_ms(record.timestamp_ms) if record.timestamp_ms is not None else None
    check = transcript.checksum_behind(fd, line) if has_whole_lines else transcript.checksum(fd, line.end)
    return PageMessage(seq, msgspec.Raw(data), record.shown_id, stamp, line.end, check)


def _read_clean(
    fd: int, asked: PageRequest, record_limit: int, dialect: TranscriptDialect, size: int | None
) -> ShownPage:
    found: list[PageMessage] = []
    others = _OtherRecords(asked.noted, record_limit, dialect)
    limit, max_bytes, without, seq = asked.limit, asked.max_bytes, asked.without, asked.end_seq
    taken = start = 0
    first = max(_LEAST_BLOCK, min(_BLOCK, limit * _MESSAGE_BYTES))
    for position, data, envelopes in _blocks_backwards(fd, asked.end, dialect, size or first, size or _BLOCK):
        others.position, others.data = position, data
        begin = len(data)
        if asked.noted is not None and begin > record_limit:
            raise _NotPlain  # the limit was lowered, and some line may be over it
        count, taken_before = len(found), taken
        for envelope in reversed(envelopes):
            end, begin = begin, data.rfind(b"\n", 0, begin - 1) + 1
            head = message_head(envelope)
            if head is None:
                others.keep(envelope, begin, end, seq)
                continue
            role = head.role
            if type(role) is not str or role not in without:
                message, own_id = envelope.message, envelope.id
                fits = len(message) <= max_bytes
                size_now = taken + (len(message) if fits else max_bytes)
                if len(found) == limit or (found and size_now > max_bytes):
                    return others.page(found, start, transcript.checksum(fd, start))
                if fits:
                    taken = size_now
                else:
                    message = msgspec.Raw(asked.shorten(bytes(message)))
                start, behind = position + begin, position + end
                check = crc32(data[end - CHECKED : end]) if end >= CHECKED else transcript.checksum(fd, behind)
                shown_id, stamp = own_id if type(own_id) is str else None, shown_stamp(envelope, head)
                found.append(PageMessage(seq, message, shown_id, stamp, behind, check))
            seq -= 1
        # A message is a slice of its block, which is not kept for the sake of few of its bytes.
        if 2 * (taken - taken_before) < len(data):
            found[count:] = [replace(one, data=msgspec.Raw(bytes(one.data))) for one in found[count:]]
    return others.page(found)


class _OtherRecords:
    """What is shown besides messages, newest first, and the page that is made of both. `data` is the block that is
    being read, at `position` of the file.
    """

    def __init__(self, noted: str | None, record_limit: int, dialect: TranscriptDialect) -> None:
        self._noted, self._limit, self._dialect = noted, record_limit, dialect
        self._notes: list[tuple[Line, int]] = []
        self._markers: list[tuple[Line, int]] = []
        self.position, self.data = 0, b""

    def keep(self, envelope: LineEnvelope, begin: int, end: int, seq: int) -> None:
        """Keep a line that is no message if it is shown. `seq` messages stand before it."""
        text, offset, behind = self.data[begin : end - 1], self.position + begin, self.position + end
        if envelope.type == "custom":
            if self._noted is not None and envelope.custom_type == self._noted:
                line = transcript.line_of(offset, text, behind, self._limit, self._dialect)
                if line is None or line.record is None:
                    raise _NotPlain
                self._notes.append((line, seq))
        elif (marker := marker_record(envelope, text)) is not None and len(self._markers) < MAX_MARKERS:
            self._markers.append((Line(offset, behind, marker), seq))

    def page(self, found: list[PageMessage], start: int = 0, check: int = 0) -> ShownPage:
        """The page that begins at `start`, with what stands behind that; without one it begins the file."""
        return ShownPage(
            found[::-1],
            start,
            found[-1].seq - 1 if start else 0,
            check,
            has_more=start > 0,
            noted=[note for note in reversed(self._notes) if note[0].offset >= start],
            markers=[marker for marker in reversed(self._markers) if marker[0].offset >= start],
        )


def _blocks_backwards(
    fd: int, end: int, dialect: TranscriptDialect, size: int, later_size: int
) -> Iterator[tuple[int, bytes, list[LineEnvelope]]]:
    """Blocks before `end`, newest first: where each begins, its bytes, and its whole lines opened, one each.

    A block may begin with the end of a line that the next one has whole. Raises _NotPlain.
    """
    position, carried = end, b""
    while position > 0:
        size = min(size, position)
        position -= size
        data = os.pread(fd, size, position)
        if len(data) < size:
            raise _NotPlain  # the file was truncated meanwhile, which the feed notices
        data += carried
        begin = (data.find(b"\n") + 1 or len(data)) if position else 0
        carried = data[:begin]
        if len(carried) > _MAX_CARRIED * size or not data.endswith(b"\n"):
            raise _NotPlain
        envelopes = dialect.decode_block(memoryview(data)[begin:])
        # A line is blank, or the file has changed, or the dialect opens no blocks.
        if len(envelopes) != data.count(b"\n", begin):
            raise _NotPlain
        yield position, data, envelopes
        size = later_size
