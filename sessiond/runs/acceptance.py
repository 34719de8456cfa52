"""Accept runs: write the accepted record, register the run and queue it, or refuse it without a trace.

Knows the store, the registry and the queues. The subclass RunSupervisor executes and ends the runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import msgspec
import trio

from sessiond.clock import Clock, Ids
from sessiond.errors import Conflict, NotFound, Overloaded, SessiondError, StorageError, quote
from sessiond.model.entry import MAX_ACCEPTED_RUNS, KeyedRun
from sessiond.model.fold import MAX_KEYED_RUNS
from sessiond.model.keys import agent_of
from sessiond.runs import inbox
from sessiond.runs import run as runs
from sessiond.runs.executor import Host
from sessiond.runs.queue import RunQueues
from sessiond.runs.registry import Registry
from sessiond.runs.run import Run, RunRequest
from sessiond.runs.run_slots import RunSlots
from sessiond.sessions.lifecycle import current_session
from sessiond.store.catalog import Session
from sessiond.store.new_records import drafts_of
from sessiond.store.store import Part, SessionStore

# An upper bound of what a record adds around a request: its own fields, ids, and the longest idempotency key.
_AROUND_BYTES = 4096


def _do_nothing() -> None:
    pass


class Acceptance(ABC):
    """The base class of RunSupervisor: accepts runs and knows all that have not ended."""

    def __init__(self, store: SessionStore, host: Host, clock: Clock, ids: Ids) -> None:
        self._store, self._host, self._clock, self._ids = store, host, clock, ids
        self.registry = Registry(store)
        self.queues = RunQueues(RunSlots(host.slot_limits, host.is_light, host.is_resumable))

    @property
    @abstractmethod
    def stopping(self) -> bool:
        """Whether the daemon is shutting down: then no run is started."""

    @abstractmethod
    def dispatch(self) -> None:
        """Start the runs whose turn it is."""

    @abstractmethod
    def _on_accepted(self, run: Run, *, at_once: bool) -> None:
        """Called when the run is on disk; with `at_once` its start is on disk too."""

    def run_of_key(self, session: Session, key: str, payload: str) -> str | None:
        """The id of the run with this idempotency key, None if it is new. Conflict if its payload was another."""
        for run in self.registry.of_session(session.key):
            if run.request.idempotency_key == key:
                return _check_payload(key, run.run_id, run.request.payload, payload)
        for keyed in self._keyed_runs(session):
            if keyed.key == key:
                return _check_payload(key, keyed.run_id, keyed.payload, payload)
        return None

    def _keyed_runs(self, session: Session) -> Iterator[KeyedRun]:
        """The newest idempotency keys of a session, at most MAX_KEYED_RUNS. Includes those from before a reset."""
        yield from reversed(session.entry.keyed)
        left = MAX_KEYED_RUNS - len(session.entry.keyed)
        for older in reversed(self._store.catalog.older(session.key)):
            if left <= 0:
                return
            yield from older.entry.keyed[: -left - 1 : -1]
            left -= len(older.entry.keyed)

    async def find_accepted(self, session: Session, request: RunRequest, on_queued: Callable[[], None]) -> str | None:
        """The id of the run with the request's idempotency key, once it is on disk; None if the request is new."""
        if request.idempotency_key is None or request.payload is None:
            return None
        run_id = self.run_of_key(session, request.idempotency_key, request.payload)
        if run_id is not None:
            on_queued()
            await self.wait_stored(run_id)
        return run_id

    async def accept_once(
        self, session: Session, request: RunRequest, *, on_queued: Callable[[], None] = _do_nothing
    ) -> str:
        """The id of the run with the request's idempotency key, or of a new run; on disk in both cases.

        `on_queued` is called once the run has its place in the queue, before it is on disk.
        """
        if request.idempotency_key is not None:
            session = await current_session(self._store.catalog, session)
            run_id = await self.find_accepted(session, request, on_queued)
            if run_id is not None:
                return run_id
        return (await self.accept(session, request, on_queued=on_queued)).run_id

    async def wait_stored(self, run_id: str) -> None:
        """Return when the run is on disk. StorageError if it was being written by another caller and that failed."""
        run = self.registry.get(run_id)
        if run is not None:
            await run.stored.wait()
            if self.registry.get(run_id) is not run:
                raise StorageError("the message could not be stored; nothing was accepted, send it again")

    async def accept(
        self,
        session: Session,
        request: RunRequest,
        *,
        run_id: str | None = None,
        on_queued: Callable[[], None] = _do_nothing,
    ) -> Run:
        """Accept a run; on disk when this returns. It starts at once if nothing is ahead of it.

        With `run_id` the caller chooses the id; a second call with the same id returns the same run.
        """
        # No await between this and the append, so that a concurrent reset either comes first or finds the run.
        session = await current_session(self._store.catalog, session)
        if run_id is not None and (known := self.registry.get(run_id)) is not None:
            await self.wait_stored(run_id)
            return known
        self._check(session.key)
        keeps = self.keeps_messages(session.key)
        if not keeps and (crowded := _crowd_error(session, self.registry.count_of(session.key))) is not None:
            raise crowded
        run = Run(
            run_id or runs.new_run_id(session.session_id, self._ids.record()), session, request, self._clock.wall_ms()
        )
        self._check_size(run.run_id, request)
        self.registry.add(run)
        at_once = not keeps and self._begin(run)
        own = _accepted_parts(run.run_id, request, run.accepted_at, at_once=at_once)
        if keeps:
            own = inbox.keep_message(run, self.registry.get)
        on_queued()
        try:
            # Shielded: a caller who disconnects must not leave an accepted run behind that is never started.
            with trio.CancelScope(shield=True):
                await self._store.append(session, own)
        except SessiondError:
            self._withdraw(run)
            raise
        self._on_accepted(run, at_once=at_once)
        return run

    async def create(
        self, key: str, request: RunRequest, *, cwd: str, spawned_by: str | None = None, extra: Sequence[Part] = ()
    ) -> Run:
        """Create the session of a new key together with its first run, in one write. No other task may use the key."""
        session_id = self._ids.uuid()
        run_id = runs.new_run_id(session_id, self._ids.record())
        now = self._clock.wall_ms()
        self._check_size(run_id, request)
        slot = self.queues.reserve(key) if not self.stopping and self._is_attended(agent_of(key)) else None
        at_once = slot is not None
        parts = [*extra, *_accepted_parts(run_id, request, now, at_once=at_once)]
        try:
            with trio.CancelScope(shield=True):
                session, _ = await self._store.create(
                    key, agent_of(key), parts, cwd=cwd, spawned_by=spawned_by, session_id=session_id
                )
        except SessiondError:
            if slot is not None:
                self.queues.release_reserved(slot)
            raise
        run = Run(run_id, session, request, now)
        self.registry.add(run)
        if at_once:
            self.queues.set_current(run, slot)
        else:
            self.queues.push(run)
        self._on_accepted(run, at_once=at_once)
        return run

    def keeps_messages(self, key: str) -> bool:
        """Whether messages to this session are kept in its inbox (`inbox.py`) and start no run."""
        return self._host.keeps_messages(key)

    def answers(self, key: str) -> bool:
        """Whether the session's agent is configured or was attached, or its messages are kept in an inbox."""
        return self.keeps_messages(key) or self._host.knows_agent(agent_of(key))

    def understands_steps(self, key: str) -> bool:
        """Whether the session's agent can tell an announce step from a message."""
        return self._host.understands_steps(agent_of(key))

    def _check(self, key: str) -> None:
        """Raise NotFound if no agent could ever answer."""
        if not self.answers(key):
            agent_id = agent_of(key)
            raise NotFound(
                f"{key} belongs to agent {agent_id}, which is not configured and not attached: nobody would answer."
                " Configure the agent, or attach it, and send again",
                code="agent_not_found",
            )

    def has_room(self, session: Session) -> bool:
        """Whether the session has fewer runs than the limit."""
        return self.keeps_messages(session.key) or _crowd_error(session, self.registry.count_of(session.key)) is None

    def _check_size(self, run_id: str, request: RunRequest) -> None:
        """Raise LimitExceeded if the request would not fit into the accepted record of a queued run.

        That record holds the message and more, so it is larger than the records of a run that starts at once. Both are
        held to the same limit: whether a message is accepted must not depend on whether the session is busy.
        """
        limit = self._store.record_limit
        # A cheap upper bound; only if it exceeds the limit is the record built to get its exact size.
        if len(msgspec.json.encode(request)) + _AROUND_BYTES > limit:
            drafts_of(
                [runs.accepted_record(run_id, request, self._clock.wall_ms(), with_message=True)], self._ids, 0, limit
            )

    def _is_attended(self, agent_id: str) -> bool:
        return self._host.runtime(agent_id) is not None

    def _begin(self, run: Run) -> bool:
        """Make it the session's current run or queue it; whether it starts at once."""
        if not self.stopping and self._is_attended(agent_of(run.key)) and self.queues.begin(run):
            return True
        self.queues.push(run)
        return False

    def _withdraw(self, run: Run) -> None:
        """Remove a run that could not be stored."""
        self.registry.drop(run)
        self.queues.remove_waiting(run)
        self.queues.remove(run)
        run.stored.set()
        run.close()
        self.dispatch()


def _crowd_error(session: Session, live: int) -> Overloaded | None:
    """The error for a session with too many runs; None if it can take one more. `live` counts its live runs."""
    key, most = session.key, MAX_ACCEPTED_RUNS
    # Count all live runs, not only queued ones: an aborted run stays open until its end is on disk.
    if live >= most:
        reason = f"{most} runs of {key} are going on or wait already; wait until some have ended, or abort them"
    elif len(session.entry.runs) >= most:
        reason = (
            f"another program wrote into the transcript of {key} that {most} runs or more are open; restart sessiond,"
            " which ends them"
        )
    else:
        return None
    return Overloaded(f"{reason}, and send again", code="too_many_runs", value=most)


def _accepted_parts(run_id: str, request: RunRequest, at_ms: int, *, at_once: bool) -> list[Part]:
    parts = [runs.accepted_record(run_id, request, at_ms, with_message=not at_once)]
    return [*parts, *runs.started_records(run_id, request, at_ms)] if at_once else parts


def _check_payload(key: str, run_id: str, payload: str | None, wanted: str) -> str:
    if payload != wanted:
        raise Conflict(
            f"the idempotency key {quote(key)} was used before with another payload; use a new key", runId=run_id
        )
    return run_id
