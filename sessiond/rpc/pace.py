"""Limit the work done in one turn of the event loop for callers other than the owner. Knows time, not the work.

Each piece of work is short, but everything that is ready runs in the same turn: 64 requests of each of 200 connections.
So pieces get a turn one after the other, and those beyond the time limit wait for the next turn of the loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import trio

# A loop blocked for this long is not noticeable; a ping takes two turns.
TURN_S = 0.004


class Pace(trio.abc.Instrument):
    """One per daemon. Await `turn` before each piece of work."""

    def __init__(self, turn_s: float = TURN_S, now: Callable[[], float] = time.perf_counter) -> None:
        self._turn_s, self._now = turn_s, now
        self._began = 0.0
        self._running = False
        self._waiting: deque[trio.Event] = deque()

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """Called by Trio at the beginning of a turn."""
        self._began = self._now()

    async def turn(self) -> None:
        """Return at once while this turn of the loop has time left, else in a later turn; first come, first served."""
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
