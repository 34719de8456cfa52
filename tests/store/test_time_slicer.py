from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import trio

from sessiond.clock import Clock
from sessiond.store.time_slicer import SLICE_S, TimeSlicer


class _ManualTime:
    """Time that passes only when the work advances it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slices = 0

    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now_s)

    async def inline(self, function: Callable[..., Any], *args: Any) -> Any:
        self.slices += 1
        await trio.lowlevel.checkpoint()
        return function(*args)


def _work(time: _ManualTime, steps: int, step_s: float, done: list[int]) -> Iterator[None]:
    try:
        for number in range(steps):
            time.now_s += step_s
            done.append(number)
            yield
    finally:
        done.append(-1)


async def test_work_is_done_in_slices_until_it_is_complete() -> None:
    time, done = _ManualTime(), list[int]()
    await TimeSlicer(time.inline, time.clock()).run(_work(time, 25, SLICE_S / 10, done))
    assert done == [*range(25), -1]
    assert time.slices == 3


async def test_a_long_step_ends_its_slice() -> None:
    time, done = _ManualTime(), list[int]()
    await TimeSlicer(time.inline, time.clock()).run(_work(time, 3, SLICE_S, done))
    assert time.slices == 4


async def test_cancelled_work_is_closed_after_the_slice_it_is_in() -> None:
    time, done = _ManualTime(), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(TimeSlicer(time.inline, time.clock()).run, _work(time, 10**9, SLICE_S, done))
        while len(done) < 3:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert done[-1] == -1
    assert len(done) < 10


async def test_two_tasks_alternate_their_slices() -> None:
    time = _ManualTime()
    slices = TimeSlicer(time.inline, time.clock())
    order: list[str] = []

    def steps(name: str) -> Iterator[None]:
        for _ in range(4):
            time.now_s += SLICE_S
            order.append(name)
            yield

    async with trio.open_nursery() as nursery:
        nursery.start_soon(slices.run, steps("a"))
        nursery.start_soon(slices.run, steps("b"))
    assert sorted(order[:2]) == sorted(order[2:4]) == ["a", "b"]


async def test_slices_run_in_real_threads() -> None:
    done: list[int] = []
    await TimeSlicer().run(iter(done.append(number) for number in range(100)))
    assert done == list(range(100))
