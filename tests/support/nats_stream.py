"""The stream of a test's server, as its administrator sees and changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.js import JetStreamManager
from support.nats_server import NatsServer

from sessiond.link.connecting import connect_once
from sessiond.link.server_setup import set_up

Found = TypeVar("Found")


def _ask(server: NatsServer, what: Callable[[JetStreamManager], Awaitable[Found]]) -> Found:
    async def ask() -> Found:
        client = await connect_once(server.settings())
        try:
            return await what(client.jsm())
        finally:
            await client.close()

    return asyncio.run(ask())


def count_messages(server: NatsServer) -> int:
    """How many messages lie there."""

    async def count(manager: JetStreamManager) -> int:
        return (await manager.stream_info("X")).state.messages

    return _ask(server, count)


def read_messages(server: NatsServer) -> list[bytes]:
    """All that lies there."""

    async def read(manager: JetStreamManager) -> list[bytes]:
        state = (await manager.stream_info("X")).state
        found = []
        for number in range(state.first_seq, state.last_seq + 1):
            message = await manager.get_msg("X", number)
            found.append(message.data or b"")
        return found

    return _ask(server, read)


def purge(server: NatsServer) -> None:
    """Empty the stream."""
    _ask(server, lambda manager: manager.purge_stream("X"))


def limit_bytes(server: NatsServer, most: int) -> None:
    """Let the stream take so many bytes at most."""
    asyncio.run(set_up(server.settings(), server.machines, max_bytes=most))
