"""Threads in which transcripts are read for clients: a file that hangs leaves threads for the others.

Knows what is read as a key. Does not know files.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

import trio

from sessiond.tasks import DiskThreads, take_place

T = TypeVar("T")
# A page takes the interpreter for most of its time: more threads at once are not faster.
_READING_THREADS = 16
# So many more may hang before others wait; of one file, or of one kind of reads of many, so many wait at once.
_MOST_STUCK_READS = 64
MOST_OF_ONE = 4


class ReadingThreads:
    """Calls functions in worker threads, at most `MOST_OF_ONE` at once for the same key, while `watch` runs."""

    def __init__(self) -> None:
        self._threads = DiskThreads(_READING_THREADS, _MOST_STUCK_READS)
        self._places: dict[Hashable, trio.CapacityLimiter] = {}
        self.watch = self._threads.watch

    async def wait_for_place(self, key: Hashable) -> None:
        """Return when a call with this key would begin. Whoever takes memory for what it reads awaits it first: else
        those that wait for a file that hangs would hold what others need.
        """
        places = self._places.get(key)
        if places is not None and not places.available_tokens:
            async with places:
                return

    async def __call__(self, key: Hashable, function: Callable[..., T], *args: object) -> T:
        """The result of `function`, which reads what `key` stands for. Errors as of `run_in_thread`."""
        places = self._places.get(key)
        if places is None:
            places = self._places[key] = trio.CapacityLimiter(MOST_OF_ONE)
        await take_place(places)
        try:
            return await self._threads(function, *args)
        finally:
            places.release()
            if not places.borrowed_tokens and not places.statistics().tasks_waiting:
                self._places.pop(key, None)
