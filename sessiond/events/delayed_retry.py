"""What could not be looked at is looked at again in a second. Knows errors that pass, not what is looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

from sessiond.store import dirfd

# A lack of descriptors and a half line pass quickly or last; looking costs little.
LOOK_AGAIN_S = 1.0
T = TypeVar("T", bound=Hashable)


class DelayedRetry(Generic[T]):
    """Sleeps while there is nothing. `run` belongs to the background nursery."""

    def __init__(self, look: Callable[[T], Awaitable[None]]) -> None:
        self._look = look
        self._refused: dict[T, None] = {}
        self._refusal = trio.Event()

    def takes(self, thing: T, error: OSError) -> bool:
        """Whether `thing` is looked at again, because the error says nothing of it."""
        if not dirfd.is_passing(error):
            return False
        self._refused[thing] = None
        self._refusal.set()
        return True

    async def run(self) -> None:
        """Look again at what was refused a second ago, until cancelled."""
        while True:
            await self._refusal.wait()
            self._refusal = trio.Event()
            await trio.sleep(LOOK_AGAIN_S)
            refused, self._refused = self._refused, {}
            for thing in refused:
                await self._look(thing)
