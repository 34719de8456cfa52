"""RunSupervisor: accepts runs, starts each when it is its turn, and writes each one's only end.

One run at a time in a session, in the order of acceptance; only so many in all. Owns the runs and their nursery. Does
not know methods, callers or who follows what; what comes after a run (a reply-back, an announcement) is hung in by
`at_end` and `after_end`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog
import trio

from sessiond.clock import Clock, Ids
from sessiond.errors import Conflict, SessiondError, Stopping, StorageError
from sessiond.events.bus import EventBus
from sessiond.model.keys import agent_of
from sessiond.runs import ending
from sessiond.runs import run as runs
from sessiond.runs.places import Places
from sessiond.runs.registry import Registry
from sessiond.runs.run import INTERRUPTED, Request, Run
from sessiond.runs.runtime import Outcome, RunSpec, Runtime
from sessiond.runs.sink import TranscriptSink
from sessiond.store.catalog import Session
from sessiond.store.store import Part, SessionStore
from sessiond.tasks import lasting_nursery

log = structlog.get_logger("sessiond.runs")

# A disk that refuses the end of a run is tried again at this pace; the session waits for it.
_RETRY_S = (0.5, 1.0, 2.0, 5.0)


class Host(Protocol):
    """What the supervisor asks of the configuration and the machine."""

    def runtime(self, agent_id: str) -> Runtime | None:
        """The agent's runtime; None while nobody runs this agent (it is not attached)."""

    def spec(self, run: Run) -> RunSpec:
        """What the runtime is told. Makes the workspace and the token of the run."""

    def retire(self, run: Run) -> None:
        """The run is over: its token is dead."""

    def places(self) -> tuple[int, int]:
        """How many runs may go on at once: of sub-agents' sessions the second number."""

    def queue_ttl_s(self) -> float:
        """How long a run waits for an agent that is not attached."""

    def price(self, run: Run) -> float | None:
        """What the run cost by the configured prices; None where they do not say."""


class _Queue:
    __slots__ = ("current", "waiting")

    def __init__(self) -> None:
        self.current: Run | None = None
        self.waiting: deque[Run] = deque()


