"""What is to be known of how one program writes its transcripts. One object for each program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from sessiond.model.entry import Entry
from sessiond.model.record import Record


class TranscriptDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Pure functions of bytes and records: no file, no clock, no folder. All of them are total but for `parse`.

    `parse(line)` is the record in a line (no newline); BadLine where there is none.
    `fold(entry, record, offset, mtime_ms)` is the entry after a record, and `fold_version` is raised whenever the same
    lines give another entry. `complaint_of(entry, record)` says why a record did nothing.

    The others save work, and say nothing that `parse` does not say. `text_in(line)` is the text of the message in a
    line; where there is none it may be anything. `open_block(lines)` decodes lines together that were all found to be
    records before, `message_in(opened, line)` is the record of one of them if it is a message; what cannot be decoded
    so gives nothing, and is parsed. `count_messages(lines)` is how many messages they are, None where they have to be
    parsed.
    `usage_sign` is what stands in every line that has usage.
    """

    name: str
    parse: Callable[[bytes], Record]
    fold: Callable[[Entry, Record, int, int], Entry]
    fold_version: int
    complaint_of: Callable[[Entry, Record], str | None]
    text_in: Callable[[bytes], str]
    open_block: Callable[[bytes], list[Any]]
    message_in: Callable[[Any, bytes], Record | None]
    count_messages: Callable[[bytes], int | None]
    usage_sign: bytes
