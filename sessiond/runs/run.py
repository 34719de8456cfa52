"""A run: its request, its state, and its records in the transcript.

Does not know queues, runtimes or callers.
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
from sessiond.runs.run_slots import Slot
from sessiond.runs.text_so_far import TextSoFar
from sessiond.runtimes.runtime import RunStep
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, Message, Part

Status = Literal["queued", "running", "ok", "error", "timeout", "aborted"]
INTERRUPTED: Final = "interrupted"
# How a delivery ended that did not have to leave the daemon.
SettledDelivery = Literal["delivered", "skipped"]


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The request for one turn of a session's agent, as stored in the accepted record.

    `message` is the message object as it is stored, `text` what the runtime gets. `payload` is the hash that is
    compared when the idempotency key is used again. `follow` says what follows the run. For a steer: `first` puts the
    run ahead of the queued ones, `in_transcript` says that its message was written already.
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
    """A run that is queued, running or recently ended.

    Accepted, started and ended are three records, and only the records count: a run without a start on disk when the
    daemon stops stays accepted, and is started by the next daemon.
    """

    def __init__(self, run_id: str, session: Session, request: RunRequest, accepted_at: int) -> None:
        self.run_id = run_id
        self.session = session
        # The key at acceptance. An edit of the transcript may give the session another one.
        self.key = session.key
        self.request = request
        self.status: Status = "queued"
        self.accepted_at = accepted_at
        self.started_at: int | None = None
        self.ended_at: int | None = None
        self.reply: str | None = None
        self.error: str | None = None
        self.usage: dict[str, Any] | None = None
        # The model that the runtime reported; None until the end.
        self.model: str | None = None
        # Why the agent stopped, in its own words; None where it does not say.
        self.stop_reason: str | None = None
        # Its end is recorded if the run ends without a reply.
        self.text_so_far = TextSoFar()
        self.stored = trio.Event()
        self.done = trio.Event()
        # Set when the run is `done`, or when the disk has refused its end (`refusal`) and the write is being retried.
        self.settled = trio.Event()
        self.refusal: str | None = None
        self.scope: trio.CancelScope | None = None
        self.stop_as: Literal["aborted", "reset", "interrupted", "lost"] | None = None
        # Its run slot, if it has one; and how many times it waits for other runs, by their ids. A run that waits has no
        # slot.
        self.slot: Slot | None = None
        self.parked = 0
        self.waits_for: dict[str, int] = {}
        # Since when (Trio's clock) it waits for an attached agent to connect.
        self.unattended_since: float | None = None
        # The sessions that are waiting for its end, or were when it came.
        self.listeners: list[str | None] = []
        # How the conversation that follows was closed by the write of its end; None if it goes on, or there is none.
        self.delivery: SettledDelivery | None = None

    @property
    def begun(self) -> bool:
        """Whether its start is on disk. A run that was dispatched but has no start on disk has not begun."""
        return self.started_at is not None

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def by_reset(self) -> bool:
        """Whether it was stopped by a reset of its session."""
        return self.stop_as == "reset"

    def close(self) -> None:
        """Wake the tasks that wait for its end, which is on disk."""
        self.done.set()
        self.settled.set()

    def note_refusal(self, error: StorageError) -> None:
        """The disk refuses its end, which is retried: wake the tasks that wait for `settled`."""
        self.refusal = error.message
        self.settled.set()

    @contextmanager
    def note_listener(self, key: str | None) -> Iterator[None]:
        """Note that a session waits for the end of this run while the context lasts."""
        self.listeners.append(key)
        try:
            yield
        finally:
            if not self.done.is_set():
                self.listeners.remove(key)


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run, from memory or from its records. `error` is a sentence.

    `by_reset`: it was aborted by a reset of its session, not on its own account.
    """

    run_id: str
    key: str
    status: Status
    reply: str | None = None
    error: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    by_reset: bool = False
    stop_reason: str | None = None


def view(run: Run) -> RunView:
    """The state of a run in memory. Its end is shown only when it is on disk."""
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
        stop_reason=run.stop_reason if over else None,
    )


def new_run_id(session_id: str, record_id: str) -> str:
    """A run id that contains its session id, so that a run of any age can be found by its id."""
    return f"{session_id}.{record_id}"


def session_id_of(run_id: str) -> str:
    """The session id in a run id; empty if the text is not a run id."""
    return run_id.rpartition(".")[0]


def payload_hash(payload: Mapping[str, Any]) -> str:
    """The hash by which requests with the same idempotency key are compared."""
    return blake2b(msgspec.json.encode(payload, order="deterministic"), digest_size=8).hexdigest()


def accepted_record(run_id: str, request: RunRequest, at_ms: int, *, with_message: bool) -> Part:
    """The accepted record of a run. Without the message if that is a record of its own in the same write."""
    fields = msgspec.to_builtins(request)
    # Leave out a text that is in the message already: it would halve the longest message that can be queued.
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
        # They stand outside of the request, where the fold reads them; do not store them twice.
        for name in ("idempotencyKey", "payload"):
            fields.pop(name, None)
    return Custom(RUN, {**data, "request": fields})


def started_records(run_id: str, request: RunRequest, at_ms: int) -> list[Part]:
    """The records of a start: the message, unless it was written before, and the start itself."""
    start = Custom(RUN, {"runId": run_id, "status": "running", "at": at_ms})
    return [start] if request.in_transcript else [Message(request.message), start]
