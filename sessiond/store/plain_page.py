"""Pages of history read by the block, without a record for each line, in half of the time.

For a clean transcript that has one message in a line, as this program and pi write them. Synchronous. Does not know
sessions or callers.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

import msgspec

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.record import LineEnvelope, MessageHead, marker_record, message_heads, shown_stamps
from sessiond.store import transcript
from sessiond.store.listing import MAX_MARKERS
from sessiond.store.shown_page import MessageColumns, PageRequest, ShownMarker, ShownPage
from sessiond.store.transcript import CHECKED, Line, Pread

# 200 messages of ordinary size.
_BLOCK = 128 * 1024
# The first block has room for as many ordinary messages as are asked for: decoding more takes as long as reading them.
_LEAST_BLOCK, _MESSAGE_BYTES = 16 * 1024, 640
# The beginning of a line is joined to its rest with a copy for each block. A line over more blocks than this is read by
# the other reader, which collects the pieces and joins them once.
_MAX_CARRIED = 4
# What is read at once, on the event loop, at most.
AT_ONCE_BYTES = 256 * 1024
# With so many lines a page takes one or two milliseconds, with odd times up to three; 256 KiB may have 90,000.
_AT_ONCE_LINES = 256
# What follows the first block is short, so that it is not for a few messages that all of its lines are opened.
_AT_ONCE_LATER = 32 * 1024


class NotPlain(Exception):
    """Something in the file has to be read line by line, or takes longer than what is read at once."""


def read_plain_page(
    pread: Pread,
    asked: PageRequest,
    record_limit: int,
    dialect: TranscriptDialect,
    *,
    size: int | None = None,
    at_once: bool = False,
) -> ShownPage:
    """The page of a file without bad lines. `size` is how much is read at once, for tests. NotPlain.

    With `at_once` it takes a few milliseconds at most, or raises NotPlain; for what is `asked.is_short`.
    """
    others = _OtherRecords(asked.noted, record_limit, dialect, pread)
    found = _FoundMessages(asked, others, pread, at_once)
    first = max(_LEAST_BLOCK, min(_BLOCK, asked.limit * _MESSAGE_BYTES))
    sizes = (size or first, size or (_AT_ONCE_LATER if at_once else _BLOCK))
    most_lines = _AT_ONCE_LINES if at_once else None
    for position, data, envelopes in _blocks_backwards(pread, asked.end, dialect, sizes, most_lines):
        if asked.noted is not None and len(data) > record_limit:
            raise NotPlain  # the limit was lowered, and some line may be over it
        if found.add_block(position, data, envelopes):
            return others.page(found.columns, found.start, transcript.checksum_by(pread, found.start))
    return others.page(found.columns)


class _FoundMessages:
    """The messages of a page, newest first, and where the oldest of them begins (`start`)."""

    def __init__(self, asked: PageRequest, others: _OtherRecords, pread: Pread, at_once: bool) -> None:
        self._asked, self._others, self._pread, self._at_once = asked, others, pread, at_once
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
        heads = message_heads(envelopes)
        if heads is None:
            raise NotPlain
        for envelope, head in zip(reversed(envelopes), reversed(heads), strict=True):
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
                elif self._at_once:
                    raise NotPlain
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
        columns.checks.extend([_checksum(self._pread, data, position, end) for end in ends])
        self._seq, self._bytes = seq, taken
        return is_full


class _OtherRecords:
    """What is shown besides messages, newest first, and the page that is made of both. `data` is the block that is
    being read, at `position` of the file.
    """

    def __init__(self, noted: str | None, record_limit: int, dialect: TranscriptDialect, pread: Pread) -> None:
        self._noted, self._limit, self._dialect, self._pread = noted, record_limit, dialect, pread
        self._notes: list[tuple[Line, int]] = []
        self._markers: list[ShownMarker] = []
        self.position, self.data = 0, b""

    def keep(self, envelope: LineEnvelope, begin: int, end: int, seq: int) -> None:
        """Keep a line that is no message if it is shown. `seq` messages stand before it."""
        text, offset, behind = self.data[begin : end - 1], self.position + begin, self.position + end
        if envelope.type == "custom":
            if self._noted is not None and envelope.custom_type == self._noted:
                line = transcript.line_of(offset, text, behind, self._limit, self._dialect)
                if line is None or line.record is None:
                    raise NotPlain
                self._notes.append((line, seq))
        elif (marker := marker_record(envelope, text)) is not None and len(self._markers) < MAX_MARKERS:
            check = _checksum(self._pread, self.data, self.position, end)
            self._markers.append(ShownMarker(Line(offset, behind, marker), seq, check))

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
            markers=[marker for marker in reversed(self._markers) if marker.line.offset >= start],
        )


def _checksum(pread: Pread, data: bytes, position: int, end: int) -> int:
    """`transcript.checksum` behind the first `end` bytes of `data`, which stands at `position` of the file."""
    return crc32(data[end - CHECKED : end]) if end >= CHECKED else transcript.checksum_by(pread, position + end)


def _blocks_backwards(
    pread: Pread, end: int, dialect: TranscriptDialect, sizes: tuple[int, int], most_lines: int | None
) -> Iterator[tuple[int, bytes, list[LineEnvelope]]]:
    """Blocks before `end`, newest first: where each begins, its bytes, and its whole lines opened, one each.

    A block may begin with the end of a line that the next one has whole. The first has the first of the `sizes`, all
    others the second. Raises NotPlain, also where there are more lines than `most_lines`.
    """
    (size, later_size), lines = sizes, 0
    position, carried = end, b""
    while position > 0:
        size = min(size, position)
        position -= size
        data = pread(size, position)
        if len(data) < size:
            raise NotPlain  # the file was truncated meanwhile, which the feed notices
        data += carried
        begin = (data.find(b"\n") + 1 or len(data)) if position else 0
        carried = data[:begin]
        if len(carried) > _MAX_CARRIED * size or not data.endswith(b"\n"):
            raise NotPlain
        count = data.count(b"\n", begin)
        lines += count
        if most_lines is not None and lines > most_lines:
            raise NotPlain
        envelopes = dialect.decode_block(memoryview(data)[begin:])
        # A line is blank, or the file has changed, or the dialect opens no blocks.
        if len(envelopes) != count:
            raise NotPlain
        yield position, data, envelopes
        size = later_size
