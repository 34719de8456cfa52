"""Cut the conversation in a transcript into blocks of text for the index.

Synchronous. Knows lines and messages. Does not know sessions or SQLite.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from sessiond.model.case import fold_case
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.foreign_fold import is_later_part, open_after
from sessiond.model.message import text_of
from sessiond.model.message_list import messages_in
from sessiond.model.record import TOOL_ROLES, BadLine, Record
from sessiond.model.source_facts import OpenMessage
from sessiond.store.joining import find_open_message
from sessiond.store.tail import Tail
from sessiond.trigrams.marks import MarkWriter, NumberedLine

# With 64 KiB the index has 0.15 of the size of the text, and of that a rare word leaves a hundredth to be read; with
# 16 KiB it has 0.21 to 0.23 and leaves a thousandth.
BLOCK_CHARS = 20 * 1024
# Where most lines are no conversation, a block is not longer in the file: it is read whole where it may have a match.
BLOCK_BYTES = 256 * 1024
# Parsing so much takes about a millisecond; then others have their turn.
_CHUNK_BYTES = 32 * 1024
_CHUNK_LINES = 16
_PIECE_CHARS = 256 * 1024


class FileShorter(Exception):
    """The file has not as many bytes as it had."""


class TextBlock(msgspec.Struct, frozen=True, gc=False):
    """The text, from `fold_case`, of the messages in the lines from `begin` to `end`.

    `oldest_ms` and `newest_ms` are the least and the greatest time of these messages, None where one has none.
    `messages_before` is how many messages stand before `begin`, None where the lines change a list of messages. `marks`
    are lines of which that is known, too.
    """

    begin: int
    end: int
    text: str
    oldest_ms: int | None
    newest_ms: int | None
    messages_before: int | None
    marks: str


class BlockCutter:
    """Reads a transcript from `begin` to `stop`, both the beginnings of lines. `messages` stand before `begin`.

    When it has given a block, all text before `place` is in blocks, and `messages` is how many messages stand before
    that.
    """

    def __init__(
        self,
        fd: int,
        dialect: TranscriptDialect,
        record_limit: int,
        *,
        begin: int,
        stop: int,
        messages: int,
        block_chars: int = BLOCK_CHARS,
    ) -> None:
        self._fd, self._dialect, self._stop, self._block_chars = fd, dialect, stop, block_chars
        self._tail = Tail(begin, record_limit)
        self._count = _MessageCount(fd, dialect, record_limit, begin, messages)
        self.place, self.messages = begin, messages
        self._texts: list[str] = []
        self._chars = self._end = 0
        self._begin = NumberedLine(begin, messages)
        self._times: list[int | None] = []
        self._marks = MarkWriter(self._begin)

    def steps(self) -> Iterator[TextBlock | None]:
        """The blocks; None wherever others may have their turn. Raises FileShorter and OSError."""
        tail = self._tail
        while tail.offset < self._stop:
            chunk = os.pread(self._fd, min(_CHUNK_BYTES, self._stop - tail.offset), tail.offset)
            if not chunk:
                raise FileShorter
            for read, (begin, line) in enumerate(tail.feed(chunk)):
                if line:
                    yield from self._add_line(begin, tail.whole, line)
                if not self._texts:
                    self.place, self.messages = tail.whole, self._count.messages
                if read % _CHUNK_LINES == _CHUNK_LINES - 1:
                    yield None
            yield None
        block = self._close_block() if self._texts else None
        self.place, self.messages = self._stop, self._count.messages
        yield block

    def _add_line(self, begin: int, end: int, line: bytes) -> Iterator[TextBlock | None]:
        try:
            record = self._dialect.parse(line)
        except BadLine:
            return
        shown = [one for one in messages_in(record) if one.message is not None]
        text = "\n".join(text_of(one.message or b"", "\n") for one in shown)
        if text:
            is_long = self._chars + len(text) > self._block_chars or end - self._begin.offset > BLOCK_BYTES
            if self._texts and is_long:
                block = self._close_block()
                self.place, self.messages = begin, self._count.messages
                yield block
            if not self._texts:
                self._begin = NumberedLine(begin, self._count.messages)
                self._marks = MarkWriter(self._begin)
            for at in range(0, len(text), _PIECE_CHARS):
                self._texts.append(fold_case(text[at : at + _PIECE_CHARS]))
                if len(text) > _PIECE_CHARS:
                    yield None
            self._texts.append("\n")
            self._chars += len(text)
            self._end = end
            self._times += [one.timestamp_ms for one in shown]
        before, number = self._count.messages, self._count.add(record, begin)
        if text:
            self._marks.add(NumberedLine(begin, before, number))

    def _close_block(self) -> TextBlock:
        times = [time for time in self._times if time is not None]
        is_known, is_counted = len(times) == len(self._times), not self._dialect.lists
        block = TextBlock(
            begin=self._begin.offset,
            end=self._end,
            text="".join(self._texts),
            oldest_ms=min(times) if is_known else None,
            newest_ms=max(times) if is_known else None,
            messages_before=self._begin.messages_before if is_counted else None,
            marks=self._marks.text if is_counted else "",
        )
        self._texts.clear()
        self._times.clear()
        self._chars = 0
        return block


class _MessageCount:
    """Counts the messages as the numbers of a session do: lines that are joined count once."""

    def __init__(self, fd: int, dialect: TranscriptDialect, record_limit: int, begin: int, messages: int) -> None:
        self._fd, self._dialect, self._limit = fd, dialect, record_limit
        self._begin = begin
        self._opened: OpenMessage | None = None
        self._is_known = not begin
        self.messages = messages

    def add(self, record: Record, offset: int) -> int:
        """Count the message in a line; its number, 0 where there is none."""
        if record.message is None:
            return 0
        if not self._dialect.joins or record.role in TOOL_ROLES:
            self.messages += 1
            return self.messages
        if not self._is_known:
            self._is_known = True
            if record.message_id is not None:
                self._opened = find_open_message(self._fd, self._begin, self.messages, self._limit, self._dialect)
        before = self._opened
        self._opened = open_after(before, record, offset, self.messages)
        if before is not None and is_later_part(before, record, offset):
            return before.seq
        self.messages += 1
        return self.messages
