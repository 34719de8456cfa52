"""One run from its start to its only end: the records of both, the runtime between them, the limit of time.

Knows the runtime and the transcript. Does not know what else waits or who asked.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import structlog
import trio

from sessiond.clock import Clock
from sessiond.errors import SessiondError, Stopping
from sessiond.events.bus import EventBus
from sessiond.model.keys import agent_of
from sessiond.runs import run as runs
from sessiond.runs import run_end as ending
from sessiond.runs.persistence import Persistence, TranscriptGone
from sessiond.runs.run import INTERRUPTED, Run
from sessiond.runs.transcript_sink import TranscriptSink
from sessiond.runtimes.runtime import AgentAway, RunOutcome, RunSpec, Runtime, Shortage
from sessiond.store.store import Part, SessionStore

log = structlog.get_logger("sessiond.runs")

# A lack of descriptors passes quickly or lasts; looking costs little.
_SHORTAGE_S = 1.0


class Host(Protocol):
    """What runs ask of the configuration and the machine."""

    def runtime(self, agent_id: str) -> Runtime | None:
        """The agent's runtime; None while nobody runs this agent (it is not attached)."""

    def spec(self, run: Run) -> RunSpec:
        """What the runtime is told. Makes the workspace and the token of the run."""

    def knows(self, agent_id: str) -> bool:
        """Whether anybody could run this agent: it is configured, or attached."""

    def keeps(self, key: str) -> bool:
        """Whether the messages of a session are kept for its reader (`inbox.py`) instead of being run."""

    def hears_steps(self, agent_id: str) -> bool:
        """Whether the agent is told what a run is for. One that is not would answer an announce step like a message."""

    def retire(self, run: Run) -> None:
        """The run is over: its token is dead."""

    def places(self) -> tuple[int, int]:
        """How many runs may go on at once: of sub-agents' sessions the second number."""

    def queue_ttl_s(self) -> float:
        """How long a run waits for an agent that is not attached."""

    def price(self, run: Run) -> float | None:
        """What the run cost by the configured prices; None where they do not say."""


class UnendedRun(enum.Enum):
    """A turn that came to no end. `ACCEPTED`: the daemon stops before the start was on record, so the run stays
    accepted and starts in the next life. `UNATTENDED`: nobody runs its agent just now, so it waits for somebody.
    """

    ACCEPTED = enum.auto()
    UNATTENDED = enum.auto()


class RunExecutor:
    """Lives runs. Once it was told to stop nothing is started and nothing is tried again."""

    def __init__(self, store: SessionStore, bus: EventBus, host: Host, clock: Clock) -> None:
        self._store, self._bus, self._host, self._clock = store, bus, host, clock
        self.persistence = Persistence(store)

    @property
    def stopping(self) -> bool:
        """Whether the daemon is on its way down."""
        return self.persistence.stopping

    def interrupt(self, live: Iterable[Run]) -> None:
        """The daemon ends: so do the runs that are going on, and nothing more is started."""
        self.persistence.stop()
        for run in list(live):
            if run.scope is not None:
                run.stop_as = run.stop_as or INTERRUPTED
                run.scope.cancel()

    async def turn(self, run: Run) -> ending.RunEnd | UnendedRun:
        """The run from its start to what it came to."""
        end: ending.RunEnd | UnendedRun | None = None
        with trio.CancelScope() as run.scope:
            if run.stop_as is not None or self.stopping:
                run.stop_as = run.stop_as or INTERRUPTED
                run.scope.cancel()
            end = await self._turn(run)
        run.scope = None
        if end is not None:
            return end
        match run.stop_as:
            case "interrupted":
                return ending.interrupted_end() if run.begun else UnendedRun.ACCEPTED
            case "lost":
                return ending.transcript_lost_end(run.key)
            case _:
                return ending.aborted_end(by_reset=run.by_reset)

    async def _turn(self, run: Run) -> ending.RunEnd | UnendedRun:
        """One turn of the agent. Whatever goes wrong in it is its result."""
        try:
            if not run.begun:
                await self._begin(run)
            runtime = self._host.runtime(agent_of(run.key))
            if runtime is None:
                return UnendedRun.UNATTENDED
            sink = TranscriptSink(self._store, self._bus, run, self._clock)
            limit_s = run.request.timeout_s
            with trio.move_on_after(limit_s or float("inf")):
                return ending.end_of_turn(await self._reach(runtime, run, sink), sink.said)
            return ending.timeout_end(limit_s or 0)
        except AgentAway:
            return UnendedRun.UNATTENDED
        except Stopping:
            return ending.interrupted_end() if run.begun else UnendedRun.ACCEPTED
        except TranscriptGone:
            return ending.transcript_lost_end(run.key)
        except SessiondError as error:
            return ending.failed_end(error.message)
        except Exception:
            log.exception("run failed inside the daemon", run_id=run.run_id, session_key=run.key)
            return ending.failed_end("internal error in sessiond; its log says more")

    async def _reach(self, runtime: Runtime, run: Run, sink: TranscriptSink) -> RunOutcome:
        """What the runtime made of the turn, which waits while the machine has nothing left to start it with."""
        while True:
            try:
                return await runtime.run(self._host.spec(run), sink)
            except Shortage as error:
                log.warning("a run cannot start just now; tried again", run_id=run.run_id, reason=str(error))
                await trio.sleep(_SHORTAGE_S)

    async def _begin(self, run: Run) -> None:
        """Put the start on record; only this says that a run has begun."""
        await trio.lowlevel.checkpoint_if_cancelled()
        now = self._clock.wall_ms()

        async def write() -> None:
            # Once asked for, a write is not undone by a cancellation: whoever stops the run finds it started.
            with trio.CancelScope(shield=True):
                await self._store.append(run.session, runs.started_records(run.run_id, run.request, now))
            run.status, run.started_at = "running", now

        await self.persistence.retry_until_stored(
            self.persistence.tell_when_gone(run.session, write), "the start of a run", run_id=run.run_id
        )

    async def end(self, run: Run, end: ending.RunEnd, more: Callable[[Run], Sequence[Part]]) -> bool:
        """Write the run's only end, and `more(run)` with it; whether it is over. False: the daemon stops before the
        disk takes the end, and the next start writes one. Where there is no transcript any more it is over at once.
        Nobody cancels it: it is outside the turn's scope, in a nursery that lasts until its tasks have ended.
        """
        while True:
            self._settle(run, end)
            compose = partial(self._end_parts, run, end, more)
            try:
                await self.persistence.append(
                    run.session, compose, "the end of a run", refused=run.note_refusal, run_id=run.run_id
                )
                return True
            except Stopping:
                return False
            except TranscriptGone:
                log.warning("a run ended without its transcript", run_id=run.run_id, session_key=run.key)
                self._settle(run, ending.transcript_lost_end(run.key))
                return True
            except SessiondError as error:
                # The reply is what cannot be stored: too long, or nothing that could be read again.
                end = ending.failed_end(f"the reply cannot be stored: {error.message}")

    def _end_parts(self, run: Run, end: ending.RunEnd, more: Callable[[Run], Sequence[Part]]) -> Sequence[Part]:
        assert run.ended_at is not None
        return [*ending.parts(run, end, run.ended_at, self._host.price(run)), *more(run)]

    def _settle(self, run: Run, end: ending.RunEnd) -> None:
        run.status, run.reply, run.error, run.usage = end.status, end.reply, end.error, end.usage
        run.model = end.model
        run.ended_at = run.ended_at or self._clock.wall_ms()
