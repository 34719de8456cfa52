"""Execute one run: write its start, run the agent's turn within the time limit, write its end.

Knows the runtime and the transcript. Does not know queues or callers.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
from sessiond.runs.asking import RunQuestions
from sessiond.runs.persistence import Persistence, TranscriptGone
from sessiond.runs.run import INTERRUPTED, Run
from sessiond.runs.transcript_sink import TranscriptSink
from sessiond.runtimes.runtime import AgentAway, RunOutcome, RunSpec, Runtime, Shortage
from sessiond.store.store import Part, SessionStore

log = structlog.get_logger("sessiond.runs")

# What has to be on disk before the end of a run is. It does not raise.
BeforeEnd = Callable[[Run], Awaitable[None]]
# The pause before a run is started again after the machine ran out of descriptors, processes or memory.
_SHORTAGE_PAUSE_S = 1.0


class Host(Protocol):
    """What runs need of the configuration and the machine."""

    def runtime(self, agent_id: str) -> Runtime | None:
        """The agent's runtime; None while an attached agent has no connection."""

    def spec(self, run: Run) -> RunSpec:
        """The RunSpec of the run. Creates its workspace and its token file."""

    def knows_agent(self, agent_id: str) -> bool:
        """Whether the agent is configured, or was attached."""

    def keeps_messages(self, key: str) -> bool:
        """Whether messages to this session are kept in its inbox (`inbox.py`) and start no run."""

    def understands_steps(self, agent_id: str) -> bool:
        """Whether the agent can tell an announce step from a message."""

    def retire(self, run: Run) -> None:
        """Invalidate the token of a run that has ended."""

    def slot_limits(self) -> tuple[int, int]:
        """How many runs may execute at once: `(of other sessions, of sub-agents' sessions)`."""

    def is_light(self, agent_id: str) -> bool:
        """Whether the agent's runs start nothing and are over at once."""

    def is_resumable(self, agent_id: str) -> bool:
        """Whether the agent stands for another machine: its runs stay open over restarts, and are asked for again."""

    def leave_open(self) -> None:
        """The daemon stops: what resumable agents have begun goes on there."""

    def queue_ttl_s(self) -> float:
        """How long a run waits for its attached agent to connect, in seconds."""

    def price(self, run: Run) -> float | None:
        """The cost of the run by the configured prices, in US dollars; None if unknown."""


class UnendedRun(enum.Enum):
    """Why a turn did not end the run. `OPEN`: the daemon stops before the start is on disk, or another machine has the
    run; it stays as it is on disk, and the next start of the daemon goes on with it. `UNATTENDED`: no agent is
    attached; the run waits for one.
    """

    OPEN = enum.auto()
    UNATTENDED = enum.auto()


