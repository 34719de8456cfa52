"""Pages of history: of each message what is shown of it, and where it ends.

Messages of a clean transcript are read by the block, without a record for each line, in half of the time; whatever
that cannot read, `paging` does. Synchronous. Does not know sessions or callers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from zlib import crc32

import msgspec

from sessiond.clock import iso_ms
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.record import LineEnvelope, MessageHead, marker_record, message_heads, shown_stamps
from sessiond.store import transcript
from sessiond.store.cached_reads import CachedReads, NotCached
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
# What is read on the event loop at most. So many records of runs take 2 ms; these bytes may have 90,000 lines.
_AT_ONCE_BYTES, _AT_ONCE_LINES = 256 * 1024, 500

# So many bytes, from an offset on.
Pread = Callable[[int, int], bytes]


class MessageColumns(msgspec.Struct, frozen=True):
    """Messages, a list for each of their fields: their number in the session, the id and the time under which they are
    shown, the end of their line, and `transcript.checksum` there.
    """

    data: list[msgspec.Raw] = []
    seqs: list[int] = []
    ids: list[str | None] = []
    stamps: list[str | None] = []
    ends: list[int] = []
    checks: list[int] = []

    def reverse(self) -> None:
        for column in (self.data, self.seqs, self.ids, self.stamps, self.ends, self.checks):
            column.reverse()


class ShownPage(msgspec.Struct, frozen=True):
    """Messages, oldest first. The others are as in `paging.MessagePage`; `start_check` is the checksum at `start`."""

    messages: MessageColumns
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
    if clean and _can_be_plain(asked, dialect):
        try:
            return _read_clean(partial(os.pread, fd), asked, record_limit, dialect, size=block)
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
        _columns_of(fd, page.lines, has_whole_lines),
        page.start,
        page.start_seq,
        transcript.checksum(fd, page.start),
        has_more=page.has_more,
        skipped=page.skipped,
        noted=page.noted,
        markers=page.markers,
    )


def read_cached_page(fd: int, asked: PageRequest, *, record_limit: int, dialect: TranscriptDialect) -> ShownPage | None:
    """The same page of a clean file where that neither waits for the disk nor takes long; else None."""
    if not _can_be_plain(asked, dialect):
        return None
    pread = CachedReads(fd, _AT_ONCE_BYTES).pread
    asked = msgspec.structs.replace(asked, shorten=_leave_to_a_thread)
    try:
        return _read_clean(pread, asked, record_limit, dialect, most_lines=_AT_ONCE_LINES)
    except (_NotPlain, NotCached):
        return None


def _leave_to_a_thread(_message: bytes) -> bytes:
    raise _NotPlain  # decoding 256 KiB of small values takes some milliseconds


def _can_be_plain(asked: PageRequest, dialect: TranscriptDialect) -> bool:
    return not (asked.with_hidden or dialect.joins or dialect.lists)


def _columns_of(fd: int, lines: list[tuple[Line, int]], has_whole_lines: bool) -> MessageColumns:
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
        check = transcript.checksum_behind(fd, line) if has_whole_lines else transcript.checksum(fd, line.end)
        columns.checks.append(check)
    return columns


def _read_clean(
    pread: Pread,
    asked: PageRequest,
    record_limit: int,
    dialect: TranscriptDialect,
    *,
    size: int | None = None,
    most_lines: int | None = None,
) -> ShownPage:
    others = _OtherRecords(asked.noted, record_limit, dialect)
    found = _FoundMessages(asked, others, pread)
    first = max(_LEAST_BLOCK, min(_BLOCK, asked.limit * _MESSAGE_BYTES))
    sizes = (size or first, size or _BLOCK)
    for position, data, envelopes in _blocks_backwards(pread, asked.end, dialect, sizes, most_lines):
        if asked.noted is not None and len(data) > record_limit:
            raise _NotPlain  # the limit was lowered, and some line may be over it
        if found.add_block(position, data, envelopes):
            return others.page(found.columns, found.start, _checksum(pread, found.start))
    return others.page(found.columns)


class _FoundMessages:
    """The messages of a page, newest first, and where the oldest of them begins (`start`)."""

    def __init__(self, asked: PageRequest, others: _OtherRecords, pread: Pread) -> None:
        self._asked, self._others, self._pread = asked, others, pread
        self._seq, self._bytes = asked.end_seq, 0
        self.columns, self.start = MessageColumns(), 0

    def add_block(self, position: int, data: bytes, envelopes: list[LineEnvelope]) -> bool:
        """Add what is shown of the lines of a block; True where one message more than the page takes was found."""
        self._others.position, self._others.data = position, data
        columns, max_bytes, without = self.columns, self._asked.max_bytes, self._asked.without
        seq, taken, begin, is_full = self._seq, self._bytes, len(data), False
        messages: list[msgspec.Raw] = []
        # What needs no loop is done for all of them together, in a third of the time.
        shown: list[tuple[LineEnvelope, MessageHead]] = []
        ends: list[int] = []
        room = self._asked.limit - len(columns.seqs)
        for envelope, head in zip(reversed(envelopes), reversed(message_heads(envelopes)), strict=True):
            end, begin = begin, data.rfind(b"\n", 0, begin - 1) + 1
            if head is None:
                self._others.keep(envelope, begin, end, seq)
                continue
            role = head.role
            if type(role) is not str or role not in without:
                message = envelope.message
                size = len(message)
                is_full = len(shown) == room or taken + min(size, max_bytes) > max_bytes
                if is_full:
                    break
                if size <= max_bytes:
                    taken += size
                else:
                    message = msgspec.Raw(self._asked.shorten(bytes(message)))
                messages.append(message)
                columns.seqs.append(seq)
                shown.append((envelope, head))
                ends.append(end)
                self.start = position + begin
            seq -= 1
        # A message is a slice of its block, which is not kept for the sake of few of its bytes.
        is_kept = 2 * (taken - self._bytes) >= len(data)
        columns.data.extend(messages if is_kept else [msgspec.Raw(bytes(one)) for one in messages])
        columns.ids.extend([envelope.id if type(envelope.id) is str else None for envelope, _ in shown])
        columns.stamps.extend(shown_stamps(shown))
        columns.ends.extend([position + end for end in ends])
        columns.checks.extend(
            [
                crc32(data[end - CHECKED : end]) if end >= CHECKED else _checksum(self._pread, position + end)
                for end in ends
            ]
        )
        self._seq, self._bytes = seq, taken
        return is_full


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

    def page(self, found: MessageColumns, start: int = 0, check: int = 0) -> ShownPage:
        """The page of what was found, newest first. It begins at `start`, with what stands behind that; without one it
        begins the file.
        """
        found.reverse()
        return ShownPage(
            found,
            start,
            found.seqs[0] - 1 if start else 0,
            check,
            has_more=start > 0,
            noted=[note for note in reversed(self._notes) if note[0].offset >= start],
            markers=[marker for marker in reversed(self._markers) if marker[0].offset >= start],
        )


def _checksum(pread: Pread, offset: int) -> int:
    begin = max(0, offset - CHECKED)
    return crc32(pread(offset - begin, begin))


def _blocks_backwards(
    pread: Pread, end: int, dialect: TranscriptDialect, sizes: tuple[int, int], most_lines: int | None
) -> Iterator[tuple[int, bytes, list[LineEnvelope]]]:
    """Blocks before `end`, newest first: where each begins, its bytes, and its whole lines opened, one each.

    A block may begin with the end of a line that the next one has whole. The first has the first of the `sizes`, all
    others the second. Raises _NotPlain, also where there are more lines than `most_lines`.
    """
    (size, later_size), lines = sizes, 0
    position, carried = end, b""
    while position > 0:
        size = min(size, position)
        position -= size
        data = pread(size, position)
        if len(data) < size:
            raise _NotPlain  # the file was truncated meanwhile, which the feed notices
        data += carried
        begin = (data.find(b"\n") + 1 or len(data)) if position else 0
        carried = data[:begin]
        if len(carried) > _MAX_CARRIED * size or not data.endswith(b"\n"):
            raise _NotPlain
        count = data.count(b"\n", begin)
        lines += count
        if most_lines is not None and lines > most_lines:
            raise _NotPlain
        envelopes = dialect.decode_block(memoryview(data)[begin:])
        # A line is blank, or the file has changed, or the dialect opens no blocks.
        if len(envelopes) != count:
            raise _NotPlain
        yield position, data, envelopes
        size = later_size
