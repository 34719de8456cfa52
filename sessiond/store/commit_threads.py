"""Threads that carry out commits, so that one slow file does not hold up the others.

One thread does all the work while commits are quick: more of them would only contend with the event loop for the
interpreter lock (64 clients: a third more appends). It begins all jobs that wait. Then the others help to finish them,
because the file system joins syncs that come at once: three times as many appends to 16 sessions. They are reported
together, with one wake-up of the event loop. Where a step takes longer than `STALL_S`, as on a network disk, another
thread goes on with the rest. Knows commits as functions.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

THREADS = 6
# A step takes 0.2 ms on a quiet disk. One that waits for longer than this gets another thread.
STALL_S = 0.002

# So many are begun before they are finished: of more, the first would wait too long for its turn.
MOST_BEGUN = 32

T = TypeVar("T")
Step = Callable[[], None]


class CommitThreads(Generic[T]):
    """Calls `carry_out(job)` for every job, in the order in which they were put, in one thread or more.

    It returns what is left to do, if anything, which is called when all that wait have been begun: what was written to
    several files is synced together. `report` is called when jobs have ended and nothing else is to be done just now;
    it is not kept waiting by a slow job either. None of them may raise.
    """

    def __init__(self, carry_out: Callable[[T], Step | None], report: Callable[[], None]) -> None:
        self._carry_out, self._report = carry_out, report
        self._queue: deque[T] = deque()
        self._begun: deque[Step] = deque()
        self._lock = threading.Lock()
        self._first_is_wanted = threading.Condition(self._lock)
        self._another_is_wanted = threading.Condition(self._lock)
        self._first_waits = self._another_watches = self._closed = False
        self._has_unreported = False
        self._taken = 0

    def start(self) -> None:
        """Start the threads. OSError where not even one can be started; fewer do the work too."""
        for number in range(THREADS):
            serve = self._serve_first if not number else self._serve_another
            try:
                threading.Thread(target=serve, name=f"commits-{number}", daemon=True).start()
            except RuntimeError:
                if not number:
                    raise OSError("no thread could be started") from None

    def put(self, job: T) -> None:
        """Have the job carried out, at the latest after `wake`."""
        self._queue.append(job)

    def wake(self) -> None:
        """Let the threads begin with what was put."""
        with self._lock:
            if not self._queue:
                return
            if self._first_waits:
                self._first_waits = False
                self._first_is_wanted.notify()
            elif not self._another_watches:
                self._another_is_wanted.notify()

    def stop(self) -> None:
        """Let the threads end when the queue is empty."""
        with self._lock:
            self._closed = True
            self._first_is_wanted.notify_all()
            self._another_is_wanted.notify_all()

    def _serve_first(self) -> None:
        while (step := self._take_first()) is not None:
            _perform(step)
            del step  # its lines may be long, and the next one late

    def _serve_another(self) -> None:
        was_slow = False
        while (step := self._take_stalled(was_slow)) is not None:
            taken, began = self._taken, time.monotonic()
            _perform(step)
            # Also where all others are stuck: they have taken nothing meanwhile.
            was_slow = time.monotonic() - began > STALL_S or self._taken == taken
            del step

    def _take_first(self) -> Step | None:
        with self._lock:
            while not self._has_steps:
                if self._closed:
                    return None
                self._first_waits = True
                self._first_is_wanted.wait()
            return self._take()

    def _take_stalled(self, was_slow: bool) -> Step | None:
        """The next step: at once while commits are slow and where only syncs or their report are left, else when the
        other threads took none for so long that they must be stuck.
        """
        with self._lock:
            while not (self._has_steps and was_slow) and not self._has_only_syncs and not self._has_only_report:
                was_slow = False
                if self._has_steps and not self._another_watches:
                    if self._is_stalled():
                        break
                elif self._closed:
                    return None
                else:
                    self._another_is_wanted.wait()
            return self._take()

    @property
    def _has_steps(self) -> bool:
        return bool(self._queue or self._begun or self._has_unreported)

    @property
    def _has_only_syncs(self) -> bool:
        """Whether all that wait were begun. Several threads finish them, because the file system joins their syncs."""
        return bool(self._begun) and not self._queue

    @property
    def _has_only_report(self) -> bool:
        """Whether a job ended when the first thread had nothing left to do, so that nobody else reports it."""
        return self._has_unreported and self._first_waits and not self._queue

    def _is_stalled(self) -> bool:
        """Whether no step is taken for `STALL_S`, although there are some."""
        taken, self._another_watches = self._taken, True
        self._another_is_wanted.wait(STALL_S)
        self._another_watches = False
        return self._has_steps and self._taken == taken

    def _take(self) -> Step:
        step: Step
        self._taken += 1
        if self._queue and len(self._begun) < MOST_BEGUN:
            step = partial(self._begin, self._queue[0])
            del self._queue[0]
        elif self._begun:
            step = partial(self._finish, self._begun[0])
            del self._begun[0]
        else:
            step, self._has_unreported = self._report, False
        if self._has_only_syncs or (self._has_steps and not self._another_watches):
            self._another_is_wanted.notify()
        return step

    def _begin(self, job: T) -> None:
        rest = self._carry_out(job)
        if rest is None:
            self._has_unreported = True
            return
        try:
            with self._lock:
                self._begun.append(rest)
        except MemoryError:
            self._finish(rest)

    def _finish(self, rest: Step) -> None:
        began = time.monotonic()
        try:
            rest()
        finally:
            self._has_unreported = True
        if time.monotonic() - began > STALL_S:
            # On a slow disk those who wait for this one would have nothing to write until the others are synced.
            self._has_unreported = False
            self._report()


def _perform(step: Step) -> None:
    with suppress(MemoryError):  # what it still had to do then is said by the job itself
        step()
