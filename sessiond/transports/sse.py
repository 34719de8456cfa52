"""Write Server-Sent Events. Knows their text format and a way to send bytes; knows no events of sessions.

Source: protocol.md, "HTTP"; HTML Living Standard, 9.2 "Server-sent events".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from sessiond.model.caller import Caller

_HEARTBEAT_S = 15.0
# A client that reads nothing for so long is closed; it can resume with Last-Event-ID.
_STALL_S = 60.0


class EventStream:
    """A stream of events to one client.

    Nothing is queued here: `event` returns when the socket has taken the event. So a slow client delays its own source
    only, and a client that closes cancels it.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]], caller: Caller) -> None:
        self.caller = caller
        self._send = send
        self._turn = trio.Lock()
        self._scope = trio.CancelScope()
        self._written_at = 0.0

    def close(self) -> None:
        """End the stream now."""
        self._scope.cancel()

    async def event(self, data: bytes, *, name: str | None = None, cursor: str | None = None) -> None:
        """Send an event; `cursor` becomes its id, which the client returns as `Last-Event-ID`."""
        await self._write(encode_event(data, name=name, cursor=cursor))

    async def run(
        self, source: Callable[[EventStream], Awaitable[None]], until_gone: Callable[[], Awaitable[None]]
    ) -> None:
        """Let `source` write until it returns, `until_gone` does, or the stream is closed."""

        async def watch() -> None:
            await until_gone()
            self.close()

        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_alive)
                nursery.start_soon(watch)
                await source(self)
                nursery.cancel_scope.cancel()

    async def _keep_alive(self) -> None:
        self._written_at = trio.current_time()
        while True:
            await trio.sleep_until(self._written_at + _HEARTBEAT_S)
            async with self._turn:
                if trio.current_time() >= self._written_at + _HEARTBEAT_S:
                    await self._put(b": \n\n")

    async def _write(self, data: bytes) -> None:
        async with self._turn:
            await self._put(data)

    async def _put(self, data: bytes) -> None:
        with trio.move_on_after(_STALL_S) as patience:
            try:
                await self._send(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.close()
        if patience.cancelled_caught:
            self.close()
        self._written_at = trio.current_time()
        await trio.lowlevel.checkpoint_if_cancelled()


def encode_event(data: bytes, *, name: str | None = None, cursor: str | None = None) -> bytes:
    """The text of one event, with a `data:` line for each line of `data`. ValueError for a line break in the others."""
    lines = []
    for field, value in (("event", name), ("id", cursor)):
        if value is not None:
            if any(char in value for char in "\r\n\0"):
                raise ValueError(f"{field} of an event is one line")
            lines.append(f"{field}: {value}\n".encode())
    body = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines += [b"data: " + line + b"\n" for line in body.split(b"\n")]
    return b"".join(lines) + b"\n"
