"""Threads in which pages and previews of transcripts are read: a file that hangs leaves threads for the others.

And whether one more is to be read without a thread just now. Knows what is read as a key. Does not know files.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar
from weakref import WeakValueDictionary

import trio

from sessiond.errors import Overloaded
from sessiond.tasks import DiskThreads, take_place

T = TypeVar("T")
# A page takes the interpreter for most of its time: more threads at once are not faster.
_READING_THREADS = 16
# So many more may hang before others wait; of one session so many wait at once.
_MOST_STUCK_READS = 64
MOST_OF_ONE = 4
# Longer than a disk takes that only has much to do.
PATIENCE_S = 30.0


class _LoopTurn(trio.abc.Instrument):
    """What happened since the event loop last looked for what has arrived."""

    def __init__(self) -> None:
        self.has_read = False

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - how Trio calls it
        self.has_read = False


class ReadingThreads:
    """Calls functions in worker threads, at most `MOST_OF_ONE` at once for the same key, while `watch` runs."""

    def __init__(self) -> None:
        self._threads = DiskThreads(_READING_THREADS, _MOST_STUCK_READS)
        self._places: WeakValueDictionary[Hashable, trio.CapacityLimiter] = WeakValueDictionary()
        self._turn = _LoopTurn()
        # For reads of many sessions: one of them that hangs is not to hold up those of others.
        self.read_many = self._threads

    async def watch(self) -> None:
        """Let others begin in place of what is stuck; until cancelled."""
        trio.lowlevel.add_instrument(self._turn)
        try:
            await self._threads.watch()
        finally:
            trio.lowlevel.remove_instrument(self._turn)

    def may_read_at_once(self) -> bool:
        """Whether the caller may read something short on the event loop: one may in each of its turns, so that many
        that ask at the same time do not hold it up.
        """
        may, self._turn.has_read = not self._turn.has_read, True
        return may

    async def wait_for_place(self, key: Hashable) -> None:
        """Return when a call with this key would begin. Whoever takes memory for what it reads awaits it first: else
        those that wait for a file that hangs would hold what others need. Raises Overloaded after `PATIENCE_S`.
        """
        places = self._places.get(key)
        if places is None or places.available_tokens:
            return
        with trio.move_on_after(PATIENCE_S):
            async with places:
                return
        raise Overloaded(
            f"{MOST_OF_ONE} reads of this session wait for its disk already; try again later", retryAfterMs=1000
        )

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
