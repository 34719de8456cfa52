"""A nursery whose tasks end by themselves; threads of which some hang."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from support.patience import PATIENCE_S

from sessiond.errors import NoThread
from sessiond.tasks import LONG_BYTES, STUCK_S, DiskThreads, detached_nursery, run_in_thread, run_off_loop


async def test_cancelling_ends_the_block_and_waits_for_its_tasks() -> None:
    events: list[str] = []

    async def work() -> None:
        await trio.testing.wait_all_tasks_blocked()
        events.append("the task ended")

    with trio.CancelScope() as scope:
        async with detached_nursery() as nursery:
            nursery.start_soon(work)
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                events.append("the block ended")
    assert events == ["the block ended", "the task ended"]


async def test_one_that_is_cancelled_before_it_is_open_ends() -> None:
    with trio.fail_after(5), trio.CancelScope() as scope:
        scope.cancel()
        async with detached_nursery():
            await trio.sleep_forever()
    assert scope.cancelled_caught


class Payload:
    """What a weak reference can watch."""


async def test_what_a_thread_was_given_is_gone_once_its_error_is() -> None:
    def refuse(_payload: Payload) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("refused") from error

    gc.collect()
    gc.disable()
    try:
        payload = Payload()
        left = weakref.ref(payload)
        with pytest.raises(ValueError, match="refused") as refused:
            await run_in_thread(refuse, payload)
        assert isinstance(refused.value.__cause__, KeyError)
        del payload, refused
        assert left() is None
    finally:
        gc.enable()
    assert await run_in_thread(len, "four") == 4


MOST, MOST_STUCK = 2, 3


class HangingCalls:
    """Calls of `threads` that hang, each in a task of its own, until the test lets them go on."""

    def __init__(self, threads: DiskThreads, nursery: trio.Nursery) -> None:
        self.threads, self.nursery = threads, nursery
        self.release = [threading.Event() for _ in range(MOST + MOST_STUCK + 1)]
        self.begun = trio.Semaphore(0)
        self.ended: list[int] = []

    def start(self, number: int) -> None:
        self.nursery.start_soon(self._hang, number)

    async def _hang(self, number: int) -> None:
        def hang() -> None:
            trio.from_thread.run_sync(self.begun.release)
            self.release[number].wait()

        await self.threads(hang)
        self.ended.append(number)


@asynccontextmanager
async def hanging_calls(patience_s: float = PATIENCE_S) -> AsyncIterator[HangingCalls]:
    threads = DiskThreads(MOST, MOST_STUCK)
    with trio.fail_after(patience_s):
        async with trio.open_nursery() as outer:
            outer.start_soon(threads.watch)
            async with trio.open_nursery() as nursery:
                calls = HangingCalls(threads, nursery)
                try:
                    yield calls
                finally:
                    for event in calls.release:
                        event.set()
            outer.cancel_scope.cancel()


async def test_calls_that_hang_keep_no_others_waiting() -> None:
    async with hanging_calls() as calls:
        for number in range(MOST + MOST_STUCK - 1):
            calls.start(number)
        for _ in range(MOST + MOST_STUCK - 1):
            await calls.begun.acquire()
        assert [await calls.threads(abs, -number) for number in range(20)] == list(range(20))
        assert calls.ended == []


async def test_only_so_many_calls_may_hang_before_others_wait_for_one_of_them(autojump_clock: object) -> None:
    async with hanging_calls(math.inf) as calls:
        for number in range(MOST + MOST_STUCK):
            calls.start(number)
        for _ in range(MOST + MOST_STUCK):
            await calls.begun.acquire()
        with trio.move_on_after(10 * STUCK_S) as waited:
            await calls.threads(abs, -1)
        assert waited.cancelled_caught
        calls.release[0].set()
        assert await calls.threads(abs, -1) == 1
        assert calls.ended == [0]


async def test_once_nothing_hangs_no_more_than_the_most_work_at_once() -> None:
    async with hanging_calls() as calls:
        for number in range(MOST + MOST_STUCK):
            calls.start(number)
        for _ in range(MOST + MOST_STUCK):
            await calls.begun.acquire()
        for event in calls.release:
            event.set()
        assert await calls.threads(abs, -1) == 1
        await trio.testing.wait_all_tasks_blocked(0.01)
        at_work, most = 0, 0
        lock = threading.Lock()

        def work() -> None:
            nonlocal at_work, most
            with lock:
                at_work += 1
                most = max(most, at_work)
            trio.from_thread.run(trio.lowlevel.checkpoint)
            with lock:
                at_work -= 1

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(calls.threads, work)
        assert most == MOST


async def test_an_error_of_a_call_gives_its_place_back() -> None:
    async with hanging_calls() as calls:
        for _ in range(2 * (MOST + MOST_STUCK)):
            with pytest.raises(ZeroDivisionError):
                await calls.threads(divmod, 1, 0)


async def test_long_work_runs_in_a_thread_and_short_work_or_without_a_thread_at_once() -> None:
    async def refuse(*_: object) -> None:
        raise NoThread

    here = threading.get_ident()
    assert await run_off_loop(LONG_BYTES, threading.get_ident) == here
    assert await run_off_loop(LONG_BYTES + 1, threading.get_ident) != here
    assert await run_off_loop(LONG_BYTES + 1, threading.get_ident, run_sync=refuse) == here


async def test_the_result_of_long_work_is_not_lost_by_a_cancellation() -> None:
    results: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        results.append(await run_off_loop(LONG_BYTES + 1, lambda: 7))
    assert results == [7]
