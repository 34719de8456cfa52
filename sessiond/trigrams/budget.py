"""Which part of a core building the index takes, and when it rests. Knows no index.

Work goes on in slices in a worker thread. Each is followed by a rest that is as long as the configured share asks for,
and longer while sessions are written to or copied.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import trio

from sessiond.tasks import let_others_run

# The work of one slice, in seconds of processor time.
_SLICE_S = 0.01
# After so much of it others have their turn.
_PIECE_S = 0.0008
# A daemon that wrote, or let a session be copied, within this time is busy: then building delays few of its answers.
_BUSY_S, _BUSY_FACTOR = 0.1, 10


class BuildBudget:
    """`share` is the part of a core that may be used, over 0 and up to 1. `cpu_s` is the processor time of the thread
    in seconds.
    """

    def __init__(self, share: Callable[[], float], cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._share, self._cpu_s = share, cpu_s
        self._active_at = -math.inf
        self._is_stopping = False

    def note_activity(self) -> None:
        """A session was written to just now, or another machine copies one."""
        self._active_at = trio.current_time()

    def stop(self) -> None:
        """Let a slice that goes on end at once."""
        self._is_stopping = True

    def run_slice(self, work: Iterator[None]) -> tuple[bool, float]:
        """Do some steps of `work`: whether there are more, and how many seconds of a core it took. Blocks."""
        began = rested = self._cpu_s()
        for _ in work:
            now = self._cpu_s()
            if now - began >= _SLICE_S or self._is_stopping:
                return True, now - began
            if now - rested >= _PIECE_S:
                let_others_run()
                rested = now
        return False, self._cpu_s() - began

    async def rest(self, used_s: float) -> None:
        """Rest after a slice that took so many seconds of a core."""
        is_busy = trio.current_time() - self._active_at < _BUSY_S
        await trio.sleep(used_s / self._share() * (_BUSY_FACTOR if is_busy else 1) - used_s)
