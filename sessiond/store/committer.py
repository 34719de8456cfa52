"""Group commit: many appends, few fdatasyncs.

Appends to one transcript are written in the order they were asked for. What waits while a sync is under way goes to the
next one together. Knows sessions and who waits; `writing` knows how lines come to stand.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from sessiond.errors import Stopping, StorageError
from sessiond.store.catalog import Session
from sessiond.store.refusals import storage_error
from sessiond.store.transcript import Line
from sessiond.store.writing import Append, Compose, Sync, Writing

RunSync = Callable[..., Awaitable[Any]]
# How an append ended: where its lines stand, or why it is not there.
Tell = Callable[[list[tuple[int, int]], StorageError | None], None]
# Journalling file systems merge the syncs of several files that run at once; more than this gains nothing.
LANES = 4
# What is announced and answered in one go. What a thousand callers have written together takes 50 ms and more.
REPORT_S = 0.003


class _WaitingAppend(Append):
    """One append, and who is told how it ended where nobody waits for it."""

    __slots__ = ("tell",)

    def __init__(self, compose: Compose, last_id: str) -> None:
        super().__init__(compose, last_id)
        self.tell: Tell | None = None


class _Job:
    """The appends to one transcript that share a sync, behind the record `parent`. They are told together.

    `parsed` are the long ones of their lines, as they stand in the file.
    """

    __slots__ = ("done", "parent", "parsed", "session", "waiters")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.waiters: list[_WaitingAppend] = []
        self.parent: str | None = None
        self.parsed: list[Line] = []
        self.done = trio.Event()


class Committer:
    """`append` returns when the bytes are on disk. `run` does the work and belongs to the background nursery.

    `on_committed(session)` is called on the loop after every commit, before the callers go on, and again while it says
    that there is more to do; others have their turn in between, but nothing is written to the session.
    `on_refused(error)` is called for every append that was refused. `syncs` counts the commits: with `sync`, which is
    called on the descriptor, it is how many syncs there were.
    """

    def __init__(
        self,
        *,
        sync: Sync | None,
        record_limit: int,
        run_sync: RunSync,
        on_committed: Callable[[Session], bool],
        on_refused: Callable[[OSError], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sync, self._record_limit = sync, record_limit
        self._run_sync, self._now = run_sync, now
        self._on_committed, self._on_refused = on_committed, on_refused
        self._pending: dict[Session, _Job] = {}
        self._busy: set[Session] = set()
        self._work = trio.Event()
        self._freed = trio.Event()
        self._free_lanes = LANES
        # Of the lanes with much to tell one has its turn at a time.
        self._report_lock = trio.Lock()
        self._closed = False
        self.syncs = 0

    async def append(self, session: Session, compose: Compose, last_id: str) -> list[tuple[int, int]]:
        """Where each of the composed lines now begins and ends. `last_id` is the id of the last one.

        StorageError where they could not be written and synced: then none of them is a record. Once asked for, an
        append is not undone by cancelling the wait for it.
        """
        job, waiting = self._enqueue(session, compose, last_id)
        await job.done.wait()
        if waiting.error is not None:
            raise storage_error(waiting.error, session.key)
        return waiting.places

    def append_later(self, session: Session, compose: Compose, last_id: str, tell: Tell) -> None:
        """As `append`, for one who does not wait: `tell(places, None)` or `tell([], error)` is called on the loop."""
        _, waiting = self._enqueue(session, compose, last_id)
        waiting.tell = tell

    def _enqueue(self, session: Session, compose: Compose, last_id: str) -> tuple[_Job, _WaitingAppend]:
        if self._closed:
            raise Stopping(
                "sessiond is stopping and takes no more messages; try again when it is back", retryAfterMs=1000
            )
        job = self._pending.get(session)
        if job is None:
            job = self._pending[session] = _Job(session)
            self._work.set()
        waiting = _WaitingAppend(compose, last_id)
        job.waiters.append(waiting)
        session.in_flight += 1
        return job, waiting

    @asynccontextmanager
    async def hold_exclusively(self, session: Session) -> AsyncIterator[None]:
        """Keep the session's transcript to oneself: appends asked for meanwhile are written afterwards."""
        while session in self._busy:
            await self._freed.wait()
        self._busy.add(session)
        try:
            yield
        finally:
            self._release([session])
            self._work.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit until cancelled. What was asked for before the cancellation is still written."""
        async with trio.open_nursery() as lanes:
            task_status.started()
            try:
                while True:
                    await self._work.wait()
                    self._work = trio.Event()
                    self._start_lanes(lanes)
            finally:
                self._closed = True
                self._start_lanes(lanes)

    def _start_lanes(self, lanes: trio.Nursery) -> None:
        ready = [session for session in self._pending if session not in self._busy]
        if not ready or not self._free_lanes:
            return
        used = min(self._free_lanes, len(ready))
        for lane in range(used):
            jobs = [self._start_job(session) for session in ready[lane::used]]
            self._free_lanes -= 1
            lanes.start_soon(self._run_lane, lanes, jobs)

    def _start_job(self, session: Session) -> _Job:
        job = self._pending.pop(session)
        self._busy.add(session)
        job.parent = session.last_id
        return job

    async def _run_lane(self, lanes: trio.Nursery, jobs: list[_Job]) -> None:
        try:
            # Shielded, not the nursery: its body, which waits for work, must end when it is told to.
            with trio.CancelScope(shield=True):
                await self._run_sync(_commit, jobs, self._record_limit, self._sync)
        except OSError as error:
            # No thread to be had: nothing was begun.
            for job in jobs:
                _fail_all(job.waiters, error)
        except BaseException:
            # A mistake in here. Nobody may take that for an acknowledgement.
            for job in jobs:
                _fail_all(job.waiters, OSError(errno.EIO, os.strerror(errno.EIO)))
            raise
        finally:
            with trio.CancelScope(shield=True):
                await self._report_results(jobs)
            self._free_lanes += 1
            self._start_lanes(lanes)

    async def _report_results(self, jobs: list[_Job]) -> None:
        """Let everybody know how it ended, a slice at a time."""
        pieces = (piece for job in jobs for piece in self._finish(job))
        more = self._report_slice(pieces)
        while more:
            async with self._report_lock:
                more = self._report_slice(pieces)

    def _report_slice(self, pieces: Iterator[None]) -> bool:
        ends = self._now() + REPORT_S
        return any(self._now() >= ends for _ in pieces)

    def _finish(self, job: _Job) -> Iterator[None]:
        """Announce what stands, then answer; it may be interrupted where it yields. Until the end the session is busy:
        what is on its way to the disk must not be announced."""
        session = job.session
        self.syncs += 1
        session.in_flight -= len(job.waiters)
        for waiting in job.waiters:
            if waiting.error is None:
                session.written_id, session.written_end = waiting.last_id, waiting.places[-1][1]
            else:
                self._on_refused(waiting.error)
        if job.parsed:
            session.keep_parsed(job.parsed)
        while self._on_committed(session):
            yield
        job.done.set()
        for waiting in job.waiters:
            if waiting.tell is not None:
                error = None if waiting.error is None else storage_error(waiting.error, session.key)
                waiting.tell(waiting.places if error is None else [], error)
                yield
        self._release([session])
        yield

    def _release(self, sessions: list[Session]) -> None:
        self._busy.difference_update(sessions)
        self._freed.set()
        self._freed = trio.Event()


def _commit(jobs: list[_Job], record_limit: int, sync: Sync | None) -> None:
    for job in jobs:
        Writing(job.session, [*job.waiters], job.parent, record_limit=record_limit, sync=sync).run()
        # Here, not where they are folded: that is the event loop.
        with suppress(MemoryError):
            job.parsed = [line for waiting in job.waiters for line in waiting.long_lines(record_limit)]


def _fail_all(waiters: list[_WaitingAppend], error: OSError) -> None:
    for waiting in waiters:
        waiting.error = waiting.error or error
