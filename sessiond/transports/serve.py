"""Accept connections, detect their dialect, and serve each in a task of its own until it ends.

Knows listeners, dialects and admission; knows no methods. No error on one connection affects another.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from sessiond.errors import InvalidRequest, Overloaded, SessiondError, Unauthenticated
from sessiond.model.caller import NOBODY, OWNER, Caller
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.messages import encode_failure
from sessiond.rpc.peer import Peer
from sessiond.transports.active_connections import ActiveConnections
from sessiond.transports.admission import Admission, ConnectionPlace
from sessiond.transports.dialects import HTTP, NDJSON, ConnectionDialect, LinkMaker
from sessiond.transports.gate import Door, loopback_hosts
from sessiond.transports.listener import Listener
from sessiond.transports.routes import Router, add_standard_routes
from sessiond.transports.sniff import dialect_of
from sessiond.transports.streams import ByteStream, load_module

_CLIENT_GONE = (errno.EAGAIN, errno.ECONNABORTED, errno.EPERM)  # the client closed before it was accepted
_FULL_PAUSE_S = 0.1  # without free descriptors or memory; clients wait in the backlog meanwhile
_REFUSAL_S = 1.0
_MAX_REFUSING = 32

Accept = Callable[[], tuple[socket.socket, Any]]
WithRoom = Callable[[Accept], tuple[socket.socket, Any]]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of the whole server. Source: protocol.md, "Limits"."""

    max_connections: int = 256
    max_strangers: int = 64
    first_message_s: float = 30.0
    allowed_origins: frozenset[str] = frozenset()


