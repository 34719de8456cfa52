"""One connection to the daemon under Trio: `TrioLink` sends and receives messages, `TrioExchange` matches answers to
calls and answers the daemon's requests. Knows nothing of reconnecting. The blocking versions are `link` and `exchange`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import trio

from sessiond.client import agent, wire
from sessiond.client.errors import CallTimeout, ClientError, ConnectionLost, DaemonNotRunning, NotSent, RpcError
from sessiond.client.link import CONNECT_TIMEOUT_S, READ_BYTES, connect_error
from sessiond.errors import reason_of

Params = dict[str, Any]
Handler = Callable[["TrioExchange", wire.DaemonRequest], Awaitable[object]]


class TrioLink:
    """A connected socket and its framing; a context manager that closes it. `caller` is what `initialize` returned."""

    def __init__(self, path: str, connection: trio.socket.SocketType) -> None:
        self.path = path
        self.wire = wire.JsonRpcWire()
        self.caller: Params = {}
        self._socket = connection
        self._sending = trio.Lock()
        self._queued: list[bytes] = []
        # Bytes since the beginning: queued, and taken by the socket.
        self._queued_to = self._sent_to = 0
        self._wake = trio.Event()

    @classmethod
    async def open(cls, path: str, hello: Params, within_s: float | None = None) -> TrioLink:
        """A connection after `initialize`, within `within_s` and CONNECT_TIMEOUT_S."""
        connection = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        link = cls(path, connection)
        try:
            with trio.move_on_after(CONNECT_TIMEOUT_S if within_s is None else min(within_s, CONNECT_TIMEOUT_S)):
                await connection.connect(path)
                await link._initialize(hello)
                return link
            if within_s is not None and within_s < CONNECT_TIMEOUT_S:
                raise CallTimeout(f"sessiond did not answer within {within_s:g} s")
            raise DaemonNotRunning(path, "no answer")
        except OSError as error:
            raise connect_error(path, error) from None
        finally:
            if not link.caller:
                link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    async def send(self, data: bytes) -> None:
        """Send `data` behind everything queued before."""
        self._queue(data)
        async with self._sending:
            await self._flush()

    def send_soon(self, data: bytes) -> int:
        """Queue `data` for the next `send` or for `write_queued`, in order; its position, for `has_sent`."""
        self._queue(data)
        self._wake.set()
        return self._queued_to

    def has_sent(self, place: int) -> bool:
        """Whether the socket took everything queued up to that position."""
        return self._sent_to >= place

    def _queue(self, data: bytes) -> None:
        self._queued.append(data)
        self._queued_to += len(data)

    async def write_queued(self) -> None:
        """Send what `send_soon` queues, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            async with self._sending:
                await self._flush()

    async def receive(self) -> list[wire.Incoming]:
        """The next messages, at least one; ConnectionLost at the end of the connection."""
        while True:
            try:
                data = await self._socket.recv(READ_BYTES)
            except (OSError, trio.ClosedResourceError) as error:
                raise ConnectionLost(f"the connection to sessiond ended ({reason_of(error)})") from None
            if not data:
                raise ConnectionLost("sessiond closed the connection")
            messages = self.wire.feed(data)
            if messages:
                return messages

    async def _initialize(self, hello: Params) -> None:
        answer = await self.ask("initialize", hello, [])
        self.caller = answer.get("caller") or {"scopes": []}

    async def ask(self, method: str, params: Params, backlog: list[wire.Event]) -> Any:
        """A call on a connection from which no other task reads; events in between are appended to `backlog`."""
        request_id, data = self.wire.request(method, params)
        await self.send(data)
        while True:
            found: wire.CallResponse | None = None
            for message in await self.receive():
                if isinstance(message, wire.Event):
                    backlog.append(message)
                elif isinstance(message, wire.CallResponse) and message.id in (request_id, None):
                    found = message
            if found is not None:
                if found.error is not None:
                    raise found.error
                return found.result

    async def _flush(self) -> None:
        while self._queued:
            view = memoryview(b"".join(self._queued))
            self._queued.clear()
            try:
                while view:
                    sent = await self._socket.send(view)
                    self._sent_to += sent
                    view = view[sent:]
            except (OSError, trio.ClosedResourceError) as error:
                raise ConnectionLost(f"the connection to sessiond ended ({reason_of(error)})") from None
            finally:
                if view:  # cancelled in between: the rest of the line has to be sent first, later
                    self._queued.insert(0, bytes(view))
                    self._wake.set()


