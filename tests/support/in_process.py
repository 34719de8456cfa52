"""The daemon's parts put together in the test's own process, and connections to them over socket pairs.

For tests of methods: the real table, dispatcher, store and supervisor, without listeners.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio
from support.patience import PATIENCE_S

from sessiond.clock import Clock
from sessiond.config import settings as configuration
from sessiond.daemon.app import App, open_app
from sessiond.model.caller import OWNER, Caller
from sessiond.rpc.peer import Peer
from sessiond.store.scan import Progress
from sessiond.transports.framed import ndjson_link
from sessiond.transports.streams import ByteStream


class Refused(Exception):
    """A JSON-RPC error where a result was wanted."""


class Connection:
    """One client. What comes between answers is kept in `events`."""

    def __init__(self, stream: ByteStream) -> None:
        self.events: list[dict[str, Any]] = []
        self._stream = stream
        self._lines: list[bytes] = []
        self._rest = b""
        self._next = 0

    async def send(self, method: str, /, **params: Any) -> int:
        """Ask without waiting; the request's id."""
        self._next += 1
        message = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": params}
        await self.write(msgspec.json.encode(message) + b"\n")
        return self._next

    async def write(self, data: bytes) -> None:
        """Bytes as they are."""
        await self._stream.send_all(data)

    async def close(self) -> None:
        """End the connection."""
        self._stream.close()

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        while not self._lines:
            data = await self._stream.receive_some()
            assert data, "the connection was closed"
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += lines
        message: dict[str, Any] = msgspec.json.decode(self._lines.pop(0))
        return message

    async def answer(self, request_id: int) -> dict[str, Any]:
        """The answer to a request."""
        while True:
            message = await self.receive()
            if message.get("id") == request_id and "method" not in message:
                return message
            self.events.append(message)

    async def call(self, method: str, /, **params: Any) -> Any:
        """The result of one request. Refused where it is an error."""
        answer = await self.answer(await self.send(method, **params))
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    async def failure(self, method: str, /, **params: Any) -> dict[str, Any]:
        """The error of one request that has to fail."""
        answer = await self.answer(await self.send(method, **params))
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        return error

    async def event(self, method: str) -> dict[str, Any]:
        """The params of the next notification of that name; others before it are passed over."""
        while True:
            message = self.events.pop(0) if self.events else await self.receive()
            if message.get("method") == method:
                params: dict[str, Any] = message["params"]
                return params

    async def say(self, key: str, text: str) -> str:
        """Send a message and wait for the end of its run; the run's reply."""
        sent = await self.call("chat.send", sessionKey=key, message=text)
        ended = await self.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)
        assert ended["status"] == "ok", ended
        reply: str = ended["reply"]
        return reply


class InProcessDaemon:
    """The parts, and new connections to them. `faults` is what the log would hold."""

    def __init__(self, app: App, nursery: trio.Nursery) -> None:
        self.app = app
        self._nursery = nursery

    @property
    def services(self) -> Any:
        return self.app.services

    @asynccontextmanager
    async def connect(self, caller: Caller = OWNER) -> AsyncIterator[Connection]:
        """A connection of this caller."""
        ours, theirs = socket.socketpair()
        stream, other = ByteStream(ours), ByteStream(theirs)
        link = ndjson_link(stream, self.app.dispatcher.limits, lambda: peer)
        peer = Peer(link, self.app.dispatcher, caller)

        async def serve() -> None:
            try:
                await peer.run()
            finally:
                stream.close()

        self._nursery.start_soon(serve)
        try:
            yield Connection(other)
        finally:
            other.close()


@asynccontextmanager
async def in_process_daemon(
    folder: Path,
    config: str = "",
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
    home: Path | None = None,
) -> AsyncIterator[InProcessDaemon]:
    """The parts at work on the store `folder/store`. `config` is the text of a configuration file.

    The sessions of other programs are those in `home`, none without it: never those of the person who runs the tests.

    With `progress`, which is called in the thread that loads the store, it is not waited for.
    """
    file = folder / "config.toml"
    file.write_text(config)
    sockets = folder / "sockets"
    sockets.mkdir(exist_ok=True)
    async with open_app(
        folder / "store",
        configuration.load(file),
        sockets,
        progress=progress or (lambda done, total, agent_id: None),
        watching=lambda backend: None,
        clock=clock,
        environ={"HOME": str(home or folder / "no home")},
    ) as app:
        with trio.fail_after(PATIENCE_S):
            if progress is None:
                await app.services.loaded.wait()
            async with trio.open_nursery() as nursery:
                yield InProcessDaemon(app, nursery)
                nursery.cancel_scope.cancel()
