"""Run long work in a worker thread in time slices, so that other work goes on and cancellation takes effect quickly.

Knows threads and time; does not know the work. Only one slice runs at a time in the whole daemon, because several
threads of Python code are not faster together and delay the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import trio

from sessiond.clock import Clock
from sessiond.tasks import RunSync, run_in_thread

# A cancelled caller waits for the end of a slice. Starting one in a thread costs a hundredth of it.
SLICE_S = 0.01


class TimeSlicer:
    """Runs slices of concurrent work in turn. One per daemon."""

    def __init__(self, run_sync: RunSync = run_in_thread, clock: Clock | None = None) -> None:
        self._run_sync = run_sync
        self._clock = clock or Clock()
        self._turn = trio.Lock()

    async def run(self, work: Iterator[Any]) -> None:
        """Run `work` to its end. It has to yield about every millisecond; it is closed if the caller is cancelled."""
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
