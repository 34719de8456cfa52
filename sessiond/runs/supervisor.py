"""RunSupervisor: accepts runs, starts each when it is its turn, and sees that each gets its only end.

Owns the runs and their nurseries. Does not know methods, callers or who follows what; what comes after a run (a
reply-back, an announcement) is hung in by `at_end` and `after_end`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from sessiond.clock import Clock, Ids
from sessiond.errors import Conflict, SessiondError, StorageError
from sessiond.events.bus import EventBus
from sessiond.model.keys import agent_of
from sessiond.runs import ending, inbox
from sessiond.runs import run as runs
from sessiond.runs.absence import Absences
from sessiond.runs.life import Host, RunLife
from sessiond.runs.places import Places
from sessiond.runs.queues import Queues
from sessiond.runs.registry import Registry
from sessiond.runs.run import Request, Run
from sessiond.sessions.lifecycle import settled
from sessiond.store.catalog import Session
from sessiond.store.store import Part, SessionStore
from sessiond.tasks import lasting_nursery


class RunSupervisor:
    """Every run of this daemon. `run` is its home and belongs to the background nursery.

    `at_end(run)` gives more records for the write that ends a run; `after_end(run)` is what goes on afterwards, and is
    cut off when the daemon stops: what it has to do must be found again in the records. `keeps(key)` says whether the
    messages of a session are kept for its reader (`inbox.py`) instead of being run.
    """

    def __init__(self, store: SessionStore, bus: EventBus, host: Host, clock: Clock, ids: Ids) -> None:
        self._store, self._host, self._clock, self._ids = store, host, clock, ids
        self.registry = Registry(store)
        self.queues = Queues(Places(host.places))
        self._life = RunLife(store, bus, host, clock)
        self._absences = Absences(
            self.queues, attended=self._attended, ttl_s=host.queue_ttl_s, expire=self._expire_unattended
        )
        self._lives: trio.Nursery | None = None
        self._following: trio.Nursery | None = None
        self.at_end: Callable[[Run], Sequence[Part]] = lambda _run: ()
        self.after_end: Callable[[Run], Awaitable[None]] | None = None
        self.keeps: Callable[[str], bool] = lambda _key: False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled; runs still going then are ended as interrupted, queued ones wait for the next start."""
        async with lasting_nursery() as self._lives, trio.open_nursery() as self._following:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self.interrupt_all()

    def interrupt_all(self) -> None:
        """End the runs that are going on as interrupted, while attached agents can still be told."""
        self._life.interrupt(self.registry.live.values())

    @property
    def stopping(self) -> bool:
        """Whether the daemon is on its way down."""
        return self._life.stopping

    def live_runs(self) -> int:
        """How many runs are going on."""
        return len(self.queues.going_on())

    def current(self, key: str) -> Run | None:
        """The run that is going on in a session."""
        return self.queues.current(key)

    def live_by_agent(self) -> dict[str, int]:
        """How many runs each agent lives just now."""
        counts: dict[str, int] = {}
        for run in self.queues.going_on():
            counts[agent_of(run.key)] = counts.get(agent_of(run.key), 0) + 1
        return counts

    def queued_runs(self) -> int:
        """How many wait for their turn."""
        return self.queues.waiting()

    def known(self, session: Session, key: str, payload: str) -> str | None:
        """The run that this idempotency key of the session already has. Conflict where its payload was another."""
        for run in self.registry.of_session(session.key):
            if run.request.idempotency_key == key:
                return _same(key, run.run_id, run.request.payload, payload)
        for keyed in reversed(session.entry.keyed):
            if keyed.key == key:
                return _same(key, keyed.run_id, keyed.payload, payload)
        return None

    async def accept_once(self, session: Session, request: Request) -> str:
        """The id of the run that the request's idempotency key has already, or of a new one; on disk in both cases."""
        if request.idempotency_key is not None and request.payload is not None:
            session = await settled(self._store.catalog, session)
            run_id = self.known(session, request.idempotency_key, request.payload)
            if run_id is not None:
                await self.stored(run_id)
                return run_id
        return (await self.accept(session, request)).run_id

    async def stored(self, run_id: str) -> None:
        """Return when the run is on disk. StorageError where another caller's attempt to put it there failed."""
        run = self.registry.get(run_id)
        if run is not None:
            await run.stored.wait()
            if self.registry.get(run_id) is not run:
                raise StorageError("the message could not be stored; nothing was accepted, send it again")

    async def accept(
        self, session: Session, request: Request, *, run_id: str | None = None, extra: Sequence[Part] = ()
    ) -> Run:
        """Take on a run; on disk when this returns. It starts at once where nothing is before it.

        `run_id` is for who needs to know the id beforehand, `extra` are records that go before it in the same write.
        """
        # Not one await from here until the store has it: a reset that comes now finds the run and ends it.
        session = await settled(self._store.catalog, session)
        run = Run(
            run_id or runs.new_run_id(session.session_id, self._ids.record()), session, request, self._clock.wall_ms()
        )
        self.registry.add(run)
        keeps = self.keeps(session.key)
        at_once = not keeps and self._begin(run)
        own = _accepted_parts(run.run_id, request, run.accepted_at, at_once=at_once)
        if keeps:
            own = inbox.kept(run, self.registry.get)
        try:
            # A caller who goes away meanwhile must not leave a run behind that nobody starts.
            with trio.CancelScope(shield=True):
                await self._store.append(session, [*extra, *own])
        except SessiondError:
            self._withdraw(run)
            raise
        self._accepted(run, at_once=at_once)
        return run

    async def create(
        self, key: str, request: Request, *, cwd: str, spawned_by: str | None = None, extra: Sequence[Part] = ()
    ) -> Run:
        """Make the session of a key nobody else knows, and its first run, in one write: both are there or neither."""
        session_id = self._ids.uuid()
        run_id = runs.new_run_id(session_id, self._ids.record())
        now = self._clock.wall_ms()
        at_once = not self.stopping and self._attended(agent_of(key)) and self.queues.reserve(key)
        parts = [*extra, *_accepted_parts(run_id, request, now, at_once=at_once)]
        try:
            with trio.CancelScope(shield=True):
                session, _ = await self._store.create(
                    key, agent_of(key), parts, cwd=cwd, spawned_by=spawned_by, session_id=session_id
                )
        except SessiondError:
            if at_once:
                self.queues.give_back(key)
            raise
        run = Run(run_id, session, request, now)
        self.registry.add(run)
        if at_once:
            self.queues.hold(run, reserved=True)
        else:
            self.queues.push(run)
        self._accepted(run, at_once=at_once)
        return run

    def restore(self, run: Run) -> None:
        """A run that was accepted before a restart waits for its turn again."""
        self.registry.add(run)
        self.queues.push(run)
        self._accepted(run, at_once=False)

    def interrupt(self, run: Run) -> None:
        """A run that was going on when the daemon ended gets its end; what else its session has waits for that."""
        self.registry.add(run)
        self.queues.hold(run)
        run.stored.set()
        self._start_soon(self._finish, run, ending.interrupted())

    async def stop(self, session: Session, run_id: str | None = None) -> list[str]:
        """Abort the live run and the queued ones of a session, or one of them. Returns when nothing of them is left."""
        stopped = [run for run in self.registry.of_session(session.key) if run_id in (None, run.run_id)]
        for run in stopped:
            if run.ended:
                continue  # its end is being written
            run.stop_as = run.stop_as or "aborted"
            if run.scope is not None:
                run.scope.cancel()
            elif self.queues.take(run):
                self._start_soon(self._finish_unstarted, run, ending.aborted())
        for run in stopped:
            await run.done.wait()
        return [run.run_id for run in stopped if run.status == "aborted"]

    def park(self, run: Run, waits_for: str) -> None:
        """The run waits for another one, and leaves its place to others meanwhile."""
        self.queues.park(run, waits_for)
        self.dispatch()

    def unpark(self, run: Run, waits_for: str) -> None:
        """The wait is over."""
        self.queues.unpark(run, waits_for)

    def dispatch(self) -> None:
        """Start what may start: after a run ended, and when an agent came or the configuration changed."""
        while not self.stopping and (run := self.queues.next(self._attended)) is not None:
            self._start_soon(self._live, run, False)

    def agents_changed(self) -> None:
        """An agent came or left: start what may start now, and count the time of what has to wait."""
        self.dispatch()
        for agent_id in self.queues.waiting_agents():
            self._look(agent_id)

    def follow(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start what goes on beside the runs; it ends when the daemon stops."""
        if not self.stopping:
            assert self._following is not None, "the supervisor is not running"
            self._following.start_soon(function, *args)

    def _attended(self, agent_id: str) -> bool:
        return self._host.runtime(agent_id) is not None

    def _look(self, agent_id: str) -> None:
        if self._absences.look(agent_id):
            self.follow(self._absences.watch, agent_id)

    def _expire_unattended(self, run: Run, ttl_s: float) -> None:
        sentence = f"agent {agent_of(run.key)} was not attached within {ttl_s:g} s; start it and send again"
        self._start_soon(self._finish_unstarted, run, ending.failed(sentence))

    def _start_soon(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        assert self._lives is not None, "the supervisor is not running"
        self._lives.start_soon(function, *args)

    def _begin(self, run: Run) -> bool:
        """Whether the run starts at once; else it waits from now on."""
        if not self.stopping and self._attended(agent_of(run.key)) and self.queues.begin(run):
            return True
        self.queues.push(run)
        return False

    def _accepted(self, run: Run, *, at_once: bool) -> None:
        run.stored.set()
        if run.ended:  # it was kept, and that was all
            self.registry.end(run)
            run.done.set()
        elif at_once:
            run.status, run.started_at = "running", run.accepted_at
            self._start_soon(self._live, run, True)
        else:
            self.dispatch()
            self._look(agent_of(run.key))

    def _withdraw(self, run: Run) -> None:
        """The run could not be stored: it never was."""
        self.registry.drop(run)
        self.queues.take(run)
        self.queues.leave(run)
        run.stored.set()
        run.done.set()
        self.dispatch()

    async def _live(self, run: Run, begun: bool) -> None:
        await run.stored.wait()
        if self.registry.get(run.run_id) is run:  # else accepting it failed, and whoever asked knows
            await self._finish(run, await self._life.turn(run, begun=begun))

    async def _finish_unstarted(self, run: Run, end: ending.Ending) -> None:
        await run.stored.wait()
        if self.registry.get(run.run_id) is run:
            await self._finish(run, end)

    async def _finish(self, run: Run, end: ending.Ending) -> None:
        """Write the run's only end, then let everyone know."""
        await self._life.end(run, end, self.at_end)
        self.registry.end(run)
        self._host.retire(run)
        run.done.set()
        self.queues.leave(run)
        self.dispatch()
        if self.after_end is not None:
            self.follow(self.after_end, run)


def _accepted_parts(run_id: str, request: Request, at_ms: int, *, at_once: bool) -> list[Part]:
    parts = [runs.accepted(run_id, request, at_ms, with_message=not at_once)]
    return [*parts, *runs.started(run_id, request, at_ms)] if at_once else parts


def _same(key: str, run_id: str, payload: str | None, wanted: str) -> str:
    if payload != wanted:
        raise Conflict(f"the idempotency key {key!r} was used before with another payload; use a new key", runId=run_id)
    return run_id
