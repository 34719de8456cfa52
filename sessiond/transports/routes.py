"""The HTTP routes, and the handlers that need no session: `POST /rpc`, `GET /healthz`, and the text of `GET /`.

Knows paths and the dispatcher; knows no sockets and no method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
import trio

from sessiond.errors import InvalidParams, NotFound, SessiondError
from sessiond.rpc.cbor_items import check_item
from sessiond.rpc.codecs import CBOR, JSON, Codec, from_json, to_json
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.errors import status_of_code
from sessiond.rpc.messages import encode_failure
from sessiond.rpc.pace import Pace
from sessiond.rpc.peer import Peer
from sessiond.transports.active_connections import ActiveConnections
from sessiond.transports.exchange import Answer, Handler, HttpError, HttpRequest, HttpResponse, json_response

_SMALL_BODY_BYTES = 64 * 1024
# `curl -d` sends the second type and means JSON. A web page may send it without a CORS preflight too, but has no token.
_JSON_TYPES = ("application/json", "application/x-www-form-urlencoded", "")
_CBOR_TYPES = ("application/cbor", "application/cbor-seq")


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """`is_public`: needs no token. `max_body_bytes` bounds the request body; `query` are the permitted parameters."""

    method: str
    segments: tuple[str, ...]
    handler: Handler
    is_public: bool
    max_body_bytes: int
    query: frozenset[str] = frozenset()

    def check_query(self, query: Mapping[str, str]) -> None:
        """Raise InvalidParams for an unknown query parameter, as methods do for unknown params."""
        check_query(query, self.query)


class Router:
    """The table of routes."""

    def __init__(self) -> None:
        self._routes: list[HttpRoute] = []

    def add(
        self,
        method: str,
        pattern: str,
        handler: Handler,
        *,
        free: bool = False,
        max_body_bytes: int = _SMALL_BODY_BYTES,
        query: Iterable[str] = (),
    ) -> None:
        """Add a route for a pattern such as `/sessions/{key}/history`; one for GET serves HEAD too."""
        self._routes.append(
            HttpRoute(method, tuple(pattern.split("/")), handler, free, max_body_bytes, frozenset(query))
        )

    def find(self, method: str, path: str) -> tuple[HttpRoute, dict[str, str]]:
        """The route of a path and its decoded parameters. Raises NotFound, or HttpError 405 with the permitted methods.

        The path is split before it is decoded, because a session key may contain a slash (`%2F`).
        """
        segments = tuple(path.split("/"))
        allowed: set[str] = set()
        for route in self._routes:
            params = _match(route.segments, segments)
            if params is None:
                continue
            if route.method == ("GET" if method == "HEAD" else method):
                return route, params
            allowed |= {route.method} | ({"HEAD"} if route.method == "GET" else set())
        if allowed:
            raise HttpError(
                405,
                "method_not_allowed",
                f"{method} is not served here.",
                (("Allow", ", ".join(sorted(allowed))),),
            )
        raise NotFound("There is nothing at this path.")


def check_query(query: Mapping[str, str], known: frozenset[str]) -> None:
    """Raise InvalidParams for the first unknown parameter of a query, so that a misspelt one is not ignored."""
    for name in query:
        if name not in known:
            raise InvalidParams(f"`{name[:80]}`: there is no such parameter.", field=name[:80])


def _match(pattern: tuple[str, ...], segments: tuple[str, ...]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    params: dict[str, str] = {}
    for want, have in zip(pattern, segments, strict=True):
        if want.startswith("{"):
            if not have:
                return None
            params[want[1:-1]] = unquote(have)
        elif want != have:
            return None
    return params


def add_standard_routes(router: Router, dispatcher: Dispatcher[Any], active_connections: ActiveConnections) -> None:
    """`POST /rpc` and `GET /healthz`."""

    async def rpc(request: HttpRequest) -> Answer:
        return await call_over_http(dispatcher, active_connections, request)

    router.add("POST", "/rpc", rpc, max_body_bytes=dispatcher.limits.max_frame_bytes)
    router.add("GET", "/healthz", healthz, free=True)


# Public like the documentation: it has no data of the store.
_INDEX_TEXT = """\
This is sessiond: the sessions of the AI agents on this machine.

