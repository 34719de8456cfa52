"""Threads that carry out commits: one does the work, the others wait for the disk in its place.

The committer begins all commits that wait, which writes them, finishes those that are synced, and reports them
together, with one wake-up of the event loop. Its helpers only sync, several files at once, because the file system
joins such syncs. They do nothing else: whoever returns from a system call has to get the interpreter lock, so that
several threads at work would mostly wait for each other. Where a step of the committer takes longer than `WATCH_S`, as
on a network disk, and others wait behind it, a helper takes its place; it becomes a helper when it is through. Where
all helpers wait for the disk, one more thread is started, up to `MOST_WORKERS`: so many files may hang before others
wait. Then the last thread that is free does not sync, but finishes and reports what the others get through. Knows
commits as functions.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, Protocol, TypeVar

from sessiond.errors import NoThread

# With 16 files that are synced together, seven helpers come close to what one thread for each of them reaches.
HELPERS = 7
# Only while the disk does not answer: every file that hangs holds a thread.
MOST_WORKERS = 128
# A sync takes 0.2 ms on a quiet disk. Nobody waits for one that takes longer than this.
STALL_S = 0.002
# Nor for any other step of which the end is not seen for so long, or for up to eight times as long while the committer
# was seen to go on: whoever looks takes the interpreter from the event loop, which cost a tenth of an append.
WATCH_S, MOST_PAUSES = 0.005, 8
# After a step that took longer than two pauses the next looks are not that seldom: where one file is slow it is slow
# again, or others are, and with steps of 30 ms, of which none was seen twice, all others got a fifth of their appends.
SLOW_PAUSES, WARY_LOOKS = 2, 20
# So many are begun before some are synced: of more, the first would wait too long for its turn.
MOST_BEGUN = 32

T = TypeVar("T")
Step = Callable[[], None]


class BegunCommit(Protocol):
    """What was written. `sync` waits for the disk, `finish` notes what became of it. Neither raises."""

    def sync(self) -> None: ...
    def finish(self) -> None: ...


class _Worker:
    """A thread as the others see it: it sleeps until somebody rings."""

    __slots__ = ("_bell",)

    def __init__(self) -> None:
        self._bell = threading.Lock()
        self._bell.acquire()

    def sleep(self, seconds: float = -1) -> bool:
        """Sleep; whether somebody rang before the time was over."""
        return self._bell.acquire(timeout=seconds)

    def ring(self) -> None:
        with suppress(RuntimeError):  # it was rung for already
            self._bell.release()


class CommitThreads(Generic[T]):
    """Calls `begin(job)` for every job, in the order in which they were put, then `sync` and `finish` of what it gives.

    That is None where nothing is left to do. `report` is called when jobs have ended and nothing else is to be done
    just now; it is not kept waiting by a slow job either. None of them may raise. `fail` is called with what one of
    them raised nevertheless: that thread has ended, and jobs may be left undone.
    """

    def __init__(
        self,
        begin: Callable[[T], BegunCommit | None],
        report: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._begin_job, self._report, self._fail = begin, report, fail
        self._queue: deque[T] = deque()
        self._begun: deque[BegunCommit] = deque()
        self._synced: deque[BegunCommit] = deque()
        self._has_unreported = False
        self._lock = threading.Lock()
        self._committer, self._watcher = _Worker(), _Worker()
        self._committer_sleeps = self._watches = self._closed = False
        self._idle: list[_Worker] = []
        # How many threads there are besides the watcher: the committer and its helpers.
        self._workers = 0
        # How many syncs the committer waits for: those of this wave. It waits no longer for those of earlier ones.
        self._awaited = self._wave = 0
        self._was_slow = self._had_slow_step = False
        self._steps = self._unended = 0

    def start(self) -> None:
        """Start the threads. NoThread where not even one can be started; fewer do the work too."""
        if not self._start_worker(self._committer):
            raise NoThread
        self._watches = not self._start_thread("commits-watcher", self._watch)  # nobody would answer
        for _ in range(HELPERS):
            self._start_worker(_Worker())

    def _start_worker(self, worker: _Worker) -> bool:
        """Start one more thread for commits; whether there can be one."""
        if self._workers >= MOST_WORKERS:
            return False
        self._workers += 1
        if not self._start_thread(f"commits-{self._workers}", partial(self._serve, worker)):
            self._workers -= 1
            return False
        return True

    def _start_thread(self, name: str, work: Step) -> bool:
        try:
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True).start()
        except (RuntimeError, MemoryError):
            return False
        return True

    def _run(self, work: Step) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for a commit has to be told
            self._fail(error)

    def put(self, job: T) -> None:
        """Have the job carried out, at the latest after `wake`."""
        self._queue.append(job)

    def wake(self) -> None:
        """Let the threads begin with what was put."""
        with self._lock:
            if self._queue:
                self._wake_committer()

    def stop(self) -> None:
        """Let the threads end when the queue is empty."""
        with self._lock:
            self._closed = True
            if self._committer_sleeps:
                self._wake_committer()
            self._watches = True
            self._watcher.ring()
            while self._idle:
                self._idle.pop().ring()

    def _wake_committer(self) -> None:
        """There is something to do: where the committer is at work, it comes to that, or somebody else does."""
        if self._committer_sleeps:
            self._committer_sleeps = False
            self._committer.ring()
        else:
            self._call_watcher()

    def _call_watcher(self) -> None:
        """Have somebody take the committer's place where it does not go on."""
        if not self._watches:
            self._watches = True
            self._watcher.ring()

    def _serve(self, worker: _Worker) -> None:
        while self._commit(worker) if self._committer is worker else self._help(worker):
            pass

    # The committer

    def _commit(self, worker: _Worker) -> bool:
        """Do what there is to do. True when another one does it, False when there will be nothing to do any more."""
        while True:
            with suppress(MemoryError):  # what a step still had to do then is said by the job itself
                step = self._next_step(worker)
                if step is None:
                    return self._committer is not worker
                step()
                del step  # its lines may be long, and the next one late

    def _next_step(self, worker: _Worker) -> Step | None:
        with self._lock:
            if self._committer is not worker:
                self._wake_committer()  # to what came of the step that took this one so long
                return None
            self._steps += 1
            step = self._take_step()
            if step is None:
                if self._closed and not self._unended:
                    self._watcher.ring()
                    return None
                self._committer_sleeps = True
                return partial(self._sleep, worker, STALL_S if self._begun or self._awaited else -1)
            if self._has_waiting:
                self._call_watcher()
            return step

    def _take_step(self) -> Step | None:
        """What to do next; None where all is done, or done by others just now."""
        step: Step
        if self._queue and len(self._begun) < MOST_BEGUN:
            step = partial(self._begin, self._queue[0])
            del self._queue[0]
            self._unended += 1
        elif self._begun and not self._call_helpers() and not self._is_last:
            step = self._take_sync(by_helper=False)
        elif self._awaited or (self._begun and not self._is_last):
            return None
        elif self._synced:
            step = partial(self._finish, self._synced[0])
            del self._synced[0]
        elif self._has_unreported:
            step, self._has_unreported = self._report_ends, False
        else:
            return None
        return step

    def _report_ends(self) -> None:
        try:
            self._report()
        except MemoryError:
            with self._lock:
                self._has_unreported = True  # whoever waits is told once there is memory
            raise

    @property
    def _is_last(self) -> bool:
        """Whether nobody could take the committer's place if it did not come back from a sync."""
        return self._workers >= MOST_WORKERS and not self._idle

    @property
    def _has_waiting(self) -> bool:
        return bool(self._queue or self._begun or self._synced or self._has_unreported)

    def _call_helpers(self) -> bool:
        """Have what was begun synced; False for a single one that is quicker done than said, and where all are busy."""
        if len(self._begun) == 1 and not self._was_slow:
            return False
        called = min(len(self._begun), len(self._idle))
        for _ in range(called):
            self._idle.pop().ring()
        return called > 0

    def _sleep(self, worker: _Worker, seconds: float) -> None:
        if worker.sleep(seconds):
            return
        with self._lock:
            if self._committer_sleeps:
                self._committer_sleeps = False
                self._wave, self._awaited = self._wave + 1, 0
                return
        worker.sleep()  # somebody rang just now

    def _begin(self, job: T) -> None:
        began = time.monotonic()
        begun = self._begin_job(job)
        self._note_duration(began)
        if begun is None:
            self._note_end()
            return
        try:
            self._begun.append(begun)
        except MemoryError:
            begun.sync()
            self._finish(begun)

    def _finish(self, commit: BegunCommit) -> None:
        began = time.monotonic()
        try:
            commit.finish()
        finally:
            self._note_duration(began)
            self._note_end()

    def _note_duration(self, began: float) -> None:
        if time.monotonic() - began > SLOW_PAUSES * WATCH_S:
            self._had_slow_step = True

    def _note_end(self) -> None:
        with self._lock:
            self._unended -= 1
            self._has_unreported = True

    # Helpers, and whoever syncs

    def _help(self, worker: _Worker) -> bool:
        """Sync what was begun, or sleep until there is something; False when there will be nothing any more."""
        with self._lock:
            step = self._take_sync(by_helper=True) if self._begun else None
            if step is None:
                if self._closed or len(self._idle) >= HELPERS:
                    self._workers -= 1
                    return False
                self._idle.append(worker)
        if step is not None:
            step()
        else:
            worker.sleep()
        return True

    def _take_sync(self, *, by_helper: bool) -> Step:
        step = partial(self._sync, self._begun[0], self._wave, by_helper)
        del self._begun[0]
        self._awaited += 1
        return step

    def _sync(self, commit: BegunCommit, wave: int, by_helper: bool) -> None:
        began = time.monotonic()
        try:
            commit.sync()
        finally:
            self._note_synced(commit, wave, time.monotonic() - began > STALL_S, by_helper)

    def _note_synced(self, commit: BegunCommit, wave: int, was_slow: bool, by_helper: bool) -> None:
        try:
            self._synced.append(commit)
        except MemoryError:
            self._finish(commit)
        with self._lock:
            self._was_slow = was_slow
            if wave == self._wave:
                self._awaited -= 1
            # A committer that synced by itself comes to the rest next, or tells the one that has its place.
            if by_helper and (wave != self._wave or not (self._awaited or self._begun)):
                self._wake_committer()

    # The watcher

    def _watch(self) -> None:
        wary = 0
        while not self._closed:
            self._watcher.sleep()
            seen, pauses = -1, 1
            while (step := self._replace_stalled_committer(seen)) is not None:
                # Where one file hangs, others may.
                if step == seen or self._had_slow_step:
                    wary, self._had_slow_step = WARY_LOOKS, False
                pauses = 1 if wary or seen < 0 else min(2 * pauses, MOST_PAUSES)
                seen, wary = step, max(wary - 1, 0)
                self._watcher.sleep(pauses * WATCH_S)

    def _replace_stalled_committer(self, seen: int) -> int | None:
        """Replace the committer where it is still at the same step; its step now. None where nobody waits for it.

        As long as it goes on, it is looked at again and again: to be asked to costs more.
        """
        with self._lock:
            if self._steps == seen or self._closed:
                if self._committer_sleeps or not self._has_waiting:
                    self._watches = self._closed
                    return None
                if self._steps == seen:
                    self._replace_committer()
            return self._steps

    def _replace_committer(self) -> None:
        """Give its place to a helper, or to a new thread where all of them wait for the disk."""
        before = self._committer
        if self._idle:
            self._committer = self._idle.pop()
            self._committer.ring()
            return
        self._committer = _Worker()
        if not self._start_worker(self._committer):
            self._committer = before
