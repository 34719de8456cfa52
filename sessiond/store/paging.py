"""The newest messages before a place in a transcript: pages of history.

Synchronous. Knows lines, messages and the shape of a page. Does not know sessions, callers or cursors as text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import msgspec

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.record import Record
from sessiond.store import transcript
from sessiond.store.joining import read_joined_backwards
from sessiond.store.listing import MessageListing
from sessiond.store.transcript import Line

# 200 messages of ordinary size.
BLOCK = 128 * 1024
# The beginning of a line is joined to its rest with a copy for each block. A line over more blocks than this is read by
# the other reader, which collects the pieces and joins them once.
_MAX_CARRIED = 4


class MessagePage(msgspec.Struct, frozen=True):
    """Messages read backwards, each with its `seq`, oldest first.

    `start` is where the next older page ends, with `start_seq` messages before it. `skipped` counts the bad lines of
    this page's stretch; `bytes` the messages that fit. `noted` are other records that were asked for, oldest first,
    each with the number of messages before it. `checks` are the checksums behind the lines, where they were
    asked for.
    """

    lines: list[tuple[Line, int]]
    start: int
    start_seq: int
    has_more: bool
    skipped: int
    bytes: int
    noted: list[tuple[Line, int]] = []
    checks: list[int] = []


class _TooLong(Exception):
    """A line over more than _MAX_CARRIED blocks."""


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
    clean: bool = False,
    stop: int = 0,
    block: int = BLOCK,
) -> MessagePage:
    """The newest `limit` messages before `end` that are `wanted`, at most `max_bytes` of them but always one.

    `end_seq` is how many messages stand before `end`. The limit counts what is returned, after the filter. A message
    over `max_bytes` takes none of them: the reader puts something small in its place. `clean` says that the fold found
    no bad line before `end`: then lines are decoded by the block, which takes half the time. Parts up to `stop` of a
    message that begins before `end` belong to it.
    """
    if dialect.lists:
        listing = MessageListing(fd, max(end, stop), record_limit, dialect)
        # Since the cursor was given out the list may have been cut.
        end_seq = min(end_seq, len(listing.messages))
        lines = listing.read_backwards(end_seq)
        return _collect_page(lines, end_seq, wanted=wanted, limit=limit, max_bytes=max_bytes, noted=noted)
    if dialect.joins:
        lines = read_joined_backwards(fd, end, record_limit, dialect=dialect, stop=max(end, stop))
        return _collect_page(lines, end_seq, wanted=wanted, limit=limit, max_bytes=max_bytes, noted=noted)
    if clean and noted is None:
        try:
            lines = _read_clean_backwards(fd, end, record_limit, block, dialect)
            return _collect_page(lines, end_seq, wanted=wanted, limit=limit, max_bytes=max_bytes)
        except _TooLong:
            pass
    lines = transcript.read_backwards(fd, end, record_limit, block=block, dialect=dialect)
    return _collect_page(lines, end_seq, wanted=wanted, limit=limit, max_bytes=max_bytes, noted=noted)


def _collect_page(
    lines: Iterator[Line],
    end_seq: int,
    *,
    wanted: Callable[[Record], bool],
    limit: int,
    max_bytes: int,
    noted: Callable[[Record], bool] | None = None,
) -> MessagePage:
    found: list[tuple[Line, int]] = []
    notes: list[tuple[Line, int]] = []
    seq, size, skipped, skipped_since = end_seq, 0, 0, 0
    for line in lines:
        record = line.record
        if record is None:
            skipped_since += 1
            continue
        message = record.message
        if message is None:
            if noted is not None and noted(record):
                notes.append((line, seq))
            continue
        if wanted(record):
            message_bytes = len(message)
            fits = message_bytes <= max_bytes
            if len(found) == limit or (found and size + (message_bytes if fits else max_bytes) > max_bytes):
                # What was skipped or noted before the oldest message of this page belongs to the next page.
                oldest, oldest_seq = found[-1]
                found.reverse()
                notes = [note for note in reversed(notes) if note[0].offset > oldest.offset]
                start_seq = oldest_seq - 1
                return MessagePage(
                    found, oldest.offset, start_seq, has_more=True, skipped=skipped, bytes=size, noted=notes
                )
            if fits:
                size += message_bytes
            found.append((line, seq))
            skipped, skipped_since = skipped + skipped_since, 0
        seq -= 1
    found.reverse()
    notes.reverse()
    skipped += skipped_since
    return MessagePage(found, start=0, start_seq=0, has_more=False, skipped=skipped, bytes=size, noted=notes)


def _read_clean_backwards(
    fd: int, end: int, record_limit: int, block_size: int, dialect: TranscriptDialect
) -> Iterator[Line]:
    """The messages before `end`, newest first, of a file without bad lines. _TooLong where one spans many blocks."""
    position, carried = end, b""
    while position > 0:
        size = min(block_size, position)
        position -= size
        read = os.pread(fd, size, position)
        if len(read) < size:
            return  # the file was truncated meanwhile, which the feed notices
        block = read + carried
        # The first line of a block may have its beginning in the one before.
        start = (block.find(b"\n") + 1 or len(block)) if position else 0
        carried = block[:start]
        if len(carried) > _MAX_CARRIED * block_size:
            raise _TooLong
        body = block[start:]
        texts = body.split(b"\n")
        texts.pop()
        opened = dialect.decode_block(body)
        if len(opened) != len(texts):
            opened.clear()  # a line is blank, or the file has changed: parse each line on its own
        line_end = position + len(block)
        while texts:
            text = texts.pop()
            begin = line_end - len(text) - 1
            if opened:
                record = dialect.message_record(opened.pop(), text)
                if record is not None:
                    yield Line(begin, line_end, record)
            else:
                line = transcript.line_of(begin, text, line_end, record_limit, dialect)
                if line is not None:
                    yield line
            line_end = begin
