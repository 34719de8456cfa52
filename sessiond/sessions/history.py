"""Pages of a transcript, newest page first, with the messages byte for byte as they are stored.

Knows the store. Does not know who asks: visibility is checked before, redaction comes after.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sessiond.clock import iso_ms
from sessiond.model import lax
from sessiond.model.record import FINAL, RUN, TOOL_ROLES, Record
from sessiond.store.catalog import Session
from sessiond.store.cursor import Position as Place
from sessiond.store.shown_page import PageRequest, ShownMarker, ShownPage
from sessiond.store.store import SessionStore

OMITTED = "[sessions_history omitted: message too large]"


class MessagePosition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The place of a message: the id of its record, its number in the session (from 1), the cursor after it."""

    id: Annotated[str | None, Meta(description="The id of the message's record.")]
    seq: Annotated[int, Meta(description="The number of the message in the session, from 1.")]
    cursor: Annotated[str, Meta(description="A cursor: the place in the transcript after it.")]
    timestamp: Annotated[str | None, Meta(description="When it was written, as ISO 8601.")] = None


class RunEnding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The end of a run, after the first `seq` messages. `status`: ok, error, timeout or aborted. Times are ISO 8601.

    `replied` is false if the run ended with an empty reply. `printed` is the end of what the agent had printed when a
    run ended without a reply, as far as no message says it.
    """

    run_id: Annotated[str, Meta(description="The run.")]
    status: Annotated[str, Meta(description="How it ended: ok, error, timeout or aborted.")]
    seq: Annotated[int, Meta(description="How many messages of the session come before its end.")]
    replied: Annotated[bool, Meta(description="Whether it had a reply.")]
    error: Annotated[str | None, Meta(description="Why it failed, in a sentence.")] = None
    ended_at: Annotated[str | None, Meta(description="When it ended, as ISO 8601.")] = None
    printed: Annotated[
        str | None,
        Meta(description="The end of what its agent printed after its last message, if it ended without a reply."),
    ] = None


class AttachedFile(msgspec.Struct, frozen=True, gc=False):
    """A file that came with a message; its content is in the agent's workspace."""

    name: Annotated[str, Meta(description="The name of the file.")]
    bytes: Annotated[lax.Count, Meta(description="Its size in bytes.")]


class AttachedFiles(msgspec.Struct, frozen=True, gc=False):
    """The files that came with the message number `seq` of the session."""

    seq: Annotated[int, Meta(description="The number of the message in the session, from 1.")]
    files: Annotated[list[AttachedFile], Meta(description="The files that came with the message.")]