class RunSupervisor:
    """Every run of this daemon. `run` is its home and belongs to the background nursery."""

    def __init__(self, store: SessionStore, bus: EventBus, host: Host, clock: Clock, ids: Ids) -> None:
        self._store, self._bus, self._host, self._clock, self._ids = store, bus, host, clock, ids
        self.registry = Registry(store)
        self._places = Places(host.places)
        self._queues: dict[str, _Queue] = {}
        # Sessions with something waiting, in the order in which it was accepted.
        self._ready: dict[str, None] = {}
        self._nursery: trio.Nursery | None = None
        self._stopping = False
        # More records for the write that ends a run, and what goes on afterwards, in the runs' nursery.
        self.at_end: Callable[[Run], Sequence[Part]] = lambda _run: ()
        self.after_end: Callable[[Run], Awaitable[None]] | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled; runs still going then are ended as interrupted, queued ones wait for the next start."""
        async with lasting_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._stopping = True
                for run in list(self.registry.live.values()):
                    if run.scope is not None:
                        run.stop_as = run.stop_as or INTERRUPTED
                        run.scope.cancel()

    def live_runs(self) -> int:
        """How many runs are going on."""
        return sum(queue.current is not None for queue in self._queues.values())

    def current(self, key: str) -> Run | None:
        """The run that is going on in a session."""
        queue = self._queues.get(key)
        return queue.current if queue is not None else None

    def live_by_agent(self) -> dict[str, int]:
        """How many runs each agent lives just now."""
        counts: dict[str, int] = {}
        for key, queue in self._queues.items():
            if queue.current is not None:
                counts[agent_of(key)] = counts.get(agent_of(key), 0) + 1
        return counts

    def queued_runs(self) -> int:
        """How many wait for their turn."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    def known(self, session: Session, key: str, payload: str) -> str | None:
        """The run that this idempotency key of the session already has. Conflict where its payload was another."""
        for run in self.registry.of_session(session.key):
            if run.request.idempotency_key == key:
                return self._same(key, run.run_id, run.request.payload, payload)
        for keyed in reversed(session.entry.keyed):
            if keyed.key == key:
                return self._same(key, keyed.run_id, keyed.payload, payload)
        return None

    @staticmethod
    def _same(key: str, run_id: str, payload: str | None, wanted: str) -> str:
        if payload != wanted:
            raise Conflict(
                f"the idempotency key {key!r} was used before with another payload; use a new key", runId=run_id
            )
        return run_id

    async def accept(
        self, session: Session, request: Request, *, run_id: str | None = None, first: bool = False
    ) -> Run:
        """Take on a run; on disk when this returns. It starts at once where nothing is before it.

        `first` puts it before everything that waits. `run_id` is for who needs to know the id beforehand.
        """
        run_id = run_id or runs.new_run_id(session.session_id, self._ids.record())
        run = Run(run_id, session, request, self._clock.wall_ms())
        self.registry.add(run)
        queue = self._queues.setdefault(session.key, _Queue())
        at_once = queue.current is None and not queue.waiting and self._may_start(session.key)
        parts = [runs.accepted(run_id, request, run.accepted_at, with_message=not at_once)]
        if at_once:
            self._occupy(queue, run)
            parts += runs.started(run_id, request, run.accepted_at)
        elif first:
            queue.waiting.appendleft(run)
        else:
            queue.waiting.append(run)
        try:
            await self._store.append(session, parts)
        except SessiondError:
            self._withdraw(queue, run, placed=at_once)
            raise
        self._accepted(queue, run, at_once=at_once)
        return run

    async def create(
        self, key: str, request: Request, *, cwd: str, spawned_by: str | None = None, extra: Sequence[Part] = ()
    ) -> Run:
        """Make the session of a key nobody else knows, and its first run, in one write: both are there or neither."""
        session_id = self._ids.uuid()
        run_id = runs.new_run_id(session_id, self._ids.record())
        now = self._clock.wall_ms()
        at_once = self._may_start(key)
        parts = [*extra, runs.accepted(run_id, request, now, with_message=not at_once)]
        if at_once:
            self._places.take(key)
            parts += runs.started(run_id, request, now)
        try:
            session, _ = await self._store.create(
                key, agent_of(key), parts, cwd=cwd, spawned_by=spawned_by, session_id=session_id
            )
        except SessiondError:
            if at_once:
                self._places.give(key)
            raise
        run = Run(run_id, session, request, now)
        self.registry.add(run)
        queue = self._queues.setdefault(key, _Queue())
        if at_once:
            queue.current = run
        else:
            queue.waiting.append(run)
        self._accepted(queue, run, at_once=at_once)
        return run

    def restore(self, run: Run) -> None:
        """A run accepted before a restart waits again."""
        self.registry.add(run)
        queue = self._queues.setdefault(run.key, _Queue())
        queue.waiting.append(run)
        self._accepted(queue, run, at_once=False)

    async def interrupt(self, run: Run) -> None:
        """A run that was going on when the daemon ended: give it its end."""
        self.registry.add(run)
        run.stored.set()
        await self._finish(run, ending.interrupted())

    async def stop(self, session: Session, run_id: str | None = None) -> list[str]:
        """Abort the live run and the queued ones of a session, or one of them. Returns when nothing of them is left."""
        stopped = [run for run in self.registry.of_session(session.key) if run_id in (None, run.run_id)]
        queue = self._queues.get(session.key)
        for run in stopped:
            run.stop_as = run.stop_as or "aborted"
            if run.scope is not None:
                run.scope.cancel()
            elif queue is not None and run in queue.waiting:
                queue.waiting.remove(run)
                self._start_soon(self._finish_unstarted, run, ending.aborted())
        for run in stopped:
            await run.done.wait()
        return [run.run_id for run in stopped]

    def park(self, run: Run, waits_for: str) -> None:
        """The run waits for another one, and leaves its place to others meanwhile."""
        run.parked += 1
        run.waits_for.add(waits_for)
        if run.parked == 1 and not run.ended:
            self._places.give(run.key)
            self.dispatch()

    def unpark(self, run: Run, waits_for: str) -> None:
        """The wait is over."""
        run.parked -= 1
        run.waits_for.discard(waits_for)
        if run.parked == 0 and not run.ended:
            self._places.take(run.key)

    def dispatch(self) -> None:
        """Start what may start: after a run ended, and when an agent came."""
        for key in list(self._ready):
            queue = self._queues[key]
            if not queue.waiting:
                del self._ready[key]
            elif queue.current is None and self._may_start(key):
                run = queue.waiting.popleft()
                self._occupy(queue, run)
                self._start_soon(self._live, run, False)

    def _start_soon(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        assert self._nursery is not None, "the supervisor's nursery is not open"
        self._nursery.start_soon(function, *args)

    def _may_start(self, key: str) -> bool:
        return not self._stopping and self._places.free(key) and self._host.runtime(agent_of(key)) is not None

    def _occupy(self, queue: _Queue, run: Run) -> None:
        queue.current = run
        self._places.take(run.key)

    def _accepted(self, queue: _Queue, run: Run, *, at_once: bool) -> None:
        run.stored.set()
        if at_once:
            run.status, run.started_at = "running", run.accepted_at
            self._start_soon(self._live, run, True)
            return
        if run in queue.waiting:
            self._ready[run.key] = None
            if self._host.runtime(agent_of(run.key)) is None:
                self._start_soon(self._expire, run)
            self.dispatch()

    def _withdraw(self, queue: _Queue, run: Run, *, placed: bool) -> None:
        """The run could not be stored: it never was."""
        self.registry.drop(run)
        run.stored.set()
        if run in queue.waiting:
            queue.waiting.remove(run)
        if placed:
            self._free(run)

    def _free(self, run: Run) -> None:
        queue = self._queues[run.key]
        if queue.current is run:
            queue.current = None
            if not run.parked:
                self._places.give(run.key)
        if queue.current is None and not queue.waiting:
            del self._queues[run.key]
            self._ready.pop(run.key, None)
        self.dispatch()

    async def _expire(self, run: Run) -> None:
        ttl_s = self._host.queue_ttl_s()
        with trio.move_on_after(ttl_s):
            await run.done.wait()
        queue = self._queues.get(run.key)
        if not run.ended and queue is not None and run in queue.waiting:
            agent_id = agent_of(run.key)
            if self._host.runtime(agent_id) is None:
                queue.waiting.remove(run)
                sentence = f"agent {agent_id} was not attached within {ttl_s:g} s; start it and send again"
                await self._finish_unstarted(run, ending.failed(sentence))

    async def _finish_unstarted(self, run: Run, end: ending.Ending) -> None:
        await run.stored.wait()
        await self._finish(run, end)

    async def _live(self, run: Run, at_once: bool) -> None:
        end: ending.Ending | None = None
        with trio.CancelScope() as scope:
            run.scope = scope
            if run.stop_as is not None or self._stopping:
                run.stop_as = run.stop_as or INTERRUPTED
                scope.cancel()
            if not at_once:
                await run.stored.wait()
            if self.registry.get(run.run_id) is not run:
                self._free(run)  # accepting it failed, and whoever asked knows
                return
            end = await self._turn(run, at_once=at_once)
        await self._finish(run, end or (ending.interrupted() if run.stop_as == INTERRUPTED else ending.aborted()))

    async def _turn(self, run: Run, *, at_once: bool) -> ending.Ending:
        """One turn of the agent. Whatever goes wrong in it is its result."""
        try:
            if not at_once:
                now = self._clock.wall_ms()
                await self._store.append(run.session, runs.started(run.run_id, run.request, now))
                run.status, run.started_at = "running", now
            runtime = self._host.runtime(agent_of(run.key))
            if runtime is None:
                return ending.failed(f"agent {agent_of(run.key)} left before the run began")
            sink = TranscriptSink(self._store, self._bus, run)
            limit_s = run.request.timeout_s
            with trio.move_on_after(limit_s or float("inf")):
                outcome: Outcome = await runtime.run(self._host.spec(run), sink)
                return ending.of(outcome, wrote_reply=sink.reply_id)
            return ending.timed_out(limit_s or 0)
        except SessiondError as error:
            return ending.failed(error.message)
        except Exception:
            log.exception("run failed inside the daemon", run_id=run.run_id, session_key=run.key)
            return ending.failed("internal error in sessiond; its log says more")

    async def _finish(self, run: Run, end: ending.Ending) -> None:
        """Write the run's only end, then let everyone know."""
        now = self._clock.wall_ms()
        run.status, run.reply, run.error, run.usage, run.ended_at = end.status, end.reply, end.error, end.usage, now
        with trio.CancelScope(shield=True):
            parts = [*ending.parts(run, end, now, self._host.price(run)), *self.at_end(run)]
            await self._write_end(run, parts)
        self.registry.end(run)
        self._host.retire(run)
        run.done.set()
        if run.key in self._queues:
            self._free(run)
        if self.after_end is not None and not self._stopping:
            await self.after_end(run)

    async def _write_end(self, run: Run, parts: Sequence[Part]) -> None:
        for attempt in range(1_000_000):
            try:
                await self._store.append(run.session, parts)
                return
            except Stopping:
                return  # the next start finds the run without an end and writes one
            except StorageError as error:
                if self._stopping:
                    return
                log.warning("the end of a run could not be written", run_id=run.run_id, reason=error.message)
            await trio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
