"""What happens to an HTTP request: gate, route, handler, answer; or it becomes a stream of events or a WebSocket.

Knows routes and callers; the bytes are `http.py`'s. Imported when the first HTTP client comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import h11
import trio

from sessiond.errors import SessiondError
from sessiond.model.caller import Caller
from sessiond.rpc.budget import MESSAGE_FACTOR, Share
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.link import Link
from sessiond.rpc.peer import Peer
from sessiond.transports.active_connections import ActiveConnections
from sessiond.transports.exchange import Answer, EventStreamAnswer, HttpError, HttpRequest, HttpResponse, error_response
from sessiond.transports.gate import Door, caller_of, check_host_and_origin, values
from sessiond.transports.http import HttpWire
from sessiond.transports.routes import HttpRoute, Router, check_query
from sessiond.transports.sse import EventStream
from sessiond.transports.streams import ByteStream, load

_MAX_QUERY_FIELDS = 32


@dataclass(frozen=True, slots=True)
class HttpContext:
    """What every HTTP connection of the daemon shares. `head_s`: seconds a client has to send the head of a request."""

    router: Router
    dispatcher: Dispatcher[Any]
    visitors: ActiveConnections
    authenticate: Callable[[str], Caller]
    head_s: float


class _Done(Exception):
    """The connection has become something else and is over."""


class HttpConnection:
    """One HTTP connection. `known` is called once its client has shown who it is."""

    def __init__(self, stream: ByteStream, site: HttpContext, door: Door, known: Callable[[Caller], None]) -> None:
        self._stream = stream
        self._site = site
        self._door = door
        self._known = known
        owner = door.caller.kind == "owner"
        self._wire = HttpWire(stream, site.head_s, trio.lowlevel.checkpoint if owner else site.dispatcher.pace.turn)
        self._unsent: list[Share] = []

    async def run(self) -> None:
        """Serve requests until the client or HTTP itself ends the connection."""
        try:
            while await self._exchange():
                pass
        except _Done:
            return
        finally:
            self._release()
        await self._stream.linger()

    async def _exchange(self) -> bool:
        """One request and its answer; whether another may follow."""
        origin = None
        try:
            head = await self._wire.head()
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
        if origin is not None and method == "OPTIONS" and values(head.headers, b"access-control-request-method"):
            return HttpResponse(204, headers=_PREFLIGHT)
        if target.path == "/ws":
            await self._become_websocket(head, target)
            raise _Done
        route, params = self._site.router.find(method, target.path)
        caller = self._door.caller if route.free else self._caller_of(head)
        route.check_query(target.query)

        async def before_long(limit: int) -> None:
            self._unsent.append(await self._site.dispatcher.budgets.take(caller, self, MESSAGE_FACTOR * limit))

        body = await self._wire.body(head, route.max_body_bytes, before_long)  # not of those who may not come in
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
        answer = await self._handle(route, request)
        if isinstance(answer, EventStreamAnswer):
            await self._stream_events(answer, request, origin)
            raise _Done
        return answer

    def _caller_of(self, head: h11.Request) -> Caller:
        caller = caller_of(self._door, head.headers, self._site.authenticate)
        self._known(caller)
        return caller

    async def _handle(self, route: HttpRoute, request: HttpRequest) -> Answer:
        """What the handler answers. A client that goes away meanwhile ends the handler's waits, and this connection."""
        outcome: list[Answer] = []

        async def handle() -> Answer:
            try:
                return await route.handler(request)
            except HttpError as error:
                return error_response(error)

        async def end_with_client(scope: trio.CancelScope) -> None:
            await self._wire.wait_until_hung_up()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_with_client, nursery.cancel_scope)
            try:
                outcome.append(await self._site.dispatcher.run_guarded(request.path, handle))
            except SessiondError as error:
                outcome.append(error_response(error))
            nursery.cancel_scope.cancel()
        if not outcome:
            raise _Done
        return outcome[0]

    async def _become_websocket(self, head: h11.Request, target: RequestTarget) -> None:
        caller = self._caller_of(head)
        await load("sessiond.transports.websocket")
        from sessiond.transports import websocket

        check_query(target.query, frozenset())
        websocket.check_upgrade(head)
        dispatcher, visitors = self._site.dispatcher, self._site.visitors

        async def serve(link: Link) -> None:
            peer = Peer(link, dispatcher, caller)
            with visitors.present(peer):
                await peer.run()

        if self._wire.rest():
            # RFC 6455, section 4.1: the client waits for the answer first. trio-websocket would let the bytes lie.
            raise HttpError(400, "bad_request", "Frames cannot come before the handshake is answered.")
        self._stream.push_back(websocket.handshake_bytes(head))
        await websocket.converse(self._stream, dispatcher.limits, serve)

    async def _stream_events(self, events: EventStreamAnswer, request: HttpRequest, origin: str | None) -> None:
        await self._wire.begin_stream("text/event-stream", _cors(origin))
        stream = EventStream(self._wire.send_piece, request.caller)

        async def source(stream: EventStream) -> None:
            try:
                await self._site.dispatcher.run_guarded(request.path, lambda: events.run(stream))
            except SessiondError as error:
                await stream.event(error_response(error).body, name="error")

        if request.method != "HEAD":
            with self._site.visitors.present(stream):
                await stream.run(source, self._wire.wait_until_gone)
        await self._wire.end_stream()


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """A request target taken apart; `authority` only where it came in absolute form."""

    authority: str | None
    path: str
    query: dict[str, str]


def _target_of(target: str) -> RequestTarget:
    """Origin form or absolute form (RFC 9112, section 3.2). Raises HttpError 400 for the others."""
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
    """What lets a page of a listed origin read the answer."""
    return () if origin is None else (("Access-Control-Allow-Origin", origin), ("Vary", "Origin"))
