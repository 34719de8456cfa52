"""The ranges of one answer: some are read ahead, some are on their way, so that neither the daemon nor the server is
waited for between two of them. Knows offsets. Does not know whether they may be sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sessiond.link.ranges import RANGE_BYTES
from sessiond.link.transcript_bytes import FoundBytes, OtherContent

# Ranges that the daemon is asked for at once, and those that the server has not acknowledged yet: it writes each to the
# disk before it does.
READ_AT_ONCE, SENT_AT_ONCE = 2, 4
# Two ranges take the daemon 2 to 6 ms. What takes longer waited for others, who come first then.
_BUSY_S, _MAX_PAUSE_S = 0.05, 0.2

T = TypeVar("T")


class RangeAnswer:
    """`read(at)` is a range from there on, None where nothing may be sent any more; `send(found)` returns when the
    server has it.
    """

    def __init__(
        self,
        read: Callable[[int], Coroutine[Any, Any, FoundBytes | None]],
        send: Callable[[FoundBytes], Coroutine[Any, Any, None]],
        *,
        overlap_bytes: int,
        read_at_once: int = READ_AT_ONCE,
    ) -> None:
        self._read, self._send, self._read_at_once = read, send, read_at_once
        self._overlap_bytes = overlap_bytes
        self._reading: deque[asyncio.Task[tuple[FoundBytes | None, float]]] = deque()
        self._sending: deque[asyncio.Task[None]] = deque()

    async def send_between(self, at: int, end: int) -> None:
        """Send what lies there, as far as there is so much. What `read` and `send` raise; OtherContent where the
        transcript ends before `at`.
        """
        try:
            try:
                await self._send_ranges(at, end)
            finally:
                await _cancel(self._reading)
            while self._sending:
                await self._sending.popleft()
        finally:
            await _cancel(self._sending)

    async def _send_ranges(self, at: int, end: int) -> None:
        next_at, most = at, 1  # most sessions are shorter than a range: nothing is read ahead before the first one
        while at < end:
            if not self._reading:
                next_at = at  # of what was read last there may be less than was asked for
            while next_at < end and len(self._reading) < most:
                begin = max(0, next_at - self._overlap_bytes)
                self._reading.append(asyncio.create_task(self._read_timed(begin)))
                next_at = begin + RANGE_BYTES
            found, took_s = await self._reading.popleft()
            if found is None:
                return
            if found.size < at:
                raise OtherContent
            if found.begin > at:  # the one before it was shorter
                await _cancel(self._reading)
                continue
            if took_s > _BUSY_S:
                await asyncio.sleep(min(took_s, _MAX_PAUSE_S))
            if len(self._sending) == SENT_AT_ONCE:
                await self._sending.popleft()
            self._sending.append(asyncio.create_task(self._send(found)))
            at = found.to
            if at >= found.size:
                return
            end, most = min(end, found.size), self._read_at_once

    async def _read_timed(self, at: int) -> tuple[FoundBytes | None, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await self._read(at)
        return found, loop.time() - began


async def _cancel(tasks: deque[asyncio.Task[T]]) -> None:
    for task in tasks:
        task.cancel()
    # Their own errors must not take the place of the one with which it ends.
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
