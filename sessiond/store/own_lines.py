"""Find the lines of appends in a file by their ids. Knows lines and that each has an id."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from sessiond.model import record as records
from sessiond.model.record import BadLine
from sessiond.store import transcript
from sessiond.store.append import Append
from sessiond.store.tail import Tail

_ID = re.compile(rb'"id"\s*:\s*"([^"\\]*)"')


def find_own_lines(fd: int, appends: Sequence[Append], limit: int) -> Iterator[tuple[int, bytes, Append, int]]:
    """The lines of the file with the ids of the appends: offset, bytes, the append, and the line's number in it."""
    wanted: dict[str, tuple[Append, int]] = {}
    for append in appends:
        for number, line in enumerate(append.lines):
            if append.error is None and (line_id := _id_of(line)) is not None:
                wanted[line_id] = append, number
    for begin, line in _lines(fd, limit):
        if not any(name.decode("utf-8", "replace") in wanted for name in _ID.findall(line)):
            continue
        if (line_id := _id_of(line)) in wanted:
            yield begin, line, *wanted[line_id or ""]


def _lines(fd: int, limit: int) -> Iterator[tuple[int, bytes]]:
    """Every whole line within the limit: its offset, and its bytes with the newline."""
    tail = Tail(0, limit)
    while chunk := os.pread(fd, transcript.BLOCK, tail.offset):
        for begin, line in tail.feed(chunk):
            if line is not None:
                yield begin, line + b"\n"


def _id_of(line: bytes) -> str | None:
    try:
        return records.parse(line[:-1]).id
    except BadLine:
        return None
