"""The records that a caller appends, and their lines. Pure; does not know the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sessiond.clock import Ids
from sessiond.errors import InvalidParams, LimitExceeded
from sessiond.model import record as records
from sessiond.model.decoding_cost import MAX_VALUES, find_excess, find_long_excess
from sessiond.model.record import BadLine, RecordDraft


class Message(msgspec.Struct, frozen=True):
    """A `message` record to append; a Raw body keeps its bytes."""

    body: msgspec.Raw | dict[str, Any]


class Custom(msgspec.Struct, frozen=True):
    """A `custom` record to append."""

    type: str
    data: dict[str, Any] | msgspec.Raw


Part = Message | Custom


class Written(msgspec.Struct, frozen=True):
    """The offsets of a record that was written."""

    id: str
    offset: int
    end: int


def drafts_of(parts: Sequence[Part], ids: Ids, now_ms: int, record_limit: int) -> list[RecordDraft]:
    """Drafts of the records. LimitExceeded or InvalidParams for one that readers would refuse."""
    drafts: list[RecordDraft] = []
    for part in parts:
        try:
            draft = _draft(part, ids.record(), now_ms)
            if draft.max_bytes > record_limit:
                raise LimitExceeded(
                    f"the record is {draft.max_bytes} bytes long, the limit is {record_limit} (limits.maxRecordBytes)",
                    limit="limits.maxRecordBytes",
                    value=record_limit,
                )
            _check(part, draft)
        except BadLine as bad:
            raise InvalidParams(f"the message cannot be stored: {bad.reason}") from None
        drafts.append(draft)
    return drafts


def _draft(part: Part, record_id: str, now_ms: int) -> RecordDraft:
    try:
        match part:
            case Message(body):
                return records.message_draft(record_id, now_ms, body)
            case Custom(custom_type, data):
                return records.custom_draft(record_id, now_ms, custom_type, data)
    except (ValueError, OverflowError, TypeError, RecursionError):  # a lone surrogate, a number out of range
        raise BadLine("not JSON") from None


def _check(part: Part, draft: RecordDraft) -> None:
    """Raise BadLine for a record that readers would refuse. What was encoded here is JSON, but may be too deep."""
    line = draft.line(None)[:-1]
    if isinstance(part, Message) and isinstance(part.body, msgspec.Raw):
        records.parse(line)
    elif (excess := find_excess(line)) is not None:
        raise BadLine(excess.reason)
    # Its parent id makes it longer, perhaps as long as where its digits are counted.
    if len(line) <= MAX_VALUES and (excess := find_long_excess(line, records.MAX_PARENT_BYTES)) is not None:
        raise BadLine(excess.reason)


def lines_of(drafts: Sequence[RecordDraft], record_limit: int, parent_id: str | None) -> list[bytes]:
    """The lines. The parent of each is the one before it, that of the first `parent_id`. None is over the limit."""
    lines: list[bytes] = []
    for draft in drafts:
        lines.append(draft.line(parent_id, record_limit))
        parent_id = draft.id
    return lines


def locate_written(offset: int, drafts: Sequence[RecordDraft], lines: Sequence[bytes]) -> list[Written]:
    """The offsets of lines that were written one after the other from `offset` on."""
    written: list[Written] = []
    for draft, line in zip(drafts, lines, strict=True):
        written.append(Written(draft.id, offset, offset + len(line)))
        offset += len(line)
    return written
