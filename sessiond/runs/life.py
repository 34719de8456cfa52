"""One run from its start to its only end: the records of both, the runtime between them, the limit of time.

Knows the runtime and the transcript. Does not know what else waits or who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import structlog
import trio

from sessiond.clock import Clock
from sessiond.errors import SessiondError, Stopping, StorageError
from sessiond.events.bus import EventBus
from sessiond.model.keys import agent_of
from sessiond.runs import ending
from sessiond.runs import run as runs
from sessiond.runs.run import INTERRUPTED, Run
from sessiond.runs.runtime import Outcome, RunSpec, Runtime
from sessiond.runs.sink import TranscriptSink
from sessiond.store.store import Part, SessionStore

log = structlog.get_logger("sessiond.runs")

# A disk that refuses the end of a run is tried again at this pace; the session waits for it.
RETRY_S = (0.5, 1.0, 2.0, 5.0)


class Host(Protocol):
    """What runs ask of the configuration and the machine."""

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


class RunLife:
    """Lives runs. `stopping` is set when the daemon ends: then nothing is started and nothing is tried again."""

    def __init__(self, store: SessionStore, bus: EventBus, host: Host, clock: Clock) -> None:
        self._store, self._bus, self._host, self._clock = store, bus, host, clock
        self.stopping = False

    def interrupt(self, live: Iterable[Run]) -> None:
        """The daemon ends: so do the runs that are going on, and nothing more is started."""
        self.stopping = True
        for run in list(live):
            if run.scope is not None:
                run.stop_as = run.stop_as or INTERRUPTED
                run.scope.cancel()

    async def turn(self, run: Run, *, begun: bool) -> ending.Ending:
        """The run from its start to what it came to. `begun`: its start is on record. Cancelled: it was stopped."""
        end: ending.Ending | None = None
        with trio.CancelScope() as run.scope:
            if run.stop_as is not None or self.stopping:
                run.stop_as = run.stop_as or INTERRUPTED
                run.scope.cancel()
            end = await self._turn(run, begun=begun)
        return end or (ending.interrupted() if run.stop_as == INTERRUPTED else ending.aborted())

    async def _turn(self, run: Run, *, begun: bool) -> ending.Ending:
        """One turn of the agent. Whatever goes wrong in it is its result."""
        try:
            if not begun:
                await self._begin(run)
            runtime = self._host.runtime(agent_of(run.key))
            if runtime is None:
                return ending.failed(f"agent {agent_of(run.key)} left before the run began")
            sink = TranscriptSink(self._store, self._bus, run)
            limit_s = run.request.timeout_s
            with trio.move_on_after(limit_s or float("inf")):
                outcome: Outcome = await runtime.run(self._host.spec(run), sink)
                return ending.of(outcome, sink.said)
            return ending.timed_out(limit_s or 0)
        except SessiondError as error:
            return ending.failed(error.message)
        except Exception:
            log.exception("run failed inside the daemon", run_id=run.run_id, session_key=run.key)
            return ending.failed("internal error in sessiond; its log says more")

    async def _begin(self, run: Run) -> None:
        now = self._clock.wall_ms()
        await trio.lowlevel.checkpoint_if_cancelled()
        # Once asked for, a write is not undone by a cancellation: whoever stops the run finds it started.
        with trio.CancelScope(shield=True):
            await self._store.append(run.session, runs.started(run.run_id, run.request, now))
        run.status, run.started_at = "running", now

    async def end(self, run: Run, end: ending.Ending, more: Callable[[Run], Sequence[Part]]) -> None:
        """Write the run's only end, and `more(run)` with it. Returns when both are on disk, or the daemon stops."""
        self._settle(run, end)
        with trio.CancelScope(shield=True):
            for attempt in range(1_000_000):
                assert run.ended_at is not None
                try:
                    parts = [*ending.parts(run, end, run.ended_at, self._host.price(run)), *more(run)]
                    await self._store.append(run.session, parts)
                    return
                except Stopping:
                    return  # the next start finds the run without an end and writes one
                except StorageError as error:
                    if self.stopping:
                        return
                    log.warning("the end of a run could not be written", run_id=run.run_id, reason=error.message)
                except SessiondError as error:
                    # The reply is what cannot be stored: too long, or nothing that could be read again.
                    end = ending.failed(f"the reply cannot be stored: {error.message}")
                    self._settle(run, end)
                    continue
                await trio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])

    def _settle(self, run: Run, end: ending.Ending) -> None:
        run.status, run.reply, run.error, run.usage = end.status, end.reply, end.error, end.usage
        run.ended_at = run.ended_at or self._clock.wall_ms()
