"""Everything that is published on a nats-server, as its operator sees it, and whatever an operator may publish."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import nats
from support.buses import flush_whole
from support.nats_server import NatsServer
from support.patience import PATIENCE_S


class WireTap:
    """Collects every message under `x.>` and `ask.>` while its block lasts, in a thread with a client of its own."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self.messages: list[tuple[str, bytes]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._client: Any = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._connect)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.run(self._client.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """What the work returns, done in the thread."""

        async def done() -> Any:
            return await work()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(PATIENCE_S)

    async def _connect(self) -> None:
        self._client = await nats.connect(self._server.url)

        async def keep(message: Any) -> None:
            self.messages.append((message.subject, message.data))

        for subject in ("x.>", "ask.>", "_INBOX.>"):
            await self._client.subscribe(subject, cb=keep)
        await flush_whole(self._client)

    def of_kind(self, kind: str) -> list[tuple[str, bytes]]:
        """What was published for the stream under subjects of that kind."""
        return [(subject, data) for subject, data in list(self.messages) if subject.split(".")[3:4] == [kind]]

    def publish(self, subject: str, data: bytes) -> None:
        """Put a message into the stream, as an operator can."""

        async def work() -> None:
            await self._client.jetstream().publish(subject, data)

        self.run(work)

    def has(self, word: bytes) -> bool:
        """Whether the word was on the wire, or is in what the server has stored."""
        stored = (path.read_bytes() for path in self._server.store.rglob("*") if path.is_file())
        return any(word in data for _, data in list(self.messages)) or any(word in data for data in stored)
