"""How one program writes its transcripts: a `TranscriptDialect` per program."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sessiond.model.entry import Entry
from sessiond.model.record import LineEnvelope, Record
from sessiond.model.usage_rows import UsageItem


class TranscriptDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Pure functions of bytes and records: no file, no clock, no folder. All but `parse` are total: they never raise.

    `parse(line)` returns the record in a line (without newline) or raises BadLine.
    `fold(entry, record, offset, mtime_ms)` returns the entry after a record; `fold_version` must be raised whenever the
    same lines give another entry. `ineffective_reason(entry, record)` says why a record had no effect.

    The others are faster ways to part of what `parse` gives. `text_in(line)` is the text of the message in a line,
    anything where there is none. `decode_block(lines)` decodes lines together that were all parsed before, as
    `record.message_head` and its like take them; lines for which it returns nothing have to be parsed.
    `count_messages(lines)` is the number of messages, None where the lines have to be parsed.

    `used_item(entry, record)` is what a record adds to the usage of its session, whose entry before it is `entry`.
    `usage_sign` is contained in every line with usage, and each line on which `used_item` depends has one of the
    `usage_signs`.

    `joins`: several lines may be parts of one message, by `Record.message_id`; their contents make it together.
    `lists`: lines are changes of a list of messages, which is what `model.message_list` makes of them.
    `dates_copies`: a fork's copies of messages have the time of the fork, not of the message.
    """

    name: str
    parse: Callable[[bytes], Record]
    fold: Callable[[Entry, Record, int, int], Entry]
    fold_version: int
    ineffective_reason: Callable[[Entry, Record], str | None]
    text_in: Callable[[bytes], str]
    decode_block: Callable[[bytes | memoryview], list[LineEnvelope]]
    count_messages: Callable[[bytes], int | None]
    used_item: Callable[[Entry, Record], UsageItem | None]
    usage_sign: bytes
    usage_signs: tuple[bytes, ...] = ()
    joins: bool = False
    lists: bool = False
    dates_copies: bool = False
