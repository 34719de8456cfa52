"""Group commit: many appends, few fdatasyncs.

Appends to one transcript are written in the order of their calls. Those that arrive during a sync share the next one.
Knows sessions and waiting callers; `writing` knows how lines are written and verified, `commit_threads` which thread
does it.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from threading import Lock
from typing import Self

import trio

from sessiond.errors import Stopping
from sessiond.store.append import Compose
from sessiond.store.catalog import Session
from sessiond.store.commit_job import CommitJob, MakeThreads, Tell, WaitingAppend
from sessiond.store.file_commit import FileCommits
from sessiond.store.refusals import Abandoned, require_own, storage_error
from sessiond.store.writing import Sync

# How long results are published and answered before other tasks run. A thousand appends would take 50 ms and more.
REPORT_S = 0.003


class AppendPlace:
    """A place among the appends to one transcript, taken before its lines are known: appends that are called later
    come behind it. A context manager; leaving it without `fill` gives the place up.
    """

    __slots__ = ("_committer", "_session", "appends", "is_settled", "released")

    def __init__(self, committer: Committer, session: Session) -> None:
        self._committer, self._session = committer, session
        # Its own, once it is filled, and those behind it up to the next place.
        self.appends: list[WaitingAppend] = []
        self.is_settled = False
        self.released = trio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._settle()

    def fill(self, compose: Compose, last_id: str, tell: Tell) -> None:
        """Append here, as `Committer.append_later`."""
        waiting = WaitingAppend(compose, last_id)
        waiting.tell = tell
        self.appends.insert(0, waiting)
        self._settle()

    def _settle(self) -> None:
        if not self.is_settled:
            self.is_settled = True
            self._committer.release_places(self._session)


class _LoopPause(trio.abc.Instrument):
    """Calls `wake` when the event loop is about to sleep, if that `is_wanted`.

    A thread that is woken while the loop works waits for the interpreter lock, and then the loop for the thread, at
    every system call of either: 15 futex calls an append with 16 clients, 4 this way.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.is_wanted = False

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - how Trio calls it
        if self.is_wanted:
            with suppress(MemoryError):  # at the next pause, then; Trio would call this no more
                self._wake()
                self.is_wanted = False