class RunExecutor:
    """Executes runs. After `interrupt` none is started and nothing is retried."""

    def __init__(self, store: SessionStore, bus: EventBus, host: Host, clock: Clock, questions: RunQuestions) -> None:
        self._store, self._bus, self._host, self._clock, self._questions = store, bus, host, clock, questions
        self.persistence = Persistence(store)

    @property
    def stopping(self) -> bool:
        """Whether the daemon is shutting down."""
        return self.persistence.stopping

    def interrupt(self, live: Iterable[Run]) -> None:
        """The daemon is shutting down: cancel the executing runs and start no more."""
        self.persistence.stop()
        self._host.leave_open()
        for run in list(live):
            if run.scope is not None:
                run.stop_as = run.stop_as or INTERRUPTED
                run.scope.cancel()

    async def execute(self, run: Run) -> ending.RunEnd | UnendedRun:
        """Execute the run; how it ended, or why it did not."""
        end: ending.RunEnd | UnendedRun | None = None
        with trio.CancelScope() as run.scope:
            if run.stop_as is not None or self.stopping:
                run.stop_as = run.stop_as or INTERRUPTED
                run.scope.cancel()
            end = await self._execute_turn(run)
        run.scope = None
        # Also those that a connection asks in the name of the run, which does not end with it.
        await self._questions.withdraw_of(run)
        if end is not None:
            return end
        match run.stop_as:
            case "interrupted":
                return self._cut_off(run)
            case "lost":
                return ending.transcript_lost_end(run.key)
            case _:
                return ending.aborted_end(by_reset=run.by_reset)

    def _cut_off(self, run: Run) -> ending.RunEnd | UnendedRun:
        """What becomes of a run when the daemon stops."""
        is_over = run.begun and not self._host.is_resumable(agent_of(run.key))
        return ending.interrupted_end() if is_over else UnendedRun.OPEN

    def _time_left_s(self, run: Run) -> float:
        """How long the turn may take. That of another machine may have been asked for before, perhaps days ago."""
        limit_s = run.request.timeout_s
        if not limit_s:
            return float("inf")
        if run.started_at is None or not self._host.is_resumable(agent_of(run.key)):
            return limit_s
        return max(0.0, limit_s - (self._clock.wall_ms() - run.started_at) / 1000)

    def end_unattended(self, run: Run) -> ending.RunEnd | None:
        """The end of a run that was stopped while its agent went away; None if it stays open, as the daemon stops."""
        if run.stop_as in ("aborted", "reset"):
            return ending.aborted_end(by_reset=run.by_reset)
        if run.stop_as == INTERRUPTED and self._cut_off(run) is UnendedRun.OPEN:
            return None
        return ending.interrupted_end()

    async def _execute_turn(self, run: Run) -> ending.RunEnd | UnendedRun:
        """Execute one turn of the agent. Errors in it are returned as its end, not raised."""
        try:
            if not run.begun:
                await self._begin(run)
            runtime = self._host.runtime(agent_of(run.key))
            if runtime is None:
                return UnendedRun.UNATTENDED
            sink = TranscriptSink(self._store, self._bus, run, self._clock, self._questions)
            with trio.move_on_after(self._time_left_s(run)):
                return ending.end_of_turn(await self._run_turn(runtime, run, sink), sink.reply_so_far)
            return ending.timeout_end(run.request.timeout_s or 0)
        except AgentAway:
            return UnendedRun.UNATTENDED
        except Stopping:
            return self._cut_off(run)
        except TranscriptGone:
            return ending.transcript_lost_end(run.key)
        except SessiondError as error:
            return ending.failed_end(error.message)
        except Exception:
            log.exception("run failed inside the daemon", run_id=run.run_id, session_key=run.key)
            return ending.failed_end("internal error in sessiond; its log says more")

    async def _run_turn(self, runtime: Runtime, run: Run, sink: TranscriptSink) -> RunOutcome:
        """The outcome of the turn. Retried for as long as the machine lacks the resources to start it."""
        while True:
            try:
                return await runtime.run(self._host.spec(run), sink)
            except Shortage as error:
                log.warning("a run cannot start; it is retried", run_id=run.run_id, reason=str(error))
                await trio.sleep(_SHORTAGE_PAUSE_S)

    async def _begin(self, run: Run) -> None:
        """Write the run's start to disk, and only then mark it as begun."""
        await trio.lowlevel.checkpoint_if_cancelled()
        now = self._clock.wall_ms()

        async def write() -> None:
            # A write cannot be undone: if the run is cancelled meanwhile, it is a run that has started.
            with trio.CancelScope(shield=True):
                await self._store.append(run.session, runs.started_records(run.run_id, run.request, now))
            run.status, run.started_at = "running", now

        await self.persistence.retry_until_stored(
            self.persistence.raise_when_gone(run.session, write), "the start of a run", run_id=run.run_id
        )

    async def write_end(
        self, run: Run, end: ending.RunEnd, more: Callable[[Run], Sequence[Part]], *, before: BeforeEnd | None = None
    ) -> bool:
        """Write the run's end together with `more(run)`; whether that was done, or the transcript is gone.

        `before(run)` is done before each attempt, when the run has the end that is attempted. False: the daemon stops
        before the disk accepts the end; recovery writes one at the next start. Never cancelled: it runs outside the
        turn's cancel scope, in a detached nursery.
        """
        while True:
            self._settle(run, end)
            if before is not None:
                await before(run)
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
                if before is not None:
                    await before(run)
                return True
            except SessiondError as error:
                # The reply cannot be stored: it is too long, or could not be read back. The printed
                # output is dropped too, because it may be what the disk refuses.
                run.text_so_far.clear()
                end = ending.failed_end(f"the reply cannot be stored: {error.message}")

    def _end_parts(self, run: Run, end: ending.RunEnd, more: Callable[[Run], Sequence[Part]]) -> Sequence[Part]:
        assert run.ended_at is not None
        return [*ending.end_records(run, end, run.ended_at, self._host.price(run)), *more(run)]

    def _settle(self, run: Run, end: ending.RunEnd) -> None:
        run.status, run.reply, run.error, run.usage = end.status, end.reply, end.error, end.usage
        run.model, run.stop_reason = end.model, end.stop_reason
        run.ended_at = run.ended_at or self._clock.wall_ms()
