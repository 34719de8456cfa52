"""Group commit: many appends, few fdatasyncs.

Appends to one transcript are written in the order of their calls. Those that arrive during a sync share the next one.
Knows sessions and waiting callers; `writing` knows how lines are written and verified.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import trio

from sessiond.errors import Stopping, StorageError
from sessiond.store.catalog import Session
from sessiond.store.refusals import storage_error
from sessiond.store.transcript import Line
from sessiond.store.writing import Append, Compose, Sync, Writing, as_refusal

RunSync = Callable[..., Awaitable[Any]]
# The result of an append: (begin, end) of its lines, or the error.
Tell = Callable[[list[tuple[int, int]], StorageError | None], None]
# Concurrent commits. Journalling file systems merge the syncs of several files; more lanes are not faster.
LANES = 4
# How long results are published and answered before other tasks run. A thousand appends would take 50 ms and more.
REPORT_S = 0.003


class _WaitingAppend(Append):
    """One append. `tell` is called with the result if no task waits for it."""

    __slots__ = ("tell",)

    def __init__(self, compose: Compose, last_id: str) -> None:
        super().__init__(compose, last_id)
        self.tell: Tell | None = None


class AppendPlace:
    """A place among the appends to one transcript, taken before its lines are known: appends that are called later
    come behind it. A context manager; leaving it without `fill` gives the place up.
    """

    __slots__ = ("_committer", "_session", "appends", "is_settled", "released")

    def __init__(self, committer: Committer, session: Session) -> None:
        self._committer, self._session = committer, session
        # Its own, once it is filled, and those behind it up to the next place.
        self.appends: list[_WaitingAppend] = []
        self.is_settled = False
        self.released = trio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._settle()

    def fill(self, compose: Compose, last_id: str, tell: Tell) -> None:
        """Append here, as `Committer.append_later`."""
        waiting = _WaitingAppend(compose, last_id)
        waiting.tell = tell
        self.appends.insert(0, waiting)
        self._settle()

    def _settle(self) -> None:
        if not self.is_settled:
            self.is_settled = True
            self._committer.release_places(self._session)


class _Job:
    """The appends to one transcript that share a sync, behind the record `parent`. They get their results together.

    `parsed` are those of their lines that take long to parse, already parsed.
    """

    __slots__ = ("done", "parent", "parsed", "session", "waiters")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.waiters: list[_WaitingAppend] = []
        self.parent: str | None = None
        self.parsed: list[Line] = []
        self.done = trio.Event()


class Committer:
    """`append` returns when the bytes are on disk. `run` is a background task that does the work.

    `on_committed(session)` is called on the event loop after every commit, before the callers continue, and again as
    long as it returns True; other tasks run in between, but nothing is written to the session. `on_refused(error)` is
    called for every failed append. `sync` is called with the descriptor; None for no syncs. `syncs` counts commits.
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
        self._places: dict[Session, deque[AppendPlace]] = {}
        self._busy: set[Session] = set()
        self._work = trio.Event()
        self._freed = trio.Event()
        self._free_lanes = LANES
        # Lanes with many results publish them one after the other.
        self._report_lock = trio.Lock()
        self._closed = False
        self.syncs = 0

    async def append(self, session: Session, compose: Compose, last_id: str) -> list[tuple[int, int]]:
        """Write the composed lines; begin and end offset of each. `last_id` is the id of the last one.

        StorageError where they could not be written and synced: then none of them is in the file. Cancelling the wait
        does not undo the append.
        """
        waiting = _WaitingAppend(compose, last_id)
        job = self._enqueue(session, waiting)
        if job is None:
            done = trio.Event()
            waiting.tell = lambda *_: done.set()
        else:
            done = job.done
        await done.wait()
        if waiting.error is not None:
            raise storage_error(waiting.error, session.key)
        return waiting.places

    def append_later(self, session: Session, compose: Compose, last_id: str, tell: Tell) -> None:
        """As `append`, without waiting: `tell(places, None)` or `tell([], error)` is called on the event loop."""
        waiting = _WaitingAppend(compose, last_id)
        waiting.tell = tell
        self._enqueue(session, waiting)

    def take_place(self, session: Session) -> AppendPlace:
        """A place behind all appends to the session that were called so far. The caller fills it or gives it up, soon:
        every later append waits for that, whoever calls it.
        """
        if self._closed:
            raise _closed_error()
        place = AppendPlace(self, session)
        self._places.setdefault(session, deque()).append(place)
        return place

    def release_places(self, session: Session) -> None:
        """Queue the appends of the first places, as many as are settled."""
        places = self._places[session]
        while places and places[0].is_settled:
            place = places.popleft()
            place.released.set()
            for waiting in place.appends:
                self._add(session, waiting)
        if not places:
            del self._places[session]

    async def wait_written(self, session: Session) -> None:
        """Return when all appends to the session that were called so far are on disk, or refused."""
        if session in self._places:
            await self._places[session][-1].released.wait()
        while session in self._busy and session not in self._pending:
            await self._freed.wait()
        if session in self._pending:
            await self._pending[session].done.wait()

    def _enqueue(self, session: Session, waiting: _WaitingAppend) -> _Job | None:
        """The job of an append; None for one that waits behind a place."""
        if self._closed:
            raise _closed_error()
        if session in self._places:
            self._places[session][-1].appends.append(waiting)
            return None
        return self._add(session, waiting)

    def _add(self, session: Session, waiting: _WaitingAppend) -> _Job:
        job = self._pending.get(session)
        if job is None:
            job = self._pending[session] = _Job(session)
            self._work.set()
        job.waiters.append(waiting)
        session.in_flight += 1
        return job

    @asynccontextmanager
    async def hold_exclusively(self, session: Session) -> AsyncIterator[None]:
        """Hold the session's transcript exclusively: appends that arrive meanwhile are written afterwards."""
        while session in self._busy:
            await self._freed.wait()
        self._busy.add(session)
        try:
            yield
        finally:
            self._release([session])
            self._work.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit until cancelled. Appends enqueued before the cancellation are still written."""
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
            # The commit is shielded, not the nursery, because the nursery's body must end on cancellation.
            with trio.CancelScope(shield=True):
                await self._run_sync(_commit, jobs, self._record_limit, self._sync)
        except OSError as error:
            # No free thread: nothing was written.
            for job in jobs:
                _fail_all(job.waiters, error)
        except BaseException:
            # A bug. The appends must not count as acknowledged.
            for job in jobs:
                _fail_all(job.waiters, OSError(errno.EIO, os.strerror(errno.EIO)))
            raise
        finally:
            with trio.CancelScope(shield=True):
                await self._report_results(jobs)
            self._free_lanes += 1
            self._start_lanes(lanes)

    async def _report_results(self, jobs: list[_Job]) -> None:
        """Publish and answer the results, a time slice at a time."""
        pieces = (piece for job in jobs for piece in self._finish(job))
        more = self._report_slice(pieces)
        while more:
            async with self._report_lock:
                more = self._report_slice(pieces)

    def _report_slice(self, pieces: Iterator[None]) -> bool:
        ends = self._now() + REPORT_S
        return any(self._now() >= ends for _ in pieces)

    def _finish(self, job: _Job) -> Iterator[None]:
        """Publish the written records, then answer the callers. Yields wherever other tasks may run; the session stays
        busy until the end, so that no unsynced record is published.
        """
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


def _closed_error() -> Stopping:
    return Stopping("sessiond is stopping and takes no more messages; try again when it is back", retryAfterMs=1000)


def _commit(jobs: list[_Job], record_limit: int, sync: Sync | None) -> None:
    for job in jobs:
        try:
            Writing(job.session, [*job.waiters], job.parent, record_limit=record_limit, sync=sync).run()
        except (OSError, MemoryError) as error:
            # Too little memory even to take the appends back. What was written to the other files is written.
            _fail_all(job.waiters, as_refusal(error))
            continue
        # Parsed here, in the worker thread, because folding runs on the event loop.
        with suppress(MemoryError):
            job.parsed = [
                line for waiting in job.waiters for line in waiting.long_lines(record_limit, job.session.dialect)
            ]


def _fail_all(waiters: list[_WaitingAppend], error: OSError) -> None:
    for waiting in waiters:
        waiting.error = waiting.error or error