class Committer:
    """`append` returns when the bytes are on disk. `run` is a background task while which appends are taken.

    `on_committed(session)` is called on the event loop after every commit, before the callers continue, and again as
    long as it returns True; other tasks run in between, but nothing is written to the session. `on_refused(error)` is
    called for every failed append. `sync` is called with the descriptor; None for no syncs. `syncs` counts commits.
    """

    def __init__(
        self,
        *,
        sync: Sync | None,
        record_limit: int,
        on_committed: Callable[[Session], bool],
        on_refused: Callable[[OSError], None],
        threads: MakeThreads,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._on_committed, self._on_refused = on_committed, on_refused
        self._finished: deque[CommitJob] = deque()
        ended = self._finished.append
        self._commits = commits = FileCommits(sync=sync, record_limit=record_limit, take=self._take, ended=ended)
        self.files = commits.files
        self._threads, self._now = threads(commits.begin, self._wake_loop, self._note_death), now
        self._pause = _LoopPause(self._threads.wake)
        # What is enqueued for a session, waiting for its turn or for a thread. Joining and taking exclude each other.
        self._open: dict[Session, CommitJob] = {}
        self._taking = Lock()
        # Those that the threads have.
        self._under_way: dict[CommitJob, None] = {}
        self._places: dict[Session, deque[AppendPlace]] = {}
        self._busy: set[Session] = set()
        self._freed = trio.Event()
        self._results: Iterator[None] = iter(())
        self._is_late = trio.Event()
        self._crash: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._closed = self._is_stopped = self._is_dead = False
        self.syncs = 0

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for a commit. May be asked in any thread."""
        return bool(self._open)

    def count_unfinished(self) -> dict[str, int]:
        """How many appends are not on disk yet, by the keys of their sessions."""
        left: dict[str, int] = {}
        for job in {*self._open.values(), *self._under_way}:
            left[job.session.key] = left.get(job.session.key, 0) + len(job.waiters)
        for session, places in self._places.items():
            if behind := sum(len(place.appends) for place in places):
                left[session.key] = left.get(session.key, 0) + behind
        return left

    async def append(self, session: Session, compose: Compose, last_id: str) -> list[tuple[int, int]]:
        """Write the composed lines; begin and end offset of each. `last_id` is the id of the last one.

        StorageError where they could not be written and synced: then none of them is in the file. Cancelling the wait
        does not undo the append.
        """
        waiting = WaitingAppend(compose, last_id)
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
        waiting = WaitingAppend(compose, last_id)
        waiting.tell = tell
        self._enqueue(session, waiting)

    def take_place(self, session: Session) -> AppendPlace:
        """A place behind all appends to the session that were called so far. The caller fills it or gives it up, soon:
        every later append waits for that, whoever calls it.
        """
        require_own(session)
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
                if self._is_stopped:
                    self._refuse(session, waiting)
                else:
                    self._add(session, waiting)
        if not places:
            del self._places[session]

    def _refuse(self, session: Session, waiting: WaitingAppend) -> None:
        """Fail an append for whose place it is too late, because the threads have ended."""
        waiting.error = OSError(errno.ESHUTDOWN, "sessiond is stopping")
        if waiting.tell is not None:
            waiting.tell([], storage_error(waiting.error, session.key))

    async def wait_written(self, session: Session) -> None:
        """Return when all appends to the session that were called so far are on disk, or refused."""
        if session in self._places:
            await self._places[session][-1].released.wait()
        if session in self._open:
            await self._open[session].done.wait()

    def _enqueue(self, session: Session, waiting: WaitingAppend) -> CommitJob | None:
        """The job of an append; None for one that waits behind a place."""
        require_own(session)
        if self._closed:
            raise _closed_error()
        if session in self._places:
            self._places[session][-1].appends.append(waiting)
            return None
        return self._add(session, waiting)

    def _add(self, session: Session, waiting: WaitingAppend) -> CommitJob:
        session.activity.in_flight += 1
        job = self._open.get(session)
        if job is not None:
            with self._taking:
                if not job.is_taken:
                    job.waiters.append(waiting)
                    return job
        job = self._open[session] = CommitJob(session)
        job.waiters.append(waiting)
        if session not in self._busy:
            self._start(job)
        return job

    def _start(self, job: CommitJob) -> None:
        job.parent = job.session.last_id
        self._busy.add(job.session)
        self._under_way[job] = None
        self._threads.put(job)
        self._pause.is_wanted = True

    @asynccontextmanager
    async def hold_exclusively(self, session: Session) -> AsyncIterator[None]:
        """Hold the session's transcript exclusively: appends that arrive meanwhile are written afterwards."""
        while session in self._busy:
            await self._freed.wait()
        self._busy.add(session)
        try:
            # It may be moved or removed meanwhile.
            self.files.forget(session)
            yield
        finally:
            self._release(session)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit until cancelled. Appends enqueued before the cancellation are still written."""
        self._token = trio.lowlevel.current_trio_token()
        self._threads.start()
        trio.lowlevel.add_instrument(self._pause)
        task_status.started()
        try:
            while True:
                await self._report_late_results()
        finally:
            self._closed = True
            with trio.CancelScope(shield=True):
                await self._drain()

    async def _drain(self) -> None:
        """Report what is under way and end the threads; also where reporting one of the results fails."""
        crash: BaseException | None = None
        while self._open:
            if self._is_dead:
                self._give_up()
            try:
                await self._report_late_results()
            except BaseException as error:  # noqa: BLE001 - raised below
                crash = crash or error
        self._is_stopped = True
        trio.lowlevel.remove_instrument(self._pause)
        self._threads.stop()
        self.files.close()
        if crash is not None:
            raise crash

    def _give_up(self) -> None:
        """Refuse what the threads will not carry out any more."""
        self._finished.extend(job for job in self._under_way if job not in self._finished)
        self._is_late.set()

    def _take(self, job: CommitJob) -> None:
        """Let no more appends join the job, in a thread."""
        with self._taking:
            job.is_taken = True

    def _note_death(self, error: BaseException) -> None:
        """A thread has ended, by a bug: nobody knows which jobs are carried out any more."""
        self._crash, self._is_dead = error, True
        self._wake_loop()

    def _wake_loop(self) -> None:
        """Have the results that there are reported, from a thread."""
        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._report, idempotent=True)

    def _report(self) -> None:
        """Publish and answer results, on the event loop, for a time slice; the rest is left to `run`."""
        if self._is_late.is_set():
            return
        try:
            is_late = self._report_slice()
        except BaseException as crash:  # noqa: BLE001 - raised again by `run`, in a task
            self._crash = crash
            is_late = True
        if is_late or self._closed or self._is_dead:
            self._is_late.set()

    async def _report_late_results(self) -> None:
        await self._is_late.wait()
        if self._crash is not None:
            crash, self._crash = self._crash, None
            raise crash
        while self._report_slice():
            await trio.lowlevel.checkpoint()
        self._is_late = trio.Event()

    def _report_slice(self) -> bool:
        """Publish and answer the next results; whether some are left."""
        ends = self._now() + REPORT_S
        while True:
            for _ in self._results:
                if self._now() >= ends:
                    return True
            if not self._finished:
                return False
            self._results = self._finish(self._finished.popleft())

    def _finish(self, job: CommitJob) -> Iterator[None]:
        """Publish the written records, then answer the callers. Yields wherever other tasks may run; the session stays
        busy until the end, so that no unsynced record is published.
        """
        session = job.session
        if job not in self._under_way:
            return  # given up before
        del self._under_way[job]
        self.syncs += 1
        session.activity.in_flight -= len(job.waiters)
        untold = deque(job.waiters)
        try:
            self._keep_results(job)
            while self._on_committed(session):
                yield
            job.done.set()
            while untold:
                waiting = untold.popleft()
                if waiting.tell is not None:
                    error = None if waiting.error is None else storage_error(waiting.error, session.key)
                    waiting.tell(waiting.places if error is None else [], error)
                    yield
            if job.crash is not None:
                raise job.crash
        finally:
            job.done.set()
            for waiting in untold:  # after a fault, which ends the daemon; meanwhile nobody waits for it in vain
                if waiting.tell is not None:
                    with suppress(Exception):  # the same fault, perhaps
                        waiting.tell([], storage_error(Abandoned(), session.key))
            if self._open.get(session) is job:
                del self._open[session]
            self._release(session)
        yield

    def _keep_results(self, job: CommitJob) -> None:
        session, activity = job.session, job.session.activity
        for waiting in job.waiters:
            waiting.error = waiting.error or job.error
            if waiting.error is None:
                activity.written_id, activity.written_end = waiting.last_id, waiting.places[-1][1]
            else:
                self._on_refused(waiting.error)
        activity.written = job.written
        if job.parsed:
            session.keep_parsed(job.parsed)

    def _release(self, session: Session) -> None:
        self._busy.discard(session)
        if (job := self._open.get(session)) is not None:
            self._start(job)
        self._freed.set()
        self._freed = trio.Event()


def _closed_error() -> Stopping:
    return Stopping("sessiond is stopping and takes no more messages; try again when it is back", retryAfterMs=1000)
