"""The records of an open conversation: one between two sessions, or just a reply that has to be delivered.

A conversation is opened by the write that ends its first run, in that run's session, and closed by a record there. In
between nothing is recorded about it: the run ids of its steps are derived from its own id, so the records of those runs
tell how far it has come. (On the wire and on disk a conversation is called `talk`.) Starts nothing.
Source: runs.md, "A conversation".
"""

from __future__ import annotations

import os
import uuid
from hashlib import blake2b
from typing import Any, Literal, TypeVar

import msgspec

from sessiond.delivery.outbox import DeliveryStatus
from sessiond.model import lax
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import ConversationRef
from sessiond.model.record import CONVERSATION
from sessiond.policy.replyback import StepEnd
from sessiond.runs.follow_up import ConversationTopic
from sessiond.runs.run import INTERRUPTED, Run, RunView, new_run_id
from sessiond.store import transcript
from sessiond.store.catalog import Session
from sessiond.store.store import Custom

_T = TypeVar("_T")
# The namespace of delivery ids, which are derived from conversation ids: an announcement repeated after a crash has the
# same id.
_NAMESPACE = uuid.UUID("0b0c7f6e-6f5d-4a57-9e0e-5d1c8a0f4a11")


class OpeningRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The record that opens a conversation. `topic` is None if only the run's reply has to be delivered."""

    talk_id: str
    status: Literal["open"] = "open"
    topic: ConversationTopic | None = None


class ClosingRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The record that closes a conversation. `delivery_id` is set if there is a delivery in the outbox."""

    talk_id: str
    delivery: DeliveryStatus
    status: Literal["closed"] = "closed"
    delivery_id: str | None = None


class OpenConversation:
    """A conversation in progress. `home` is the session of its first run. `closed`: its closing record was written."""

    def __init__(self, opened: OpeningRecord, home: Session, *, resumed: bool) -> None:
        self.talk_id = opened.talk_id
        self.topic = opened.topic
        self.home = home
        self.resumed = resumed
        self.closed = False
        conversation = opened.topic.conversation if opened.topic is not None else None
        # The keys of the sessions that take part in it.
        self.keys = {
            home.key,
            *((conversation.target_key, conversation.requester_key or home.key) if conversation is not None else ()),
        }


def opening_record(opened: OpeningRecord) -> Custom:
    """The record that opens a conversation. Adds `status`, which `omit_defaults` leaves out."""
    return Custom(CONVERSATION, {**_builtins(opened), "status": opened.status})


def closing_record(closed: ClosingRecord) -> Custom:
    """The record that closes a conversation."""
    return Custom(CONVERSATION, {**_builtins(closed), "status": closed.status})


def read_opening_record(
    fd: int, ref: ConversationRef, record_limit: int, dialect: TranscriptDialect
) -> OpeningRecord | None:
    """The opening record of a conversation, read from its transcript; None if it is damaged."""
    line = next(transcript.read_lines(fd, ref.offset, record_limit, dialect=dialect), None)
    record = line.record if line is not None else None
    if record is None or record.custom_type != CONVERSATION or record.data is None:
        return None
    opened = _convert(lax.decode_dict(record.data), OpeningRecord)
    return opened if opened is not None and opened.talk_id == ref.talk_id else None


def find_closing_record(
    fd: int, talk_id: str, end: int | None, record_limit: int, dialect: TranscriptDialect
) -> ClosingRecord | None:
    """The closing record of a conversation, searched backwards from `end` (None: the end of the file)."""
    if end is None:
        end = os.fstat(fd).st_size
    id_bytes = talk_id.encode()
    for line in transcript.read_backwards(fd, end, record_limit, dialect=dialect):
        record = line.record
        if record is None or record.custom_type != CONVERSATION or record.data is None or id_bytes not in record.raw:
            continue
        closed = _convert(lax.decode_dict(record.data), ClosingRecord)
        if closed is not None and closed.talk_id == talk_id:
            return closed
    return None


def step_run_id(talk_id: str, number: int, kind: str, session_id: str) -> str:
    """The run id of a step of a conversation; steps count from 1. The same before and after a crash."""
    return new_run_id(session_id, blake2b(f"{talk_id}\0{number}\0{kind}".encode(), digest_size=8).hexdigest())


def delivery_id(talk_id: str) -> str:
    """The delivery id of a conversation's announcement."""
    return str(uuid.uuid5(_NAMESPACE, talk_id))


def step_end_of(run: Run | RunView) -> StepEnd:
    """The end of a step's run, as `policy.replyback` takes it."""
    match run.status:
        case "error":
            return "interrupted" if run.error == INTERRUPTED else "error"
        case "aborted":
            # A reset does not mean to stop the conversation.
            return "interrupted" if run.by_reset else "aborted"
        case "ok" | "timeout":
            return run.status
        case "queued" | "running":
            raise AssertionError("the step has not ended")


def _convert(value: Any, kind: type[_T]) -> _T | None:
    return lax.convert(value, kind) if value is not None else None


def _builtins(value: msgspec.Struct) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(value)
    return made
