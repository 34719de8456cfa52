"""Read one transcript for `doctor`: fold every line, and compare the entry with the one in the index.

Reads only. Knows lines, records and entries. Does not know how `doctor` reports or repairs them.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import msgspec
from msgspec.structs import asdict

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.fold import fold_bad_line
from sessiond.model.lax import whole_ms
from sessiond.store import dirfd, folding, layout, transcript
from sessiond.store.inventory import StoredName

_LINES_A_STEP = 64


class TranscriptReading(msgspec.Struct):
    """The content of a transcript. `bad` are lines that are no records, `odd` the daemon's records without any effect.

    `earlier` counts messages up to a given time, and those without a timestamp. `timeless`: some record has no
    timestamp, so that its time is that of the file when it was folded, which is not known any more.
    """

    entry: Entry
    bad: list[str] = []
    odd: list[str] = []
    records: int = 0
    end: int = 0
    half: int = 0
    earlier: int = 0
    timeless: bool = False

    def differences(self, known: Entry) -> list[str]:
        """The fields in which an up-to-date entry differs from the fold of the file."""
        passed_over = {"file", *(("updated_at", "created_at", "disorder_ms") if self.timeless else ())}
        fresh, listed = asdict(self.entry), asdict(known)
        return [name for name in fresh if name not in passed_over and fresh[name] != listed[name]]


def open_stored(root_fd: int, thing: StoredName) -> int:
    """A descriptor of a file in the store, for reading. Raises OSError."""
    with dirfd.closing(dirfd.open_path_dir(root_fd, thing.parts)) as fd:
        return dirfd.open_file(fd, thing.name, os.O_RDONLY)


def read_transcript(
    root_fd: int, thing: StoredName, record_limit: int, *, moment_ms: int = 0
) -> Generator[None, None, TranscriptReading]:
    """Read a whole transcript. Yields wherever the work may be interrupted. Raises OSError.

    Messages up to `moment_ms` (milliseconds since 1970) are counted as `earlier`.
    """
    reading = TranscriptReading(Entry(session_id=thing.name[: -len(layout.SUFFIX)]))
    mtime_ms = whole_ms(thing.status.st_mtime_ns // 1_000_000) or 0
    with dirfd.closing(open_stored(root_fd, thing)) as fd:
        number, counted_to = 1, 0
        lines = transcript.read_lines(fd, 0, record_limit, dialect=thing.dialect, stop=thing.status.st_size)
        for done, line in enumerate(lines):
            # Blank lines are skipped by the reader but count for the line number.
            number += _newlines(fd, counted_to, line.offset)
            counted_to = line.offset
            place = folding.describe_place(number, line.offset)
            _add_line(reading, line, place, mtime_ms, thing.dialect)
            reading.earlier += _is_earlier(line, moment_ms)
            if done % _LINES_A_STEP == 0:
                yield
        half = thing.status.st_size - reading.end
        blank = half <= record_limit and not os.pread(fd, half, reading.end).strip()
    reading.half = 0 if blank else half
    return reading


def _add_line(
    reading: TranscriptReading, line: transcript.Line, place: str, mtime_ms: int, dialect: TranscriptDialect
) -> None:
    reading.end = line.end
    record = line.record
    if record is None:
        reading.bad.append(f"{place} ({line.bad})")
        reading.entry = fold_bad_line(reading.entry)
        return
    reading.records += 1
    reading.timeless |= record.timestamp_ms is None and (record.is_message or record.type == "session")
    before = reading.entry
    reading.entry = dialect.fold(before, record, line.offset, mtime_ms)
    if (
        reading.entry is before
        and record.custom_type is not None
        and (why := dialect.ineffective_reason(before, record)) is not None
    ):
        reading.odd.append(f"{place} ({why})")


def _is_earlier(line: transcript.Line, moment_ms: int) -> bool:
    record = line.record
    return record is not None and record.is_message and (record.timestamp_ms or 0) <= moment_ms


def _newlines(fd: int, begin: int, end: int) -> int:
    count = 0
    while begin < end and (chunk := os.pread(fd, min(transcript.BLOCK, end - begin), begin)):
        count += chunk.count(b"\n")
        begin += len(chunk)
    return count
