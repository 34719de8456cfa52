"""Accept connections, find out what they speak, and serve each in a task of its own until it ends.

Knows listeners, dialects and places; knows no methods. Nothing that happens on one connection ends another.
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
from sessiond.transports.dialects import HTTP, NDJSON, ConnectionDialect
from sessiond.transports.framed import FramedLink
from sessiond.transports.gate import Door, loopback_hosts
from sessiond.transports.listener import Listener
from sessiond.transports.routes import Router, add_standard_routes
from sessiond.transports.sniff import dialect_of
from sessiond.transports.streams import ByteStream, load

_OTHERS_FAULT = (errno.EAGAIN, errno.ECONNABORTED, errno.EPERM)  # the client has gone before it was accepted
_FULL_PAUSE_S = 0.1  # no descriptors, no memory: clients wait in the backlog until somebody has closed something
_DECLINE_S = 1.0
_MAX_TURNING_AWAY = 32


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of the whole server. Source: protocol.md, "Limits"."""

    max_connections: int = 256
    max_strangers: int = 64
    first_message_s: float = 30.0
    allowed_origins: frozenset[str] = frozenset()


class Server:
    """Every listener and every connection of the daemon.

    `authenticate(token)` gives a caller or raises Unauthenticated. `peer_uid(socket)` gives the user at the other end
    of a Unix socket. `router` is open for more routes; `visitors` are who is connected.
    """

    def __init__(
        self,
        dispatcher: Dispatcher[Any],
        visitors: ActiveConnections,
        *,
        authenticate: Callable[[str], Caller],
        peer_uid: Callable[[socket.socket], int],
        rules: ServerLimits | None = None,
    ) -> None:
        self.router = Router()
        self.visitors = visitors
        self._dispatcher, self._closed = dispatcher, dispatcher.budgets.closed
        self._authenticate = authenticate
        self._peer_uid = peer_uid
        self._rules = rules or ServerLimits()
        self._admission = Admission(self._rules.max_connections, self._rules.max_strangers)
        # Those who wait for a place, in the order in which they came; and how many are just being told of none.
        self._hoping: dict[trio.CancelScope, None] = {}
        self._turning_away = 0
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        add_standard_routes(self.router, dispatcher, self.visitors)

    @property
    def connections(self) -> int:
        return self._admission.connections

    async def serve(
        self, listeners: Sequence[Listener], task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until `drain` is through. The listeners stay the caller's to close."""
        with self._serving:
            async with trio.open_nursery() as connections:
                with self._accepting:
                    async with trio.open_nursery() as accepting:
                        for listener in listeners:
                            accepting.start_soon(self._accept, listener, connections)
                        task_status.started()

    def stop_accepting(self) -> None:
        """Take no more connections; those that stand go on."""
        self._accepting.cancel()

    async def drain(self, grace_s: float, *, before_close: Callable[[], object] = bool) -> None:
        """Take nothing new, let what is in flight end for `grace_s` seconds, answer the rest with -32008, and close.

        `before_close` is called while those who stayed can still be written to.
        """
        self._dispatcher.stopping = True
        self.stop_accepting()
        await self.visitors.finish(grace_s)
        before_close()
        self._serving.cancel()

    async def _accept(self, listener: Listener, connections: trio.Nursery) -> None:
        door = _door_of(listener, self._rules.allowed_origins)
        while True:
            await trio.lowlevel.wait_readable(listener.socket)
            try:
                sock, _ = listener.socket.accept()
            except OSError as error:
                if error.errno not in _OTHERS_FAULT:
                    await trio.sleep(_FULL_PAUSE_S)
                continue
            if listener.name == "http":
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = ByteStream(sock)
            place = self._admission.enter(stranger=door.caller.kind == "nobody", end=self._yielding(stream))
            connections.start_soon(self._connection, stream, door, place)

    async def _connection(self, stream: ByteStream, door: Door, place: ConnectionPlace | None) -> None:
        async def converse() -> None:
            nonlocal place
            try:
                place = place or await self._place_of_another(stream, door)
                if place is not None:
                    await self._converse(stream, door, place)
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the client has gone, which is its right

        try:
            await self._dispatcher.run_contained(f"connection on {door.name}", converse)
        finally:
            if place is not None:
                place.leave()
            stream.close()

    async def _place_of_another(self, stream: ByteStream, door: Door) -> ConnectionPlace | None:
        """There is no place for this client: once it speaks it gets that of a silent one, or is told that all speak.

        So idle connections keep nobody out, however many there are.
        """
        if len(self._hoping) >= _MAX_TURNING_AWAY:
            next(iter(self._hoping)).cancel()
        dialect: ConnectionDialect | None = None
        error: SessiondError = Overloaded("There are too many connections; try again later.", retryAfterMs=1000)
        hope = trio.move_on_after(_DECLINE_S)
        self._hoping[hope] = None
        try:
            with hope:
                dialect = await _sniff(stream)
        except SessiondError as refusal:
            error = refusal
        finally:
            del self._hoping[hope]
        if dialect is not None:
            place = self._admission.take_over(stranger=door.caller.kind == "nobody", end=self._yielding(stream))
            if place is not None:
                return place
        self._closed["turned_away"] += 1
        if self._turning_away < _MAX_TURNING_AWAY:  # else too many wait to be told
            self._turning_away += 1
            try:
                await _last_words(stream, error, dialect)
            finally:
                self._turning_away -= 1
        return None

    def _yielding(self, stream: ByteStream) -> Callable[[], None]:
        def end() -> None:
            self._closed["yielded"] += 1
            stream.close()

        return end

    async def _converse(self, stream: ByteStream, door: Door, place: ConnectionPlace) -> None:
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
                await _last_words(stream, error)
                return
            if dialect is None:
                return
            if dialect.link is None:
                patience.deadline = float("inf")  # HTTP has deadlines of its own, one for each request
                await self._serve_http(stream, door, place)
            else:
                await self._serve_peer(stream, dialect.link(stream, self._dispatcher.limits), door, place, patience)
        if patience.cancelled_caught:
            self._closed["silent"] += 1
        if patience.cancelled_caught and dialect is not None:
            await _last_words(stream, self._too_slow(place), dialect)

    async def _serve_peer(
        self, stream: ByteStream, link: FramedLink, door: Door, place: ConnectionPlace, patience: trio.CancelScope
    ) -> None:
        def note_message() -> None:
            if not place.stranger:
                place.identify(peer.caller)
                patience.deadline = float("inf")

        def note_caller(caller: Caller) -> None:
            if caller.kind != "nobody":
                place.identify(caller)
                patience.deadline = float("inf")

        peer = Peer(link, self._dispatcher, door.caller, on_caller=note_caller, on_first_message=note_message)
        with self.visitors.present(peer):
            await peer.run()
        if link.failed:
            await stream.linger()

    async def _serve_http(self, stream: ByteStream, door: Door, place: ConnectionPlace) -> None:
        await load("sessiond.transports.http_context")
        from sessiond.transports.http_context import HttpConnection, HttpContext

        site = HttpContext(
            self.router, self._dispatcher, self.visitors, self._authenticate, head_s=self._rules.first_message_s
        )
        await HttpConnection(stream, site, door, place.identify).run()

    def _too_slow(self, place: ConnectionPlace) -> SessiondError:
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
    """The dialect of a new connection, its first bytes put back; None where it ended before it said one."""
    first = b""
    while data := await stream.receive_some():
        first += data
        if dialect := dialect_of(first):
            stream.push_back(first)
            return dialect
    if not first:
        return None
    stream.push_back(first)
    return HTTP  # the beginning of `Content-Length:` and nothing more: HTTP will say what is wrong


async def _last_words(stream: ByteStream, error: SessiondError, dialect: ConnectionDialect | None = None) -> None:
    """One error that says it all, to who has said nothing yet in JSON, and the end."""
    stream.send_now((dialect or NDJSON).encode_refusal(encode_failure(None, error)))
    await stream.linger()
