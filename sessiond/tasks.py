"""Nurseries with a will of their own. Knows Trio only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def detached_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks end by themselves: cancelling the block ends the block, then waits for them.

    Shielding the nursery itself would shield the block as well, and nothing could ever end it.
    """
    over = trio.Event()

    async def hold(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                task_status.started(nursery)
                await over.wait()

    async with trio.open_nursery() as outer:
        nursery: trio.Nursery = await outer.start(hold)
        try:
            yield nursery
        finally:
            over.set()
