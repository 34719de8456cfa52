"""Long work in worker threads, a slice at a time: the daemon's other answers go on, and a cancelled one ends at once.

Knows threads and time; does not know the work. One slice at a time in the whole daemon: more threads of Python code
would not be quicker together, and everybody else would wait for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import trio

from sessiond.clock import Clock
from sessiond.store.committer import RunSync
from sessiond.tasks import run_in_thread

# What a cancelled caller may have to wait for. A thread hop costs a hundredth of it.
SLICE_S = 0.01


class TimeSlicer:
    """Takes turns between those who have long work. One of these a daemon."""

    def __init__(self, run_sync: RunSync = run_in_thread, clock: Clock | None = None) -> None:
        self._run_sync = run_sync
        self._clock = clock or Clock()
        self._turn = trio.Lock()

    async def run(self, work: Iterator[Any]) -> None:
        """Take `work` to its end. It yields wherever it may be interrupted, every millisecond or so; it is closed when
        the caller is cancelled."""
        try:
            more = True
            while more:
                async with self._turn:
                    more = await self._run_sync(self._slice, work)
        finally:
            close = getattr(work, "close", None)
            if close is not None:
                close()

    def _slice(self, work: Iterator[Any]) -> bool:
        deadline = self._clock.monotonic() + SLICE_S
        return any(self._clock.monotonic() >= deadline for _ in work)
