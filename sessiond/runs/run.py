"""A run: what was asked, where it stands, and the shapes of its records in the transcript.

Knows sessions and run records. Does not know queues, runtimes or who waits.
Source: runs.md, "A run's life over a crash".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec
import trio

from sessiond.errors import StorageError
from sessiond.model.message import text_of
from sessiond.model.record import RUN
from sessiond.runs.follow_up import NOTHING_FOLLOWS, FollowUp
from sessiond.runtimes.runtime import RunStep
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, Message, Part

Status = Literal["queued", "running", "ok", "error", "timeout", "aborted"]
INTERRUPTED: Final = "interrupted"


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One turn that somebody asks of a session; this is what the accepted record carries.

    `message` is the message object as it is stored, `text` what the runtime gets. `payload` is the hash of what counts
    for idempotency. `follow` is for whoever goes on after the run: the conversation, the spawn. `first` puts the run
    before those that wait, `in_transcript` says that its message has a record already: both are a steer's.
    """

    text: str
    message: dict[str, Any]
    step: RunStep = "primary"
    context: str | None = None
    thinking: str | None = None
    model: str | None = None
    attachments: dict[str, Any] | None = None
    mount_path: str | None = None
    timeout_s: float | None = None
    idempotency_key: str | None = None
    payload: str | None = None
    turn: int | None = None
    max_turns: int | None = None
    follow: FollowUp = NOTHING_FOLLOWS
    first: bool = False
    in_transcript: bool = False


class Run:
    """A run that is queued, running or ended a little while ago.

    Accepted, started, ended: each of the three is a record, and only a record makes it so. What has no start on record
    when the daemon stops stays accepted, and starts in the next life.
    """

    def __init__(self, run_id: str, session: Session, request: RunRequest, accepted_at: int) -> None:
        self.run_id = run_id
        self.session = session
        # As it was accepted: a stranger's edit may give the session another one.
        self.key = session.key
        self.request = request
        self.status: Status = "queued"
        self.accepted_at = accepted_at
        self.started_at: int | None = None
        self.ended_at: int | None = None
        self.reply: str | None = None
        self.error: str | None = None
        self.usage: dict[str, Any] | None = None
        # What the runtime said that it was; until its end nobody knows.
        self.model: str | None = None
        self.stored = trio.Event()
        self.done = trio.Event()
        # `done`, or the disk has refused the end (`refusal`, in words) and is asked again: nobody can say for how long.
        self.settled = trio.Event()
        self.refusal: str | None = None
        self.scope: trio.CancelScope | None = None
        self.stop_as: Literal["aborted", "reset", "interrupted", "lost"] | None = None
        # Whether it takes one of the places of `places.py`. How many waits for other runs it is in, and for which:
        # while there are any it takes none.
        self.placed = False
        self.parked = 0
        self.waits_for: dict[str, int] = {}
        # Since when (Trio's clock) it waits for an agent that nobody is attached for.
        self.unattended_since: float | None = None
        # The sessions that waited for the end and were there when it came.
        self.heard_by: list[str | None] = []

    @property
    def begun(self) -> bool:
        """Whether its start is on record. Being dispatched is not being begun."""
        return self.started_at is not None

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def by_reset(self) -> bool:
        """Whether it was stopped because its session begins anew."""
        return self.stop_as == "reset"

    def close(self) -> None:
        """Its end is on disk, and whoever waits for it is told."""
        self.done.set()
        self.settled.set()

    def note_refusal(self, error: StorageError) -> None:
        """The disk refuses its end, which is written later: who has stopped it is told so."""
        self.refusal = error.message
        self.settled.set()

    @contextmanager
    def listen(self, key: str | None) -> Iterator[None]:
        """While a session waits for the end of this run."""
        self.heard_by.append(key)
        try:
            yield
        finally:
            if not self.done.is_set():
                self.heard_by.remove(key)


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """What may be said of a run, from memory or from its records. `error` is a sentence.

    `by_reset`: it was aborted because its session began anew; nobody meant this run.
    """

    run_id: str
    key: str
    status: Status
    reply: str | None = None
    error: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    by_reset: bool = False


def view(run: Run) -> RunView:
    """The run as it stands. Its end is told once it is on disk."""
    over = run.done.is_set()
    return RunView(
        run_id=run.run_id,
        key=run.key,
        status=run.status if over or not run.ended else "running",
        reply=run.reply if over else None,
        error=run.error if over else None,
        started_at=run.started_at,
        ended_at=run.ended_at if over else None,
        by_reset=run.by_reset,
    )


def new_run_id(session_id: str, record_id: str) -> str:
    """An id that names its session, so that a run is found by its id alone however long ago it was."""
    return f"{session_id}.{record_id}"


def session_id_of(run_id: str) -> str:
    """The session id in a run's id; empty where the text is no run id."""
    return run_id.rpartition(".")[0]


def payload_hash(payload: Mapping[str, Any]) -> str:
    """The hash two requests with the same idempotency key are compared by."""
    return blake2b(msgspec.json.encode(payload, order="deterministic"), digest_size=8).hexdigest()


def accepted_record(run_id: str, request: RunRequest, at_ms: int, *, with_message: bool) -> Part:
    """The record that makes a run durable. Without the message where that follows in the same write."""
    fields = msgspec.to_builtins(request)
    # The text stands in the message already: twice it would make a waiting message half as long as one that need not.
    if not with_message or request.text == text_of(request.message):
        del fields["text"]
    if not with_message:
        del fields["message"]
    data: dict[str, Any] = {"runId": run_id, "status": "accepted", "at": at_ms}
    if request.step == "announce":
        data["step"] = request.step
    if request.idempotency_key is not None:
        data["idempotencyKey"] = request.idempotency_key
        data["payload"] = request.payload
    return Custom(RUN, {**data, "request": fields})


def started_records(run_id: str, request: RunRequest, at_ms: int) -> list[Part]:
    """What a start writes: the message, now that it is its turn in the conversation, and the start itself."""
    start = Custom(RUN, {"runId": run_id, "status": "running", "at": at_ms})
    return [start] if request.in_transcript else [Message(request.message), start]
