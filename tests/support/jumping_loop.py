"""Asyncio with a clock of its own, which jumps to the next moment for which something waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class JumpingLoop(asyncio.SelectorEventLoop):
    """For tests without threads, which its clock would not wait for."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            moments = [one.when() for one in self._scheduled if not one.cancelled()]  # type: ignore[attr-defined]
            self.now = max(self.now, min(moments, default=0.0))
        super()._run_once()  # type: ignore[misc]


def run_jumping(body: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(body())  # type: ignore[arg-type]
