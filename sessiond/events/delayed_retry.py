"""Retry in a second what failed with a temporary error. Knows which errors are temporary, not what is retried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

from sessiond.store import dirfd

# A lack of descriptors or an incomplete line either passes quickly or lasts; a retry costs little.
RETRY_S = 1.0
T = TypeVar("T", bound=Hashable)


class DelayedRetry(Generic[T]):
    """Calls `retry(thing)` for each thing scheduled. `run` is a background task that sleeps while there is none."""

    def __init__(self, retry: Callable[[T], Awaitable[None]]) -> None:
        self._retry = retry
        self._scheduled: dict[T, None] = {}
        self._wake = trio.Event()

    def retry_if_passing(self, thing: T, error: OSError | MemoryError) -> bool:
        """Schedule a retry for `thing` if `error` is a temporary one (no free descriptor ...); whether it was."""
        if not dirfd.is_passing(error):
            return False
        self._scheduled[thing] = None
        self._wake.set()
        return True

    async def run(self) -> None:
        """Retry what was scheduled, a second later, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await trio.sleep(RETRY_S)
            scheduled, self._scheduled = self._scheduled, {}
            for thing in scheduled:
                await self._retry(thing)