class TrioExchange:
    """The calls of one connection, from any task; `run` reads the answers. `lost` is the error with which it ended."""

    def __init__(self, link: TrioLink, handlers: Mapping[str, Handler]) -> None:
        self.link = link
        self.lost: ClientError | None = None
        self.ended = trio.Event()
        self._handlers = handlers
        self._waiting: dict[int, tuple[trio.Event, list[wire.CallResponse]]] = {}
        self._running: dict[int | str, trio.CancelScope] = {}

    async def call(self, method: str, params: Params, timeout_s: float | None) -> Any:
        request_id, data = self.link.wire.request(method, params)
        arrived, box = trio.Event(), list[wire.CallResponse]()
        self._waiting[request_id] = arrived, box
        try:
            with trio.move_on_after(math.inf if timeout_s is None else timeout_s):
                place = self.link.send_soon(data)
                if self.lost is None:
                    await arrived.wait()
        finally:
            del self._waiting[request_id]
            if not box:  # timed out or cancelled: tell the daemon to end the request
                self.link.send_soon(wire.notification("$/cancelRequest", {"id": request_id}))
        if not box:
            if self.lost is not None:
                raise (ConnectionLost if self.link.has_sent(place) else NotSent)(str(self.lost))
            raise CallTimeout(f"sessiond did not answer {method} within {timeout_s or 0:g} s")
        if box[0].error is not None:
            raise box[0].error
        return box[0].result

    async def run(self) -> None:
        """Read until the connection ends; every request of the daemon is answered by a task of its own."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.link.write_queued)
                while True:
                    for message in await self.link.receive():
                        self._route(message, nursery)
        except* ClientError as group:
            self.lost = _first_client_error(group)
        finally:
            if self.lost is None:
                self.lost = ConnectionLost("the connection was closed")
            self.link.close()
            for arrived, _ in self._waiting.values():
                arrived.set()
            self.ended.set()

    def _route(self, message: wire.Incoming, nursery: trio.Nursery) -> None:
        if isinstance(message, wire.DaemonRequest):
            # Registered before its task runs, because the next message may cancel it.
            scope = self._running[message.id] = trio.CancelScope()
            nursery.start_soon(self._answer, message, scope)
        elif isinstance(message, wire.CallResponse):
            if message.id in self._waiting:
                arrived, box = self._waiting[message.id]
                box.append(message)
                arrived.set()
            elif message.id is None and message.error is not None:
                raise ConnectionLost(message.error.message)  # an error without an id concerns the whole connection
        elif message.name == "$/cancelRequest" and message.get("id") in self._running:
            self._running[message["id"]].cancel()

    async def _answer(self, request: wire.DaemonRequest, scope: trio.CancelScope) -> None:
        handler = self._handlers.get(request.method)
        data = wire.refusal(request.id, agent.call_cancelled_error())
        with scope:
            try:
                if handler is None:
                    raise wire.no_such_method(request.method)
                data = wire.answer(request.id, await handler(self, request))
            except RpcError as error:
                data = wire.refusal(request.id, error)
            except Exception as error:  # noqa: BLE001  # any error of a user's handler is answered
                data = wire.refusal(request.id, agent.handler_failed(request.method, error))
            finally:
                del self._running[request.id]
        await self.link.send(data)


def _first_client_error(group: BaseExceptionGroup[ClientError]) -> ClientError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, ClientError) else ConnectionLost(reason_of(error))
