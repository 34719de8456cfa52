"""Sends a command until it is cancelled: after pauses while the server is away, and again while there is no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sessiond.client.retry import Backoff
from sessiond.link.failures import LinkError

# When a command is sent again without an answer, to a machine that is there: the server may have lost it.
FIRST_AGAIN_S = 5.0
MAX_AGAIN_S = 600.0


class RepeatedSending:
    """`send(peer, id, body)` returns once the server has the command, and raises LinkError while it cannot be reached.
    `is_there(peer)`: whether the machine is awake.
    """

    def __init__(self, send: Callable[[str, str, bytes], Awaitable[object]], is_there: Callable[[str], bool]) -> None:
        self._send, self._is_there = send, is_there
        self._gate = asyncio.Semaphore(32)
        self._waiting: dict[str, set[asyncio.Event]] = {}

    async def repeat(self, peer: str, command_id: str, body: bytes) -> None:
        """Send it until cancelled."""
        poked = asyncio.Event()
        self._waiting.setdefault(peer, set()).add(poked)
        try:
            await self._repeat(peer, command_id, body, poked)
        finally:
            self._waiting[peer].discard(poked)

    def note_presence(self, peer: str) -> None:
        """The machine is back: what it has not answered soon is sent again."""
        for poked in self._waiting.get(peer, ()):
            poked.set()

    async def _repeat(self, peer: str, command_id: str, body: bytes, poked: asyncio.Event) -> None:
        offline, again = Backoff(0.2, 30.0), Backoff(FIRST_AGAIN_S, MAX_AGAIN_S)
        while True:
            try:
                async with self._gate:
                    await self._send(peer, command_id, body)
            except LinkError:
                await asyncio.sleep(offline.next_s())
                continue
            offline.reset()
            # A machine that is asleep finds it when it wakes; further copies would only fill the server.
            while True:
                poked.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(again.next_s()):
                        await poked.wait()
                    again.reset()
                    continue
                if self._is_there(peer):
                    break
