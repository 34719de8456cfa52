"""The ledger of commands in a thread of its own: a disk that is slow to sync does not keep the event loop waiting.

Whatever changes it is told, so that nobody who writes has to think of those who show it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

import structlog

from sessiond.client.retry import Backoff
from sessiond.errors import StorageError
from sessiond.link.command_ledger import CommandLedger

log = structlog.get_logger("sessiond.link")

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


class LedgerThread:
    """`await thread.do(CommandLedger.find, peer, command_id)`. `changed()` is called in the loop after every write."""

    def __init__(self, ledger: CommandLedger, changed: Callable[[], object]) -> None:
        self._ledger, self._changed = ledger, changed
        self._thread = ThreadPoolExecutor(1, "ledger")

    async def do(
        self,
        method: Callable[Concatenate[CommandLedger, _Given], _Found],
        /,
        *values: _Given.args,
        **named: _Given.kwargs,
    ) -> _Found:
        """What the method returns. StorageError where the disk refuses."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread, self._work, loop, partial(method, self._ledger, *values, **named)
        )

    def _work(self, loop: asyncio.AbstractEventLoop, work: Callable[[], _Found]) -> _Found:
        before = self._ledger.changes
        try:
            return work()
        finally:
            # From here, as whoever waits may be cancelled meanwhile, and the write is done all the same.
            if self._ledger.changes != before:
                loop.call_soon_threadsafe(self._changed)

    async def retry(
        self,
        method: Callable[Concatenate[CommandLedger, _Given], _Found],
        /,
        *values: _Given.args,
        **named: _Given.kwargs,
    ) -> _Found:
        """As `do`, for as long as the disk refuses."""
        backoff = Backoff(0.2, 30.0)
        while True:
            try:
                return await self.do(method, *values, **named)
            except StorageError as error:
                log.error("the ledger of commands is not written", reason=error.message)
                await asyncio.sleep(backoff.next_s())

    def close(self) -> None:
        self._thread.shutdown()
        self._ledger.close()
