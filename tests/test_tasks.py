"""A nursery whose tasks end by themselves."""

from __future__ import annotations

import trio
import trio.testing

from sessiond.tasks import detached_nursery


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
