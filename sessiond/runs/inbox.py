"""The inbox of a session that an MCP client acts as: messages to it are kept for the client and start no agent.

Such a session (`agent:<id>:mcp:<client>`) belongs to a program that reads its messages when it wants to, not to the
agent in its key. A kept message is a run that ends as soon as it is accepted, so that idempotency keys, `agent.wait`
and everything else that waits for a run work as usual. Does not know callers or attached agents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sessiond.clock import iso_ms
from sessiond.errors import InvalidParams
from sessiond.model import lax
from sessiond.model.message import text_of
from sessiond.model.record import ENTRY
from sessiond.runs import run as runs
from sessiond.runs import run_end as ending
from sessiond.runs.run import Run
from sessiond.runs.run_end import RunEnd
from sessiond.store import cursor, transcript
from sessiond.store.catalog import Session
from sessiond.store.cursor import Position
from sessiond.store.store import Custom, Message, Part, SessionStore

# The reply of an announce step that posts nothing.
_SILENT = "ANNOUNCE_SKIP"
# Bounds of one page, so that it fits a model's context however many messages are unread.
PAGE_MESSAGES = 50
PAGE_BYTES = 256 * 1024


class _Sender(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    source_session_key: str | None = None
    source_tool: str | None = None


class _ProvenanceHead(msgspec.Struct, frozen=True, gc=False):
    provenance: _Sender | None = None


class KeptMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A message in an inbox. `from` is the sending session, absent if the owner sent it; `sourceTool` the tool.

    `seq` is its number in the session, `cursor` the place after it, `timestamp` ISO 8601.
    """

    id: Annotated[str | None, Meta(description="The id of the message's record.")]
    seq: Annotated[int, Meta(description="The number of the message in the session, from 1.")]
    cursor: Annotated[str, Meta(description="A cursor: the place in the transcript after it.")]
    timestamp: Annotated[str | None, Meta(description="When it was written, as ISO 8601.")] = None
    sender: Annotated[str | None, Meta(description="The session that sent it; absent if the owner did.")] = (
        msgspec.field(default=None, name="from")
    )
    source_tool: Annotated[str | None, Meta(description="The method with which it was sent.")] = None
    text: Annotated[str, Meta(description="Its text.")]


class InboxPage(msgspec.Struct, frozen=True):
    """Kept messages, oldest first. `end` is the place after the last record that was read."""

    messages: list[KeptMessage]
    end: Position
    has_more: bool


def keep_message(run: Run, find: Callable[[str], Run | None]) -> list[Part]:
    """Mark the run as ended; its message, accepted and end records, to be written together.

    The message comes first, so that a torn write cannot leave a run without its message. Two kinds of runs have no
    message: an announce step, which asks an agent and here there is none; and a reply that the reader already got as
    the answer to its own message. `find` gives a run by its id.
    """
    said = run.request.step != "announce" and not _is_known_answer(run, find)
    run.status, run.started_at, run.ended_at = "ok", run.accepted_at, run.accepted_at
    run.reply = _SILENT if run.request.step == "announce" else None
    message = [Message(run.request.message)] if said and not run.request.in_transcript else []
    accepted = runs.accepted_record(run.run_id, run.request, run.accepted_at, with_message=False)
    return [*message, accepted, *ending.end_records(run, RunEnd(status="ok"), run.accepted_at, None)]


def _is_known_answer(run: Run, find: Callable[[str], Run | None]) -> bool:
    step = run.request.follow.step
    first = find(step.talk_id) if step is not None and step.number == 1 else None
    return first is not None and run.key in first.listeners


async def find_read_position(store: SessionStore, session: Session) -> Position:
    """The place up to which the reader has confirmed to have read; the beginning if it never did."""
    text = session.entry.inbox_cursor
    if text is None:
        return Position(0, 0)
    try:
        return store.position(session, text)
    except InvalidParams:
        return await _read_position_in_copy(store, session, text)


async def _read_position_in_copy(store: SessionStore, session: Session, text: str) -> Position:
    """The place of a stored cursor in a transcript that was copied: from a backup, another machine, or to another key.

    Its signature is no longer valid there, but it is in the transcript itself. It is accepted if a line begins at its
    offset and the number of messages before it is right.
    """
    try:
        found = cursor.parse(text).position
    except InvalidParams:
        return Position(0, 0)
    if found.offset > session.entry.file.folded_to:
        return Position(0, 0)

    def is_there(fd: int) -> bool:
        if not transcript.is_line_start(fd, found.offset):
            return False
        lines = transcript.read_lines(fd, 0, store.record_limit, dialect=session.dialect, stop=found.offset)
        return sum(line.record is not None and line.record.message is not None for line in lines) == found.seq

    return found if await store.read(session, is_there) else Position(0, 0)


async def mark_read(store: SessionStore, session: Session, text: str, before: Position | None = None) -> Position:
    """The place of the cursor, stored in the transcript as the read position if further on than `before`, the stored
    one. InvalidParams for a cursor of another session.
    """
    before = before if before is not None else await find_read_position(store, session)
    place = store.position(session, text)
    # Compared by message number: the stored position is a record too, behind which the next offset would always be.
    if place.seq > before.seq:
        await store.append(session, [Custom(ENTRY, {"inboxCursor": text})])
    return place


async def page(store: SessionStore, session: Session, start: Position) -> InboxPage:
    """The oldest messages to the session after `start`. InvalidParams (`cursor_stale`)."""
    stop = session.entry.file.folded_to

    def read(fd: int) -> InboxPage:
        # After the file was rewritten in place, the offset of an older cursor may be inside a line.
        if not transcript.is_line_start(fd, start.offset):
            raise InvalidParams(
                "$.cursor does not belong to this session's transcript as it is now; start again without a cursor",
                field="$.cursor",
                code="cursor_stale",
            )
        return _read(fd, store, session, start, stop)

    found: InboxPage = await store.read(session, read)
    return found


def _read(fd: int, store: SessionStore, session: Session, start: Position, stop: int) -> InboxPage:
    messages: list[KeptMessage] = []
    place, size = start, 0
    for line in transcript.read_lines(fd, start.offset, store.record_limit, dialect=session.dialect, stop=stop):
        if len(messages) >= PAGE_MESSAGES or size >= PAGE_BYTES:
            return InboxPage(messages, place, has_more=True)
        record = line.record
        is_message = record is not None and record.message is not None
        place = Position(line.end, place.seq + is_message)
        if record is None or record.message is None or record.role != "user":
            continue
        size += len(record.message)
        sender = _sender(record.message)
        messages.append(
            KeptMessage(
                id=record.id,
                seq=place.seq,
                cursor=store.cursor(session, place.offset, place.seq, transcript.checksum(fd, place.offset)),
                timestamp=iso_ms(record.timestamp_ms) if record.timestamp_ms is not None else None,
                sender=sender.source_session_key,
                source_tool=sender.source_tool,
                text=text_of(record.message),
            )
        )
    return InboxPage(messages, place, has_more=False)


def _sender(message: bytes | Any) -> _Sender:
    head = lax.decode_fitting(bytes(message), _ProvenanceHead)  # None for a provenance of another program
    return head.provenance or _Sender() if head is not None else _Sender()
