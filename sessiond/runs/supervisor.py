"""RunSupervisor: starts each accepted run when its turn comes, and makes sure that each gets exactly one end.

Owns the runs and their nurseries; `acceptance.py` accepts them. Does not know methods or callers. What follows a run (a
reply-back, an announcement) is done by its AfterRuns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

import structlog
import trio

from sessiond.clock import Clock, Ids
from sessiond.errors import StorageError
from sessiond.events.bus import EventBus
from sessiond.model.entry import LiveRun
from sessiond.model.keys import agent_of
from sessiond.questions.desk import QuestionDesk
from sessiond.runs import run_end as ending
from sessiond.runs.acceptance import Acceptance
from sessiond.runs.asking import RunQuestions
from sessiond.runs.executor import BeforeEnd, Host, RunExecutor, UnendedRun
from sessiond.runs.persistence import Persistence
from sessiond.runs.run import Run, RunRequest
from sessiond.runs.unattended import UnattendedRuns
from sessiond.store.catalog import Session
from sessiond.store.store import Part, SessionStore
from sessiond.tasks import detached_nursery

# Ends of runs that never executed, such as a thousand aborted ones, are written in batches of this size: all at once
# would block the event loop for over 100 ms. The next batch starts after _ENDS_WAIT_S even if the disk is slow.
_ENDS_AT_ONCE = 25
_ENDS_WAIT_S = 0.1

log = structlog.get_logger("sessiond.runs")


Work = Callable[[], Awaitable[None]]


class AfterRuns(Protocol):
    """Work that follows the end of a run, such as a conversation."""

    def at_end(self, run: Run) -> Sequence[Part]:
        """Records to write together with the end of the run."""

    def after_end(self, run: Run) -> Work | None:
        """What there is to do once the end is on disk; None if nothing. Cancelled when the daemon stops, so unfinished
        work must be recoverable from the records.
        """


class RunSupervisor(Acceptance):
    """All runs of this daemon. Run `run` in the background nursery.

    `follow_ups()` are called for every run; each ignores the runs that do not concern it. `before_end(run)` is done
    before an end is written.
    """

    def __init__(
        self,
        store: SessionStore,
        bus: EventBus,
        host: Host,
        clock: Clock,
        ids: Ids,
        *,
        follow_ups: Callable[[], Sequence[AfterRuns]],
        before_end: BeforeEnd,
        desk: QuestionDesk,
    ) -> None:
        super().__init__(store, host, clock, ids)
        self._follow_ups, self._before_end = follow_ups, before_end
        self.questions = RunQuestions(desk, self.park, self.unpark)
        self._executor = RunExecutor(store, bus, host, clock, self.questions)
        self._unattended = UnattendedRuns(
            self.queues, attended=self._is_attended, ttl_s=host.queue_ttl_s, expire=self._expire_unattended
        )
        # Runs of an earlier process whose end has to be written; filled by `restore`, emptied by `resume`.
        self._interrupted: list[Run] = []
        # Whether `resume` was called. Until then, open runs in transcripts are those of an earlier process.
        self._recovered = False
        # Runs to end that never executed, and whether a task is ending them.
        self._to_end: deque[tuple[Run, ending.RunEnd]] = deque()
        self._is_ending = False
        self._run_nursery: trio.Nursery | None = None
        self._follow_up_nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Then executing runs are ended as interrupted; queued ones wait for the next daemon."""
        async with detached_nursery() as self._run_nursery, trio.open_nursery() as self._follow_up_nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self.interrupt_all()

    def interrupt_all(self) -> None:
        """End the executing runs as interrupted, while attached agents are still connected and can be told."""
        self._executor.interrupt(self.registry.live.values())

    @property
    def stopping(self) -> bool:
        """Whether the daemon is shutting down."""
        return self._executor.stopping

    @property
    def persistence(self) -> Persistence:
        """The retry loop for writes; also used by the follow-ups."""
        return self._executor.persistence

    def live_runs(self) -> int:
        """How many runs are executing."""
        return len(self.queues.current_runs())

    def current(self, key: str) -> Run | None:
        """The current run of a session."""
        return self.queues.current(key)

    def live_by_agent(self) -> dict[str, int]:
        """How many executing runs each agent has."""
        counts: dict[str, int] = {}
        for run in self.queues.current_runs():
            counts[agent_of(run.key)] = counts.get(agent_of(run.key), 0) + 1
        return counts

    def queued_runs(self) -> int:
        """How many runs are queued."""
        return self.queues.count_waiting()

    def waiting_messages(self, key: str) -> list[Run]:
        """The accepted runs of a session whose messages are not in its transcript yet, in their order."""
        runs = self.queues.runs_of(key)
        return [run for run in runs if run.stored.is_set() and not (run.begun or run.request.in_transcript)]

    def restore(self, run: Run) -> None:
        """Register a run of an earlier process: to be ended if it had begun here, else queued. `resume` continues."""
        self.registry.add(run)
        run.stored.set()
        if run.begun and run.request.message and self._host.is_resumable(agent_of(run.key)):
            run.status = "running"
            self.queues.push_first(run)
        elif run.begun or not run.request.message:
            self.queues.set_current(run)
            self._interrupted.append(run)
        else:
            self.queues.push(run)

    def resume(self) -> None:
        """End and start the runs that `restore` registered."""
        self._recovered = True
        cut_off, self._interrupted = self._interrupted, []
        for run in cut_off:
            self._end_soon(run, ending.interrupted_end())
        self.agents_changed()

    def end_copied(self, runs: Sequence[Run]) -> None:
        """End runs in copies of the transcripts in which they were accepted; they go on in the originals only."""
        by_session: dict[Session, list[tuple[Run, bool]]] = {}
        for run in runs:
            has_original = run.session.superseded or self.registry.session_of(run.run_id) not in (None, run.session)
            if not has_original:
                # Nobody else tells of its end to those who wait for it.
                self.registry.add(run)
                run.stored.set()
            by_session.setdefault(run.session, []).append((run, has_original))
        # One task for each transcript: one that cannot be written must not keep the others from their ends.
        for some in by_session.values():
            self.start_follow_up(self._end_copied, some)

    async def _end_copied(self, runs: Sequence[tuple[Run, bool]]) -> None:
        for run, has_original in runs:
            if has_original:
                await self._executor.write_end(run, ending.copied_end(run), ending.without_announcement)
            else:
                await self._finish(run, ending.copied_end(run))

    async def stop(self, session: Session, run_id: str | None = None) -> list[str]:
        """Abort all runs of a session, or one of them; returns their ids when all have ended.

        StorageError if the disk refuses an end: the runs are stopped, and their ends are written when the disk accepts
        them.
        """
        return await self._stop(session, run_id, "aborted")

    async def stop_for_reset(self, session: Session) -> list[str]:
        """Like `stop`, for a reset: the ends of the runs say that this was the reason."""
        return await self._stop(session, None, "reset")

    async def _stop(self, session: Session, run_id: str | None, stop_as: Literal["aborted", "reset"]) -> list[str]:
        stopped = [run for run in self.registry.of_session(session.key) if run_id in (None, run.run_id)]
        for run in stopped:
            if run.ended:
                continue  # it has ended; its end is being written
            run.stop_as = run.stop_as or stop_as
            if run.scope is not None:
                run.scope.cancel()
            elif self.queues.remove_waiting(run):
                self._end_soon(run, ending.aborted_end(by_reset=run.by_reset))
        for run in stopped:
            await run.settled.wait()
        refused = [run for run in stopped if not run.done.is_set()]
        if refused:
            raise StorageError(f"what ran was stopped, but its end is not on disk yet: {refused[0].refusal}")
        return [run.run_id for run in stopped if run.status == "aborted"]

    def park(self, run: Run, waits_for: str) -> None:
        """Free the slot of a run while it waits for the run with the id `waits_for`."""
        self.queues.park(run, waits_for)
        self.dispatch()

    def unpark(self, run: Run, waits_for: str) -> None:
        """End such a wait."""
        self.queues.unpark(run, waits_for)

    def dispatch(self) -> None:
        """Start the runs whose turn it is. Called after a run ended, an agent attached or the configuration changed."""
        while not self.stopping and (run := self.queues.start_next(self._is_attended)) is not None:
            self._start_soon(self._execute, run)

    def handle_missing_transcript(self, session: Session) -> None:
        """The transcript is missing. It may come back, because programs save a file by replacing it; if it does not,
        the runs of the session are ended.
        """
        if not self.persistence.is_missing(session) and self._open_runs(session):
            self.start_follow_up(self._end_if_still_missing, session)

    def handle_restored_transcript(self, session: Session) -> None:
        """The transcript is back: writes to it continue.

        It may be a copy that another program restored. Runs that are open in it but not known here get an end; they are
        not executed again.
        """
        self.persistence.note_back(session)
        if self._recovered and self._store.catalog.is_current(session) and self._unknown_open_runs(session):
            self.start_follow_up(self._end_unknown_runs, session)

    def _unknown_open_runs(self, session: Session) -> list[LiveRun]:
        known = self.registry.live
        # One that goes on in another transcript was copied from there.
        return [
            live for live in session.entry.runs if live.run_id not in known or known[live.run_id].session is not session
        ]

    async def _end_unknown_runs(self, session: Session) -> None:
        facts = None
        while facts != session.entry.file:  # while the file is still being written, ends may follow
            facts = session.entry.file
            await trio.sleep(self._store.presence.patience_s)
        for live in self._unknown_open_runs(session):
            if not self._store.catalog.is_current(session):
                return
            stray = Run(live.run_id, session, RunRequest(text="", message={}), live.accepted_at)
            stray.started_at = live.started_at
            known = self.registry.get(live.run_id)
            if live.run_id in self.registry.live:
                end = ending.copied_end(stray)
            else:
                end = ending.interrupted_end() if known is None else ending.end_of(known)
            await self._executor.write_end(stray, end, lambda _run: ())

    def _open_runs(self, session: Session) -> list[Run]:
        return [one for one in self.registry.live.values() if one.session is session]

    async def _end_if_still_missing(self, session: Session) -> None:
        if self._store.catalog.has(session):
            return  # the file was renamed or got another key, and is back already
        standing = self._store.presence
        with self.persistence.expect_back(session) as back, standing.expect_return(session.key):
            with trio.move_on_after(standing.patience_s):
                await back.wait()
        if self._store.catalog.has(session):
            return
        for run in self._open_runs(session):
            if run.ended:
                continue
            run.stop_as = run.stop_as or "lost"
            if run.scope is not None:
                run.scope.cancel()
            elif self.queues.remove_waiting(run):
                self._end_soon(run, ending.transcript_lost_end(run.key))

    def agents_changed(self) -> None:
        """Agents attached or detached: start the runs that can start, and time those that have to wait."""
        self.dispatch()
        for agent_id in self.queues.waiting_agents():
            self._note_presence(agent_id)

    def end_runs_of_removed_agents(self, agent_ids: set[str]) -> None:
        """Agents were removed from the configuration: end their queued runs, unless the agent is attached."""
        for agent_id in agent_ids:
            if not self._host.knows_agent(agent_id):
                sentence = f"agent {agent_id} was taken out of the configuration; configure it again and send again"
                for run in self.queues.waiting_of(agent_id):
                    if self.queues.remove_waiting(run):
                        self._end_soon(run, ending.failed_end(sentence))

    def start_follow_up(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start a task beside the runs; it is cancelled when the daemon stops."""
        if not self.stopping:
            assert self._follow_up_nursery is not None, "the supervisor is not running"
            self._follow_up_nursery.start_soon(function, *args)

    def _note_presence(self, agent_id: str) -> None:
        # What is for another machine waits for as long as it takes.
        if not self._host.is_resumable(agent_id) and self._unattended.note_presence(agent_id):
            self.start_follow_up(self._unattended.watch, agent_id)

    def _expire_unattended(self, run: Run, ttl_s: float) -> None:
        sentence = f"agent {agent_of(run.key)} was not attached within {ttl_s:g} s; start it and send again"
        self._end_soon(run, ending.failed_end(sentence))

    def _start_soon(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        assert self._run_nursery is not None, "the supervisor is not running"
        self._run_nursery.start_soon(function, *args)

    def _on_accepted(self, run: Run, *, at_once: bool) -> None:
        run.stored.set()
        if run.ended:  # its message was kept in an inbox
            self.registry.end(run)
            run.close()
        elif at_once:
            run.status, run.started_at = "running", run.accepted_at
            self._start_soon(self._execute, run)
        else:
            self.dispatch()
            self._note_presence(agent_of(run.key))

    async def _execute(self, run: Run) -> None:
        if not run.stored.is_set():
            await run.stored.wait()
        if self.registry.get(run.run_id) is not run:
            return  # accepting it failed, and the caller got the error
        match await self._executor.execute(run):
            case UnendedRun.OPEN:
                pass  # it stays open on disk; the next daemon goes on with it
            case UnendedRun.UNATTENDED if run.stop_as is None:
                self.queues.put_back(run)
                self.agents_changed()
            case UnendedRun.UNATTENDED:
                if (end := self._executor.end_unattended(run)) is not None:
                    await self._finish(run, end)
            case ending.RunEnd() as end:
                await self._finish(run, end)

    def _end_soon(self, run: Run, end: ending.RunEnd) -> None:
        """Queue the end of a run that never executed."""
        self._to_end.append((run, end))
        if not self._is_ending:
            self._is_ending = True
            self._start_soon(self._end_all)

    async def _end_all(self) -> None:
        while self._to_end:
            some = [self._to_end.popleft() for _ in range(min(_ENDS_AT_ONCE, len(self._to_end)))]
            for run, end in some:
                self._start_soon(self._finish_unstarted, run, end)
            if self._to_end:
                with trio.move_on_after(0 if self.stopping else _ENDS_WAIT_S):
                    for run, _ in some:
                        await run.done.wait()
        self._is_ending = False

    async def _finish_unstarted(self, run: Run, end: ending.RunEnd) -> None:
        await run.stored.wait()
        if self.registry.get(run.run_id) is run:
            await self._finish(run, end)

    async def _finish(self, run: Run, end: ending.RunEnd) -> None:
        """Write the run's end, then wake its waiters, free its slot and call the follow-ups."""
        if not await self._executor.write_end(run, end, self._parts_at_end, before=self._before_end):
            return  # recovery writes an end at the next start of the daemon
        self.registry.end(run)
        self._host.retire(run)
        if run.status in ("error", "timeout"):
            self._log_failure(run)
        run.close()
        self.queues.remove(run)
        self.dispatch()
        for one in self._follow_ups():
            work = one.after_end(run)
            if work is not None:
                self.start_follow_up(work)

    def _parts_at_end(self, run: Run) -> list[Part]:
        return [part for one in self._follow_ups() for part in one.at_end(run)]

    def _log_failure(self, run: Run) -> None:
        """Log the failure without its error, which may contain message text; `history` shows it."""
        log.warning(
            "run failed",
            run_id=run.run_id,
            session_key=run.key,
            agent=agent_of(run.key),
            status=run.status,
        )
