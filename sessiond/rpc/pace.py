"""How much is done in one turn of the event loop for those who are not the owner. Knows time; does not know the work.

Each piece of work is short, but all that became ready at once is done in one turn: sixty-four requests of each of two
hundred connections. So pieces are let through one after the other, and what does not fit waits for the next turn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import trio

# A turn of so long goes unnoticed; a ping takes two turns.
TURN_S = 0.004


class Pace(trio.abc.Instrument):
    """One of these a daemon. Whoever has a piece of work to do awaits `turn` before it."""

    def __init__(self, turn_s: float = TURN_S, now: Callable[[], float] = time.perf_counter) -> None:
        self._turn_s, self._now = turn_s, now
        self._began = 0.0
        self._running = False
        self._waiting: deque[trio.Event] = deque()

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """Trio begins a turn."""
        self._began = self._now()

    async def turn(self) -> None:
        """Returns at once while this turn of the loop has time left, else in a later one; first come, first served."""
        if not self._running:
            self._running = True
            trio.lowlevel.add_instrument(self)
            self._began = self._now()
        if not self._waiting and self._now() - self._began < self._turn_s:
            return
        mine = trio.Event()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            self._wake_later()
        try:
            await mine.wait()
        finally:
            if not mine.is_set():
                self._waiting.remove(mine)

    def _wake_later(self) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(self._wake)

    def _wake(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()
        if self._waiting:
            self._wake_later()
