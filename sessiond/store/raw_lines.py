"""The lines of a transcript as they stand in the file, newest first, each with its number.

Synchronous. Knows lines and bytes. Knows no dialect: whatever is a JSON object counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import msgspec

from sessiond.model import lax
from sessiond.model.decoding_cost import find_excess
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.dialects.generic import foreign_dialect
from sessiond.model.lax import decode_any
from sessiond.model.record import BadLine, Record
from sessiond.store import transcript


class RawLine(msgspec.Struct, frozen=True, gc=False):
    """One line: its number from 1, where it ends, its JSON object, and the id and the time of its record."""

    number: int
    end: int
    data: bytes
    id: str | None = None
    stamp: str | None = None


class RawPage(msgspec.Struct, frozen=True):
    """Lines, oldest first. `start` is where the next older page ends, with `start_number` lines before it.

    `skipped` counts the lines that are no JSON object. `bytes` counts the lines that fit.
    """

    lines: list[RawLine]
    start: int
    start_number: int
    has_more: bool
    skipped: int
    bytes: int


def parse_any(line: bytes) -> Record:
    """The record of any JSON object, with lone surrogates replaced so that every decoder accepts it. Raises BadLine."""
    if (excess := find_excess(line)) is not None:
        raise BadLine(excess.reason)
    for text in (line, lax.mend_surrogates(line)):
        try:
            if type(decode_any(text)) is dict:
                return Record("", text)
            break
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
    raise BadLine("not an object")


ANY_LINES: TranscriptDialect = foreign_dialect("any", parse_any)


def raw_page_backwards(
    fd: int,
    end: int,
    end_number: int | None,
    *,
    limit: int,
    max_bytes: int,
    record_limit: int,
    shorten: Callable[[bytes], bytes] = bytes,
    describe: Callable[[bytes], tuple[str | None, str | None]] = lambda _: (None, None),
) -> RawPage:
    """The newest `limit` lines before `end`, at most `max_bytes` of them but always one.

    A line over `max_bytes` takes none: `shorten` puts something small in its place. `describe` gives id and time.
    `end_number` lines end before `end`; None: they are counted.
    """
    found: list[RawLine] = []
    place, number = end, count_lines(fd, 0, end) if end_number is None else end_number
    start, start_number = place, number
    size, skipped, skipped_since = 0, 0, 0
    for line in transcript.read_backwards(fd, end, record_limit, dialect=ANY_LINES):
        # There may be blank lines between two others.
        number -= count_lines(fd, line.end, place)
        if line.record is None:
            skipped_since += 1
        else:
            data = line.record.raw
            fits = len(data) <= max_bytes
            taken = size + (len(data) if fits else max_bytes)
            if len(found) == limit or (found and taken > max_bytes):
                return RawPage(found[::-1], start, start_number, has_more=True, skipped=skipped, bytes=size)
            size = taken if fits else size
            found.append(RawLine(number, line.end, data if fits else shorten(data), *describe(data)))
            start, start_number = line.offset, number - 1
            skipped, skipped_since = skipped + skipped_since, 0
        place, number = line.offset, number - 1
    return RawPage(found[::-1], 0, 0, has_more=False, skipped=skipped + skipped_since, bytes=size)


def count_lines(fd: int, begin: int, end: int) -> int:
    """How many lines end between two offsets."""
    return sum(block.count(b"\n") for block in _blocks(fd, begin, end))


def _blocks(fd: int, begin: int, end: int) -> Iterator[bytes]:
    while begin < end and (block := os.pread(fd, min(transcript.BLOCK, end - begin), begin)):
        yield block
        begin += len(block)
