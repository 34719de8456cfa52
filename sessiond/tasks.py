"""Helpers for Trio: a nursery whose tasks outlive a cancellation, and worker threads that may be unavailable."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import trio

from sessiond.errors import NoThread

T = TypeVar("T")
# `run_in_thread`; tests pass one that calls the function at once, or when the test lets it.
RunSync = Callable[..., Awaitable[Any]]
_PAUSE_S = 0.0003
# So many bytes of JSON, whatever they hold, take code in Python up to 20 ms: a walk over 10,000 empty objects.
LONG_BYTES = 32 * 1024
# A new transcript takes 1 ms on a quiet disk, and some 50 on one that turns and has much to do.
STUCK_S = 0.1


async def run_in_thread(
    function: Callable[..., T],
    *args: object,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
) -> T:
    """The result of `function` in a worker thread. OSError if there is no memory left to run it, NoThread if no thread.

    Callers handle OSError as a temporary failure; the library's own errors would end the daemon. With
    `abandon_on_cancel` a cancelled caller does not wait for the end of the function.
    """
    came_of_it: list[Any] = []
    try:
        await trio.to_thread.run_sync(
            _run_into, came_of_it, function, args, limiter=limiter, abandon_on_cancel=abandon_on_cancel
        )
        result: T = came_of_it.pop()
        if came_of_it:
            raise came_of_it.pop()
        return result
    except MemoryError:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        raise NoThread from None


def _run_into(came_of_it: list[Any], function: Callable[..., object], args: tuple[object, ...]) -> None:
    """Call the function: its result is added to the list, or its error and None.

    An error that a thread raises to Trio stays in a circle with the frames of its traceback, and so do the arguments
    there, until the garbage collector looks some thousand objects later: 2 GiB of 40 refused messages of 15 MiB.
    """
    try:
        came_of_it.append(function(*args))
    except Exception as error:  # noqa: BLE001 - raised by the caller
        came_of_it += (error, None)


def own_threads(most: int) -> Callable[..., Awaitable[Any]]:
    """As `run_in_thread`, with up to `most` threads at once of its own: no other work keeps this one waiting.

    Trio's default, 40 threads for everything, is used up by forty long reads.
    """
    return partial(run_in_thread, limiter=trio.CapacityLimiter(most))


# So few that the event loop gets the interpreter, and none of which waits for a disk.
compute = own_threads(2)


async def run_off_loop(size: int, function: Callable[..., T], *args: object, run_sync: RunSync = compute) -> T:
    """The result of `function`, a computation over so many bytes; it has no effects, as it may be called twice.

    Over more than LONG_BYTES it runs in a worker thread, so that the event loop has its turns meanwhile, or at once
    where there is none. A cancellation takes effect afterwards: what was received is not lost by it.
    """
    if size > LONG_BYTES:
        with suppress(OSError), trio.CancelScope(shield=True):
            result: T = await run_sync(function, *args)
            return result
    return function(*args)


async def take_place(places: trio.CapacityLimiter) -> None:
    """Acquire one of the places. One that is free is taken at once: each turn of the event loop more is time that a
    page of history takes.
    """
    try:
        places.acquire_nowait()
    except trio.WouldBlock:
        await places.acquire()


class DiskThreads:
    """As `own_threads`, for work on files: what a disk does not answer to keeps others waiting for a moment only.

    While `watch` runs, a call that takes longer than `STUCK_S` no longer counts among the `most` where others wait, so
    that another one begins; up to `most_stuck` such calls, each of which holds a thread.
    """

    def __init__(self, most: int, most_stuck: int) -> None:
        self._most, self._places = most, trio.CapacityLimiter(most)
        self._threads = trio.CapacityLimiter(most + most_stuck)
        # When those began that are not stuck, oldest first; and the others.
        self._began: dict[object, float] = {}
        self._stuck: set[object] = set()
        self._most_stuck = most_stuck
        self._is_full = trio.Event()

    async def __call__(self, function: Callable[..., T], *args: object) -> T:
        """The result of `function` in a worker thread. Errors as of `run_in_thread`."""
        call = object()
        if not self._places.available_tokens:
            self._is_full.set()
        await take_place(self._places)
        try:
            self._began[call] = trio.current_time()
            return await run_in_thread(function, *args, limiter=self._threads)
        finally:
            self._began.pop(call, None)
            if call in self._stuck:
                self._stuck.discard(call)
                self._places.total_tokens = self._most + len(self._stuck)
            self._places.release()

    async def watch(self) -> None:
        """Let others begin in place of what is stuck; until cancelled."""
        while True:
            await self._is_full.wait()
            self._is_full = trio.Event()
            while self._places.statistics().tasks_waiting:
                self._find_stuck(trio.current_time() - STUCK_S)
                await trio.sleep(STUCK_S)

    def _find_stuck(self, before: float) -> None:
        while self._began and len(self._stuck) < self._most_stuck:
            call, began = next(iter(self._began.items()))
            if began > before:
                break
            del self._began[call]
            self._stuck.add(call)
        self._places.total_tokens = self._most + len(self._stuck)


def let_others_run() -> None:
    """Give up the interpreter for a moment. For worker threads.

    A thread of Python code gives it up only after 5 ms by itself, and a read from the page cache is too short for
    another thread to take it.
    """
    time.sleep(_PAUSE_S)  # noqa: TID251 - in a thread, whose purpose it is that the event loop need not wait


@asynccontextmanager
async def detached_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks end by themselves: cancelling the block ends the block, then waits for them.

    Shielding the nursery itself would shield the block as well, and nothing could ever end it.
    """
    is_open, over = trio.Event(), trio.Event()
    nursery: trio.Nursery

    async def hold() -> None:
        nonlocal nursery
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                is_open.set()
                await over.wait()

    async with trio.open_nursery() as outer:
        outer.start_soon(hold)
        try:
            # Shielded and not `outer.start(hold)`: cancelled, that would wait for a task that nothing would end.
            with trio.CancelScope(shield=True):
                await is_open.wait()
            yield nursery
        finally:
            over.set()
