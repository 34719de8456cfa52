"""A small method table and a real socket pair: what the tests of rpc talk to."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import trio
from support.patience import PATIENCE_S

from sessiond.errors import NotFound, Overloaded
from sessiond.model.caller import NOBODY, OWNER, Caller
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.rpc.method import Context, Later, Method
from sessiond.rpc.peer import Peer
from sessiond.transports.framed import cbor_link, ndjson_link
from sessiond.transports.streams import ByteStream


class Params(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class Attachment(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    name: str
    content: str = ""
    encoding: str = "utf8"


class EchoParams(Params):
    session_key: str = "main"
    limit: int | float | None = None
    attachments: tuple[Attachment, ...] = ()


class AskParams(Params):
    method: str
    timeout: float | None = None


class LargeParams(Params):
    size: int


class TokenParams(Params):
    token: str


@dataclass
class Services:
    """What the handlers share: setting `release` ends `wait`, whose calls are counted in `started`; `promises` are the
    unsettled results of `promised`; `faults` are what would be logged."""

    release: trio.Event = field(default_factory=trio.Event)
    started: int = 0
    ended: list[str] = field(default_factory=list)
    faults: list[tuple[str, BaseException]] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    promises: list[Later] = field(default_factory=list)
    now_ms: int = 0


def ping(ctx: Context[Services], params: Params) -> dict[str, Any]:
    return {}


def echo(ctx: Context[Services], params: EchoParams) -> Any:
    return params


def whoami(ctx: Context[Services], params: Params) -> Any:
    return {"kind": ctx.caller.kind, "run": ctx.caller.run_id, "meta": ctx.params_meta, "id": ctx.request_id}


async def initialize(ctx: Context[Services], params: TokenParams) -> Any:
    await trio.lowlevel.checkpoint()
    ctx.peer.caller = Caller(kind="token", scopes=frozenset(["list"]), token_id=params.token)
    return {"caller": params.token}


async def wait(ctx: Context[Services], params: Params) -> Any:
    ctx.services.started += 1
    try:
        await ctx.services.release.wait()
        return {"released": True}
    finally:
        ctx.services.ended.append(str(ctx.request_id))


async def ask(ctx: Context[Services], params: AskParams) -> Any:
    return {"answer": await ctx.peer.request(params.method, {"x": 1}, timeout=params.timeout)}


async def large(ctx: Context[Services], params: LargeParams) -> Any:
    await ctx.reserve(params.size)
    return {"text": "x" * params.size}


async def refused_in_line(ctx: Context[Services], params: Params) -> Any:
    await trio.lowlevel.checkpoint()
    raise NotFound("There is no such session.")


def promised(ctx: Context[Services], params: Params) -> Later:
    later = Later()
    ctx.services.promises.append(later)
    return later


def kept(ctx: Context[Services], params: Params) -> Later:
    later = Later()
    later.settle_with({"kept": True})
    return later


def missing(ctx: Context[Services], params: Params) -> Any:
    raise NotFound("There is no such session.")


async def grouped(ctx: Context[Services], params: Params) -> Any:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_refuse)


async def _refuse() -> None:
    raise Overloaded("Too much.", retryAfterMs=250, code="too_many_hops")


def broken(ctx: Context[Services], params: Params) -> Any:
    raise KeyError("a secret path")


async def broken_later(ctx: Context[Services], params: Params) -> Any:
    await trio.lowlevel.checkpoint()
    raise ZeroDivisionError


def starved(ctx: Context[Services], params: Params) -> Any:
    raise MemoryError


def unencodable(ctx: Context[Services], params: Params) -> Any:
    return {"x": object()}


def subscribe(ctx: Context[Services], params: Params) -> Any:
    ctx.peer.notify("event", {"n": 1})
    return {"subscribed": True}


def peer(ctx: Context[Services], params: Params) -> Any:
    ctx.services.peers.append(ctx.peer)
    return {}


TABLE = (
    Method("ping", None, Params, dict, ping, "Answers."),
    Method("initialize", None, TokenParams, dict, initialize, "Says who calls.", before_auth=True),
    Method("echo", "read", EchoParams, EchoParams, echo, "Gives back what it got.", aliases=("chat.echo", "say")),
    Method("whoami", "list", Params, dict, whoami, "Says who the caller is.", before_ready=True),
    Method("wait", "read", Params, dict, wait, "Waits."),
    Method("large", None, LargeParams, dict, large, "Has a large answer."),
    Method("refused_in_line", None, Params, dict, refused_in_line, "Is refused in its turn.", ordered=True),
    Method("promised", "read", Params, dict, promised, "Answers when somebody else says so.", later=True),
    Method("kept", None, Params, dict, kept, "Has its answer already.", later=True),
    Method("ask", None, AskParams, dict, ask, "Asks the client."),
    Method("missing", None, Params, dict, missing, "Is never found."),
    Method("grouped", None, Params, dict, grouped, "Fails in a nursery."),
    Method("broken", None, Params, dict, broken, "Has a fault."),
    Method("broken_later", None, Params, dict, broken_later, "Has a fault in its task."),
    Method("starved", None, Params, dict, starved, "Has no memory left."),
    Method("unencodable", None, Params, dict, unencodable, "Answers what is not JSON."),
    Method("subscribe", "list", Params, dict, subscribe, "Sends an event.", streams=True),
    Method("peer", None, Params, dict, peer, "Shows the test its peer."),
)


class Client:
    """The client's end of the connection. Sends bytes, reads JSON lines."""

    def __init__(self, stream: ByteStream, peer: Peer, services: Services, dispatcher: Dispatcher[Services]) -> None:
        self.stream = stream
        self.peer = peer
        self.services = services
        self.dispatcher = dispatcher
        self.ended = trio.Event()
        self._lines: list[bytes] = []
        self._rest = b""

    async def send(self, *messages: Any) -> None:
        """Send each message: bytes as they are, anything else as one line of JSON."""
        lines = [item if isinstance(item, bytes) else msgspec.json.encode(item) + b"\n" for item in messages]
        await self.stream.send_all(b"".join(lines))

    async def line(self) -> Any:
        while not self._lines:
            data = await self.stream.receive_some()
            assert data, "the server closed the connection"
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += lines
        return msgspec.json.decode(self._lines.pop(0))

    async def lines(self, count: int) -> list[Any]:
        return [await self.line() for _ in range(count)]

    async def rest(self) -> bytes:
        """Everything up to the end of the stream."""
        data = b"".join(line + b"\n" for line in self._lines) + self._rest
        self._lines, self._rest = [], b""
        while more := await self.stream.receive_some():
            data += more
        return data

    async def call(self, method: str, params: Any = None, request_id: Any = 1) -> Any:
        message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        await self.send(message if params is None else {**message, "params": params})
        return await self.line()


Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def table() -> tuple[Method, ...]:
    return TABLE