class Server:
    """Every listener and every connection of the daemon.

    `authenticate(token)` returns a caller or raises Unauthenticated. `peer_uid(socket)` returns the user at the other
    end of a Unix socket. `with_room(accept)` returns what `accept` does, after closing idle descriptors where none is
    free. More routes can be added to `router`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher[Any],
        active_connections: ActiveConnections,
        *,
        authenticate: Callable[[str], Caller],
        peer_uid: Callable[[socket.socket], int],
        with_room: WithRoom,
        rules: ServerLimits | None = None,
    ) -> None:
        self.router = Router()
        self.active_connections = active_connections
        self._dispatcher, self._closed = dispatcher, dispatcher.budgets.closed
        self._authenticate = authenticate
        self._peer_uid = peer_uid
        self._with_room = with_room
        self._rules = rules or ServerLimits()
        self._admission = Admission(self._rules.max_connections, self._rules.max_strangers)
        # Connections without a place that have sent nothing yet, oldest first; and how many are being refused just now.
        self._waiting_for_place: dict[trio.CancelScope, None] = {}
        self._refusing = 0
        self._accepting = trio.CancelScope()
        self._acceptors: tuple[trio.Nursery, trio.Nursery] | None = None
        self._serving = trio.CancelScope()
        add_standard_routes(self.router, dispatcher, self.active_connections)

    @property
    def connections(self) -> int:
        return self._admission.connections

    async def serve(
        self, listeners: Sequence[Listener], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until `drain` has ended. The caller has to close the listeners."""
        with self._serving:
            async with trio.open_nursery() as connections:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        self._acceptors = accepting, connections
                        for listener in listeners:
                            accepting.start_soon(self._accept, listener, connections)
                        task_status.started()
                        await trio.sleep_forever()

    def serve_also(self, listener: Listener) -> Callable[[], None]:
        """Serve one more listener; the returned function ends that, and closes it. Connections of it go on."""
        assert self._acceptors is not None, "served before"
        accepting, connections = self._acceptors
        scope = trio.CancelScope()

        async def accept() -> None:
            try:
                with scope:
                    await self._accept(listener, connections)
            finally:
                listener.close()

        accepting.start_soon(accept)
        return scope.cancel

    def stop_accepting(self) -> None:
        """Accept no more connections; existing ones go on."""
        self._accepting.cancel()

    async def drain(self, grace_s: float, *, before_close: Callable[[], object] = bool) -> None:
        """Accept nothing new, wait `grace_s` seconds for requests in flight, answer the rest with -32008, and close.

        `before_close` is called while the remaining connections can still be written to.
        """
        self._dispatcher.stop()
        self.stop_accepting()
        await self.active_connections.finish(grace_s)
        before_close()
        self._serving.cancel()

    async def _accept(self, listener: Listener, connections: trio.Nursery) -> None:
        door = _door_of(listener, self._rules.allowed_origins)
        while True:
            await trio.lowlevel.wait_readable(listener.socket)
            try:
                sock, _ = self._with_room(listener.socket.accept)
            except OSError as error:
                if error.errno not in _CLIENT_GONE:
                    await trio.sleep(_FULL_PAUSE_S)
                continue
            if listener.name == "http":
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = ByteStream(sock)
            place = self._admission.enter(stranger=door.caller.kind == "nobody", end=self._closer(stream))
            connections.start_soon(self._serve_connection, stream, door, place)

    async def _serve_connection(self, stream: ByteStream, door: Door, place: ConnectionPlace | None) -> None:
        async def converse() -> None:
            nonlocal place
            try:
                place = place or await self._replace_silent_one(stream, door)
                if place is not None:
                    await self._serve_client(stream, door, place)
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the client closed the connection

        try:
            await self._dispatcher.run_contained(f"connection on {door.name}", converse)
        finally:
            if place is not None:
                place.leave()
            stream.close()

    async def _replace_silent_one(self, stream: ByteStream, door: Door) -> ConnectionPlace | None:
        """All places are taken: once this client sends something, it replaces a silent connection, or is refused.

        So idle connections keep nobody out, however many there are.
        """
        if len(self._waiting_for_place) >= _MAX_REFUSING:
            next(iter(self._waiting_for_place)).cancel()
        dialect: ConnectionDialect | None = None
        error: SessiondError = Overloaded("There are too many connections; try again later.", retryAfterMs=1000)
        hope = trio.move_on_after(_REFUSAL_S)
        self._waiting_for_place[hope] = None
        try:
            with hope:
                dialect = await _sniff(stream)
        except SessiondError as refusal:
            error = refusal
        finally:
            del self._waiting_for_place[hope]
        if dialect is not None:
            place = self._admission.take_over(stranger=door.caller.kind == "nobody", end=self._closer(stream))
            if place is not None:
                return place
        self._closed["turned_away"] += 1
        if self._refusing < _MAX_REFUSING:  # beyond that, connections are closed without an error message
            self._refusing += 1
            try:
                await _refuse(stream, error, dialect)
            finally:
                self._refusing -= 1
        return None

    def _closer(self, stream: ByteStream) -> Callable[[], None]:
        def end() -> None:
            self._closed["yielded"] += 1
            stream.close()

        return end

    async def _serve_client(self, stream: ByteStream, door: Door, place: ConnectionPlace) -> None:
        dialect: ConnectionDialect | None = None
        with trio.move_on_after(self._rules.first_message_s) as patience:
            try:
                if door.name == "sessiond" and self._peer_uid(stream.socket) != os.geteuid():
                    raise Unauthenticated("This socket is another user's.")
                dialect = await _sniff(stream)
                if door.name == "http" and dialect is not HTTP:
                    raise InvalidRequest(
                        "Only HTTP/1.1 and WebSocket are spoken on TCP; the rest is on the Unix sockets."
                    )
            except SessiondError as error:
                await _refuse(stream, error)
                return
            if dialect is None:
                return
            if dialect.link is None:
                patience.deadline = float("inf")  # HTTP has deadlines of its own, one for each request
                await self._serve_http(stream, door, place)
            else:
                await self._serve_peer(stream, dialect.link, door, place, patience)
        if patience.cancelled_caught:
            self._closed["silent"] += 1
        if patience.cancelled_caught and dialect is not None:
            await _refuse(stream, self._timeout_error(place), dialect)

    async def _serve_peer(
        self, stream: ByteStream, make_link: LinkMaker, door: Door, place: ConnectionPlace, patience: trio.CancelScope
    ) -> None:
        def note_message() -> None:
            if not place.stranger:
                place.identify(peer.caller)
                patience.deadline = float("inf")

        def note_caller(caller: Caller) -> None:
            if caller.kind != "nobody":
                place.identify(caller)
                patience.deadline = float("inf")

        link = make_link(stream, self._dispatcher.limits, lambda: peer)
        peer = Peer(link, self._dispatcher, door.caller, on_caller=note_caller, on_first_message=note_message)
        with self.active_connections.track(peer):
            await peer.run()
        if link.failed:
            await stream.linger()

    async def _serve_http(self, stream: ByteStream, door: Door, place: ConnectionPlace) -> None:
        await load_module("sessiond.transports.http_context")
        from sessiond.transports.http_context import HttpConnection, HttpContext

        context = HttpContext(
            self.router,
            self._dispatcher,
            self.active_connections,
            self._authenticate,
            head_s=self._rules.first_message_s,
        )
        await HttpConnection(stream, context, door, place.identify).run()

    def _timeout_error(self, place: ConnectionPlace) -> SessiondError:
        seconds = f"{self._rules.first_message_s:g} seconds"
        if place.stranger:
            return Unauthenticated(f"Nobody said who they are within {seconds}.")
        return InvalidRequest(f"No message came within {seconds}.")


def _door_of(listener: Listener, origins: frozenset[str]) -> Door:
    match listener.name:
        case "sessiond":
            return Door("sessiond", OWNER)
        case "agent":
            return Door("agent", NOBODY)
        case "http":
            return Door("http", NOBODY, loopback_hosts(*listener.address), origins)


async def _sniff(stream: ByteStream) -> ConnectionDialect | None:
    """The dialect of a new connection, whose first bytes are put back; None where it ended before sending any."""
    first = b""
    while data := await stream.receive_some():
        first += data
        if dialect := dialect_of(first):
            stream.push_back(first)
            return dialect
    if not first:
        return None
    stream.push_back(first)
    return HTTP  # a beginning of `Content-Length:` and nothing more, to which HTTP answers with an error


async def _refuse(stream: ByteStream, error: SessiondError, dialect: ConnectionDialect | None = None) -> None:
    """Send one error in the dialect, NDJSON if that is unknown, and end the connection."""
    stream.send_now((dialect or NDJSON).encode_refusal(encode_failure(None, error)))
    await stream.linger()
