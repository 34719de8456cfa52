"""Serve an HTTP request: checks, route, handler, response; or an event stream, or the upgrade to a WebSocket.

Knows routes and callers; `http.py` knows the bytes. Imported for the first HTTP client.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import h11
import trio

from sessiond.errors import SessiondError, stopped_early
from sessiond.model.caller import Caller
from sessiond.rpc.budget import MESSAGE_FACTOR, Share
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.link import Link
from sessiond.rpc.peer import Peer
from sessiond.transports.active_connections import ActiveConnections
from sessiond.transports.exchange import Answer, EventStreamAnswer, HttpError, HttpRequest, HttpResponse, error_response
from sessiond.transports.gate import Door, caller_of, check_host_and_origin, header_values
from sessiond.transports.http import HttpWire
from sessiond.transports.routes import HttpRoute, Router, check_query
from sessiond.transports.sse import EventStream
from sessiond.transports.streams import ByteStream, load_module

_MAX_QUERY_FIELDS = 32


@dataclass(frozen=True, slots=True)
class HttpContext:
    """What all HTTP connections of the daemon share. `head_s`: seconds that a client has to send a request's head."""

    router: Router
    dispatcher: Dispatcher[Any]
    active_connections: ActiveConnections
    authenticate: Callable[[str], Caller]
    head_s: float


class _ConnectionOver(Exception):
    """The connection became an event stream or a WebSocket, which has ended."""


