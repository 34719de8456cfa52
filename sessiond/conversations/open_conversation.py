"""What goes on after a run, as records: a conversation between two sessions, or a reply to be delivered.

A talk is opened in the write that ends its first run, in that run's session, and closed when nothing is left to do.
In between nothing needs to be recorded: the ids of its steps follow from its own, so each step's own records tell
whether it was taken and how it ended. Knows shapes; starts nothing. Source: runs.md, "A conversation".
"""

from __future__ import annotations

import os
import uuid
from hashlib import blake2b
from typing import Any, Literal, TypeVar

import msgspec

from sessiond.delivery.outbox import DeliveryStatus
from sessiond.model import lax
from sessiond.model.entry import OpenTalk
from sessiond.model.record import TALK
from sessiond.policy.replyback import StepEnd
from sessiond.runs.follow_up import ConversationTopic
from sessiond.runs.run import INTERRUPTED, Run, RunView, new_run_id
from sessiond.store import transcript
from sessiond.store.catalog import Session
from sessiond.store.store import Custom

_T = TypeVar("_T")
# Delivery ids are made of talks' ids, so that what is announced twice is announced under one id.
_NAMESPACE = uuid.UUID("0b0c7f6e-6f5d-4a57-9e0e-5d1c8a0f4a11")


class OpeningRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An open talk's record. `topic` is None where the run's reply is all there is to deliver."""

    talk_id: str
    status: Literal["open"] = "open"
    topic: ConversationTopic | None = None


class ClosingRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How a talk was closed. `delivery_id` is there where something was put into the outbox."""

    talk_id: str
    delivery: DeliveryStatus
    status: Literal["closed"] = "closed"
    delivery_id: str | None = None


class OpenConversation:
    """A talk that goes on. `home` is the session of its first run. `closed` once its closing record was written."""

    def __init__(self, opened: OpeningRecord, home: Session, *, resumed: bool) -> None:
        self.talk_id = opened.talk_id
        self.topic = opened.topic
        self.home = home
        self.resumed = resumed
        self.closed = False
        talk = opened.topic.conversation if opened.topic is not None else None
        # The sessions that have their say in it.
        self.keys = {home.key, *((talk.target_key, talk.requester_key or home.key) if talk is not None else ())}


def opening_record(opened: OpeningRecord) -> Custom:
    """The record that opens a talk. `omit_defaults` leaves the status out, which readers need."""
    return Custom(TALK, {**_builtins(opened), "status": opened.status})


def closing_record(closed: ClosingRecord) -> Custom:
    """The record that closes a talk."""
    return Custom(TALK, {**_builtins(closed), "status": closed.status})


def read_opening_record(fd: int, talk: OpenTalk, record_limit: int) -> OpeningRecord | None:
    """The opening record of a talk, read from its transcript; None where it is damaged."""
    line = next(transcript.read_lines(fd, talk.offset, record_limit), None)
    record = line.record if line is not None else None
    if record is None or record.custom_type != TALK or record.data is None:
        return None
    opened = _convert(lax.decode_dict(record.data), OpeningRecord)
    return opened if opened is not None and opened.talk_id == talk.talk_id else None


def find_closing_record(fd: int, talk_id: str, end: int | None, record_limit: int) -> ClosingRecord | None:
    """The closing record of a talk, looked for from the end of its transcript (None: of the file)."""
    if end is None:
        end = os.fstat(fd).st_size
    needle = talk_id.encode()
    for line in transcript.read_backwards(fd, end, record_limit):
        record = line.record
        if record is None or record.custom_type != TALK or record.data is None or needle not in record.raw:
            continue
        closed = _convert(lax.decode_dict(record.data), ClosingRecord)
        if closed is not None and closed.talk_id == talk_id:
            return closed
    return None


def step_run_id(talk_id: str, number: int, kind: str, session_id: str) -> str:
    """The id of the run of a talk's step, from 1: the same before and after a crash."""
    return new_run_id(session_id, blake2b(f"{talk_id}\0{number}\0{kind}".encode(), digest_size=8).hexdigest())


def delivery_id(talk_id: str) -> str:
    """The id under which a talk's outcome is delivered."""
    return str(uuid.uuid5(_NAMESPACE, talk_id))


def step_end_of(run: Run | RunView) -> StepEnd:
    """How a step's run ended, as the conversation counts it."""
    match run.status:
        case "error":
            return "interrupted" if run.error == INTERRUPTED else "error"
        case "aborted":
            # One that a reset cut off was stopped by nobody.
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