POST /rpc                            a JSON-RPC 2.0 call, or a batch (application/json or application/cbor)
GET  /sessions/{key}/history         a page of a session: limit=, cursor=, includeTools=1
GET  /sessions/{key}/history?follow=1  the same, and then what comes, as Server-Sent Events
POST /sessions/{key}/kill            end the session's runs
GET  /questions                      what agents ask: open=1, sessionKey=, agentId=
POST /questions/{id}/answer          answer a question: {"optionId", "note"} as application/json
GET  /ws                             a WebSocket with calls and events, a JSON-RPC message each
GET  /events                         what changes in any session, as Server-Sent Events
GET  /metrics                        counts in the format of Prometheus
GET  /healthz                        whether the daemon lives

A key in a path is written with %2F for a slash. The owner's socket needs no token; elsewhere each road but / and
/healthz wants one: Authorization: Bearer TOKEN (sessiond token mint). Every method, with its parameters and results:
curl -s --unix-socket "$(sessiond sockname)" http://localhost/rpc -d '{"jsonrpc":"2.0","id":1,"method":"rpc.discover"}'
"""


async def describe_routes(_request: HttpRequest) -> Answer:
    """Lists the routes, for a person with curl."""
    await trio.lowlevel.checkpoint()
    return HttpResponse(200, _INDEX_TEXT.encode(), "text/plain; charset=utf-8")


async def healthz(_request: HttpRequest) -> Answer:
    """Answers if the event loop runs, with no other information, because the route is public."""
    await trio.lowlevel.checkpoint()
    return json_response({"ok": True})


async def call_over_http(
    dispatcher: Dispatcher[Any], active_connections: ActiveConnections, request: HttpRequest
) -> HttpResponse:
    """Answer one JSON-RPC message or batch: the status of the error table for a call, 200 for a batch, 204 for none.

    It is served by a peer like calls on every other transport, one whose client has already ended its sending half.
    """
    codec = _codec_of(request)
    try:
        if codec is CBOR:
            await check_item(request.body, dispatcher.limits.max_nesting)
        text = (await to_json(codec, request.body)).strip()
    except SessiondError as error:
        return await _http_response(encode_failure(None, error), codec, dispatcher.pace)
    exchange = _ExchangeLink(text)
    peer = Peer(exchange, dispatcher, request.caller, unsent=request.unsent)
    with active_connections.track(peer):
        await peer.run()
    if not exchange.answers:
        return HttpResponse(204)
    return await _http_response(exchange.answers[-1].rstrip(b"\n"), codec, dispatcher.pace)


def _codec_of(request: HttpRequest) -> Codec:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _JSON_TYPES:
        return JSON
    if kind in _CBOR_TYPES:
        return CBOR
    raise HttpError(415, "unsupported_media_type", "Send application/json or application/cbor.")


class _ErrorCode(msgspec.Struct):
    code: int = -32603


class _Outcome(msgspec.Struct):
    error: _ErrorCode | None = None


async def _http_response(text: bytes, codec: Codec, pace: Pace) -> HttpResponse:
    status = 200
    if not text.startswith(b"["):
        outcome = msgspec.json.decode(text, type=_Outcome)
        status = 200 if outcome.error is None else status_of_code(outcome.error.code)
    if codec is JSON:
        return HttpResponse(status, text + b"\n")
    return HttpResponse(status, await from_json(codec, text, pace), "application/cbor")


class _ExchangeLink:
    """A link with one incoming message, which collects the outgoing ones."""

    joins = False
    codec: Codec = JSON

    def __init__(self, text: bytes) -> None:
        self.limit = len(text)
        self.answers: list[bytes] = []
        # An empty body is passed on too: the dispatcher answers it with a parse error.
        self._incoming = [text]

    async def receive(self) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        frames, self._incoming = self._incoming, []
        return frames

    def has_hung_up(self) -> bool:
        return False  # `HttpConnection` notices it and cancels the request

    def has_left_unread(self) -> bool:
        return False  # the daemon sends no requests over it

    def write_now(self, frame: bytes) -> int:
        self.answers.append(frame)
        return len(frame)

    async def write(self, frames: list[bytes | memoryview]) -> None:
        await trio.lowlevel.checkpoint()
        self.answers += map(bytes, frames)