class Marker(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """What happened between two messages, before that with the number `seq`: they were summed up, or some were left."""

    kind: Annotated[
        Literal["compaction", "rewind"], Meta(description="Whether the conversation was summed up here, or went back.")
    ]
    seq: Annotated[int, Meta(description="The number of the message that it stands before.")]
    cursor: Annotated[str, Meta(description="A cursor: the place in the transcript after it.")]
    timestamp: Annotated[str | None, Meta(description="When it was written, as ISO 8601.")] = None


class _Receipt(msgspec.Struct, frozen=True, gc=False):
    files: list[AttachedFile]


class _Request(msgspec.Struct, frozen=True, gc=False):
    attachments: _Receipt


class _AcceptedNote(msgspec.Struct, frozen=True, gc=False):
    """The files of a message, in the record of its accepted run, which comes right before the message."""

    status: Literal["accepted"]
    request: _Request


class _EndNote(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The fields of a record of a run's end."""

    run_id: str
    status: str
    at: lax.Milliseconds | None = None
    error: str | None = None
    # Only in the record if it is empty; any other reply is a message.
    reply: str | None = None
    printed: str | None = None


class History(msgspec.Struct, frozen=True):
    """A page, oldest message first. `cursor` is the place after it, `next_cursor` leads to older messages."""

    messages: list[msgspec.Raw]
    positions: list[MessagePosition]
    has_more: bool
    next_cursor: str | None
    cursor: str
    skipped: int
    bytes: int
    runs: list[RunEnding] = []
    attachments: list[AttachedFiles] = []
    markers: list[Marker] = []


async def page(
    store: SessionStore,
    session: Session,
    *,
    limit: int,
    include_tools: bool,
    max_bytes: int,
    before: str | None = None,
    include_runs: bool = False,
    include_system: bool = False,
) -> History:
    """The newest `limit` messages of at most `max_bytes` together; with `before`, the newest before that cursor.

    With `include_runs` also the ends of runs between them and the files that came with them. With `include_system` also
    messages of the role `system`, each with the number of the message before it.
    """
    place = store.position(session, before) if before is not None else None
    end = place or Place(session.entry.file.folded_to, session.entry.message_count)
    # Taken before the read, so that a concurrent append comes after this page.
    cursor = store.cursor(session, end.offset, end.seq)
    asked = PageRequest(
        end=end.offset,
        end_seq=end.seq,
        limit=limit,
        max_bytes=max_bytes,
        shorten=omit_large,
        # Source: protocol.md, "History".
        without=frozenset() if include_tools else TOOL_ROLES,
        noted=RUN if include_runs else None,
        with_hidden=include_system,
    )
    return await store.shown_page(session, asked, partial(_history_of, store, session, cursor))


def _history_of(store: SessionStore, session: Session, cursor: str, got: ShownPage) -> History:
    """The page as clients see it. Called where it was read: its 200 cursors take as long as half the read."""
    shown = got.messages
    messages = shown.data
    cursors = store.cursors(session, zip(shown.ends, shown.seqs, shown.checks, strict=True))
    positions = list(map(MessagePosition, shown.ids, shown.seqs, cursors, shown.stamps))
    return History(
        messages=messages,
        positions=positions,
        has_more=got.has_more,
        next_cursor=store.cursor(session, got.start, got.start_seq, got.start_check) if got.has_more else None,
        cursor=cursor,
        skipped=got.skipped,
        bytes=sum(map(len, messages)),
        runs=[ending for line, seq in got.noted if (ending := _run_ending(line.record, seq)) is not None],
        markers=[_marker(store, session, marker) for marker in got.markers],
        attachments=[files for line, seq in got.noted if (files := _attached_files(line.record, seq)) is not None],
    )


def _marker(store: SessionStore, session: Session, marker: ShownMarker) -> Marker:
    record = marker.line.record
    assert record is not None and record.marker is not None
    stamp = iso_ms(record.timestamp_ms) if record.timestamp_ms is not None else None
    cursor = store.cursor(session, marker.line.end, marker.seq, marker.check)
    return Marker(record.marker, marker.seq + 1, cursor, stamp)


def _run_ending(record: Record | None, seq: int) -> RunEnding | None:
    note = lax.decode_fitting(record.data, _EndNote) if record is not None and record.data is not None else None
    if note is None or note.status not in FINAL:
        return None
    ended_at = iso_ms(note.at) if note.at is not None else None
    return RunEnding(note.run_id, note.status, seq, note.reply is None, note.error, ended_at, note.printed)


def _attached_files(record: Record | None, seq: int) -> AttachedFiles | None:
    if record is None or record.data is None or b'"attachments"' not in record.data:
        return None
    note = lax.decode_fitting(record.data, _AcceptedNote)
    return AttachedFiles(seq + 1, note.request.attachments.files) if note is not None else None


def omit_large(message: bytes) -> bytes:
    """What is shown for a message that is over the limit by itself: its small fields."""
    fields = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
    kept: dict[str, object] = {
        name: value for name, value in fields.items() if len(value) <= 1024 and name != "content"
    }
    return msgspec.json.encode({**kept, "content": OMITTED, "omitted": {"bytes": len(message)}})
