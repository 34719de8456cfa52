"""Files that could not be read because of a temporary error are looked at again a second later."""

from __future__ import annotations

import errno
import os
from typing import Any

import trio
from support.rows import check_each

from sessiond.events.delayed_retry import RETRY_S, DelayedRetry


def error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@check_each(
    ("code", "passes"),
    [(errno.EMFILE, True), (errno.EIO, True), (errno.ENOENT, False), (errno.EACCES, False), (errno.ELOOP, False)],
)
async def test_only_temporary_errors_are_retried(autojump_clock: Any, code: int, *, passes: bool) -> None:
    looked: list[tuple[str, float]] = []

    async def look(thing: str) -> None:
        looked.append((thing, trio.current_time()))

    async with trio.open_nursery() as nursery:
        again = DelayedRetry[str](look)
        nursery.start_soon(again.run)
        await trio.testing.wait_all_tasks_blocked()
        now = trio.current_time()
        # Two failures within the second lead to one retry.
        assert [again.retry_if_passing("a", error(code)) for _ in range(2)] == [passes] * 2
        await trio.sleep(10 * RETRY_S)
        assert looked == ([("a", now + RETRY_S)] if passes else [])
        nursery.cancel_scope.cancel()


async def test_a_retry_that_fails_again_is_repeated_each_second(autojump_clock: Any) -> None:
    looked: list[float] = []

    async def look(thing: str) -> None:
        looked.append(trio.current_time())
        if len(looked) < 3:
            assert again.retry_if_passing(thing, error(errno.EMFILE))

    async with trio.open_nursery() as nursery:
        again = DelayedRetry[str](look)
        nursery.start_soon(again.run)
        now = trio.current_time()
        assert again.retry_if_passing("a", error(errno.EMFILE))
        await trio.sleep(10 * RETRY_S)
        assert looked == [now + RETRY_S * number for number in (1, 2, 3)]
        nursery.cancel_scope.cancel()
