"""Asyncio with a clock that jumps to the next moment for which something waits, so that no test waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next moment for which something waits."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            moments = [one.when() for one in self._scheduled if not one.cancelled()]  # type: ignore[attr-defined]
            self.ahead += max(0.0, min(moments, default=0.0) - self.time())
        super()._run_once()  # type: ignore[misc]


def run_jumping(body: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(body())  # type: ignore[arg-type]
