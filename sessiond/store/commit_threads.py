"""Threads that carry out commits, so that one slow file does not hold up the others.

One thread does all the work while commits are quick: more of them would only contend with the event loop for the
interpreter lock (64 clients: a third more appends). Where a commit takes longer than `STALL_S`, as on a network disk,
another thread goes on with the queue, and with it the file system can merge syncs. Knows commits as functions.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

THREADS = 4
# A commit takes 0.2 ms on a quiet disk. A job that waits for longer than this gets another thread.
STALL_S = 0.002

T = TypeVar("T")


class CommitThreads(Generic[T]):
    """Calls `carry_out(job)` for every job, in the order in which they were put, in one thread or more.

    `carry_out` must not raise.
    """

    def __init__(self, carry_out: Callable[[T], None]) -> None:
        self._carry_out = carry_out
        self._queue: deque[T] = deque()
        self._lock = threading.Lock()
        self._first_is_wanted = threading.Condition(self._lock)
        self._another_is_wanted = threading.Condition(self._lock)
        self._first_waits = self._another_watches = self._closed = False
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
        """Have the job carried out."""
        with self._lock:
            self._queue.append(job)
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
        while self._carry_out_next(self._take_first()):
            pass

    def _serve_another(self) -> None:
        was_slow, goes_on = False, True
        while goes_on:
            job, began = self._take_stalled(was_slow), time.monotonic()
            goes_on = self._carry_out_next(job)
            was_slow = time.monotonic() - began > STALL_S
            del job  # its lines may be long, and the next one late

    def _carry_out_next(self, job: T | None) -> bool:
        if job is None:
            return False
        with suppress(MemoryError):  # what it still had to do then is said by the job itself
            self._carry_out(job)
        return True

    def _take_first(self) -> T | None:
        with self._lock:
            while not self._queue:
                if self._closed:
                    return None
                self._first_waits = True
                self._first_is_wanted.wait()
            return self._take()

    def _take_stalled(self, was_slow: bool) -> T | None:
        """The next job: at once while commits are slow, else when the other threads took none for so long that they
        must be stuck.
        """
        with self._lock:
            while not (self._queue and was_slow):
                was_slow = False
                if self._queue and not self._another_watches:
                    if self._is_stalled():
                        break
                elif self._closed:
                    return None
                else:
                    self._another_is_wanted.wait()
            return self._take()

    def _is_stalled(self) -> bool:
        """Whether nothing is taken from the queue for `STALL_S`."""
        taken, self._another_watches = self._taken, True
        self._another_is_wanted.wait(STALL_S)
        self._another_watches = False
        return bool(self._queue) and self._taken == taken

    def _take(self) -> T:
        self._taken += 1
        job = self._queue.popleft()
        if self._queue and not self._another_watches:
            self._another_is_wanted.notify()
        return job