@pytest.fixture
def connect() -> Connect:
    """`async with connect(caller=..., limits=..., cbor=...) as client`: the client of a running peer."""

    @asynccontextmanager
    async def open_client(
        *,
        caller: Caller = OWNER,
        limits: Limits | None = None,
        cbor: bool = False,
        now_ms: int = 0,
        ready: trio.Event | None = None,
    ) -> AsyncIterator[Client]:
        limits = limits or Limits()
        services = Services()
        services.now_ms = now_ms
        dispatcher = Dispatcher(
            TABLE,
            services,
            limits=limits,
            on_fault=lambda what, error: services.faults.append((what, error)),
            now_ms=lambda: services.now_ms,
            ready=ready,
        )
        ours, theirs = socket.socketpair()
        stream = ByteStream(ours)
        peer = Peer((cbor_link if cbor else ndjson_link)(stream, limits, lambda: peer), dispatcher, caller)
        client = Client(ByteStream(theirs), peer, services, dispatcher)

        async def serve() -> None:
            await peer.run()
            stream.close()
            client.ended.set()

        try:
            with trio.fail_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(serve)
                    yield client
                    nursery.cancel_scope.cancel()
        finally:
            client.stream.close()
            stream.close()

    return open_client


@pytest.fixture
def stranger() -> Caller:
    return NOBODY