class HttpConnection:
    """One HTTP connection. `on_identified` is called with the caller of each request that was authenticated."""

    def __init__(
        self, stream: ByteStream, context: HttpContext, door: Door, on_identified: Callable[[Caller], None]
    ) -> None:
        self._stream = stream
        self._context = context
        self._door = door
        self._on_identified = on_identified
        owner = door.caller.kind == "owner"
        self._wire = HttpWire(
            stream, context.head_s, trio.lowlevel.checkpoint if owner else context.dispatcher.pace.turn
        )
        self._unsent: list[Share] = []
        # Holds up the end of the daemon as long as a request waits for its response.
        self._owed = ExitStack()

    async def run(self) -> None:
        """Serve requests until the client closes the connection or HTTP requires it to be closed."""
        try:
            while await self._exchange():
                pass
        except _ConnectionOver:
            return
        finally:
            self._release()
        await self._stream.linger()

    async def _exchange(self) -> bool:
        """Serve one request; whether another may follow."""
        with ExitStack() as self._owed:
            return await self._serve()

    async def _serve(self) -> bool:
        origin = None
        try:
            head = await self._wire.read_head()
            if head is None:
                return False
            target = _target_of(head.target.decode("latin-1"))
            origin = check_host_and_origin(self._door, target.authority, head.headers)
            answer = await self._answer(head, target, origin)
        except (SessiondError, HttpError) as error:
            answer = error_response(error)
        for share in self._unsent:
            share.shrink(2 * len(answer.body))
        try:
            return await self._wire.respond(replace(answer, headers=answer.headers + _cors(origin)))
        finally:
            self._release()

    def _release(self) -> None:
        while self._unsent:
            self._unsent.pop().release()

    async def _answer(self, head: h11.Request, target: RequestTarget, origin: str | None) -> HttpResponse:
        method = head.method.decode("ascii")
        if origin is not None and method == "OPTIONS" and header_values(head.headers, b"access-control-request-method"):
            return HttpResponse(204, headers=_PREFLIGHT)
        if target.path == "/ws":
            await self._become_websocket(head, target)
            raise _ConnectionOver
        route, params = self._context.router.find(method, target.path)
        caller = self._door.caller if route.is_public else self._caller_of(head)
        route.check_query(target.query)

        async def before_long(limit: int) -> None:
            self._unsent.append(await self._context.dispatcher.budgets.take(caller, self, MESSAGE_FACTOR * limit))

        body = await self._wire.read_body(head, route.max_body_bytes, before_long)  # after the checks above
        self._owed.enter_context(self._context.active_connections.owe_response())
        for share in self._unsent:
            share.shrink(2 * len(body))
        request = HttpRequest(
            method=method,
            path=target.path,
            params=params,
            query=target.query,
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers},
            body=body,
            caller=caller,
            unsent=self._unsent,
        )
        answer = await (self._run_handler if route.is_public else self._handle)(route, request)
        if isinstance(answer, EventStreamAnswer):
            await self._stream_events(answer, request, origin)
            raise _ConnectionOver
        return answer

    def _caller_of(self, head: h11.Request) -> Caller:
        caller = caller_of(self._door, head.headers, self._context.authenticate)
        self._on_identified(caller)
        return caller

    async def _handle(self, route: HttpRoute, request: HttpRequest) -> Answer:
        """The handler's response. A client that closes meanwhile cancels the handler and ends this connection; so does
        the daemon's end, which is the response then.
        """
        outcome: list[Answer] = []
        cut_off = self._context.active_connections.cut_off

        async def end_with_client(scope: trio.CancelScope) -> None:
            await self._wire.wait_until_hung_up(cut_off)
            if cut_off.is_set():
                outcome.append(error_response(stopped_early()))
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_with_client, nursery.cancel_scope)
            outcome.append(await self._run_handler(route, request))
            nursery.cancel_scope.cancel()
        if not outcome:
            raise _ConnectionOver
        return outcome[0]

    async def _run_handler(self, route: HttpRoute, request: HttpRequest) -> Answer:
        """The handler's response. Nobody looks whether its client is still there: public ones take no time."""

        async def handle() -> Answer:
            try:
                return await route.handler(request)
            except HttpError as error:
                return error_response(error)

        try:
            return await self._context.dispatcher.run_guarded(request.path, handle)
        except SessiondError as error:
            return error_response(error)

    async def _become_websocket(self, head: h11.Request, target: RequestTarget) -> None:
        caller = self._caller_of(head)
        await load_module("sessiond.transports.websocket")
        from sessiond.transports import websocket

        check_query(target.query, frozenset())
        websocket.check_upgrade(head)
        dispatcher, active_connections = self._context.dispatcher, self._context.active_connections

        peer: Peer | None = None

        async def serve(link: Link) -> None:
            nonlocal peer
            peer = Peer(link, dispatcher, caller, road="websocket")
            with active_connections.track(peer):
                await peer.run()

        if self._wire.trailing_bytes():
            # RFC 6455, section 4.1: the client has to wait for the response. trio-websocket would ignore these bytes.
            raise HttpError(400, "bad_request", "Frames cannot come before the handshake is answered.")
        self._stream.push_back(websocket.handshake_bytes(head))
        await websocket.serve_websocket(self._stream, dispatcher.limits, serve, lambda: peer)

    async def _stream_events(self, events: EventStreamAnswer, request: HttpRequest, origin: str | None) -> None:
        self._owed.close()
        await self._wire.begin_stream("text/event-stream", _cors(origin))
        stream = EventStream(self._wire.send_piece, request.caller)

        async def source(stream: EventStream) -> None:
            try:
                await self._context.dispatcher.run_guarded(request.path, lambda: events.run(stream))
            except SessiondError as error:
                await stream.event(error_response(error).body, name="error")

        if request.method != "HEAD":
            with self._context.active_connections.track(stream):
                await stream.run(source, self._wire.wait_until_gone)
        await self._wire.end_stream()


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """A parsed request target; `authority` only where it has the absolute form."""

    authority: str | None
    path: str
    query: dict[str, str]


def _target_of(target: str) -> RequestTarget:
    """Parse the origin form or the absolute form (RFC 9112, section 3.2). Raises HttpError 400 for other forms."""
    authority = None
    if not target.startswith("/"):
        try:
            split = urlsplit(target)
        except ValueError:  # brackets that are no IPv6 address
            raise HttpError(400, "bad_request", "The request target is no address.") from None
        if split.scheme != "http" or not split.netloc:
            raise HttpError(400, "bad_request", "The request target must be a path.")
        authority = split.netloc
        target = target[target.index("//") + 2 + len(authority) :]
    path, _, query = target.partition("#")[0].partition("?")
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS, errors="strict")
    except ValueError:
        raise HttpError(400, "bad_request", f"The query has over {_MAX_QUERY_FIELDS} fields, or is no UTF-8.") from None
    return RequestTarget(authority, path or "/", dict(fields))


_PREFLIGHT = (
    ("Access-Control-Allow-Methods", "GET, POST"),
    ("Access-Control-Allow-Headers", "authorization, content-type, last-event-id"),
    ("Access-Control-Max-Age", "600"),
)


def _cors(origin: str | None) -> tuple[tuple[str, str], ...]:
    """The headers that let a page of a permitted origin read the response."""
    return () if origin is None else (("Access-Control-Allow-Origin", origin), ("Vary", "Origin"))
