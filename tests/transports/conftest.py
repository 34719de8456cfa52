"""A whole server on real sockets, with a small method table and a few routes, for clients written by others."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from support.patience import PATIENCE_S

from sessiond.errors import Conflict, Unauthenticated
from sessiond.model.caller import Caller
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.rpc.method import Context, Method
from sessiond.store.kept_files import KeptFiles
from sessiond.transports.active_connections import ActiveConnections
from sessiond.transports.exchange import Answer, EventStreamAnswer, HttpRequest, json_response
from sessiond.transports.listener import bind_tcp, bind_unix
from sessiond.transports.serve import Server, ServerLimits
from sessiond.transports.sse import EventStream

TOKENS = {
    "reader": Caller(kind="token", scopes=frozenset(["list", "read"]), token_id="t-reader"),
    "lister": Caller(kind="token", scopes=frozenset(["list"]), token_id="t-lister"),
}


class Params(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class TokenParams(Params):
    token: str


class TextParams(Params):
    text: str


@dataclass
class Services:
    release: trio.Event = field(default_factory=trio.Event)
    started: int = 0
    ended: int = 0
    faults: list[tuple[str, BaseException]] = field(default_factory=list)


def authenticate(token: str) -> Caller:
    try:
        return TOKENS[token]
    except KeyError:
        raise Unauthenticated("This token is not valid.") from None


def initialize(ctx: Context[Services], params: TokenParams) -> Any:
    ctx.peer.caller = authenticate(params.token)
    return {"caller": ctx.peer.caller.token_id}


async def wait(ctx: Context[Services], params: Params) -> Any:
    ctx.services.started += 1
    try:
        await ctx.services.release.wait()
        return {"released": True}
    finally:
        ctx.services.ended += 1


def conflict(ctx: Context[Services], params: Params) -> Any:
    raise Conflict("The label is in use.", code="label_in_use")


def broken(ctx: Context[Services], params: Params) -> Any:
    raise KeyError


async def subscribe(ctx: Context[Services], params: Params) -> Any:
    async def pump() -> None:
        for number in range(3):
            ctx.peer.notify("event", {"n": number})
            await trio.lowlevel.checkpoint()

    ctx.peer.nursery.start_soon(pump)
    await trio.lowlevel.checkpoint()
    return {"subscribed": True}


METHODS = (
    Method("ping", None, Params, dict, lambda ctx, params: {}, "Answers."),
    Method("initialize", None, TokenParams, dict, initialize, "Says who calls.", before_auth=True),
    Method("whoami", None, Params, dict, lambda ctx, params: {"token": ctx.caller.token_id}, "Says who the caller is."),
    Method("echo", "read", TextParams, dict, lambda ctx, params: {"text": params.text}, "Gives back what it got."),
    Method("wait", None, Params, dict, wait, "Waits."),
    Method("conflict", None, Params, dict, conflict, "Is refused."),
    Method("broken", None, Params, dict, broken, "Has a fault."),
    Method("subscribe", None, Params, dict, subscribe, "Sends events.", streams=True),
)


@dataclass
class RunningServer:
    """The running server: where it listens, what its handlers share, and clients of other makers."""

    server: Server
    dispatcher: Dispatcher[Services]
    services: Services
    owner: Path
    agent: Path
    tcp: str

    async def run(self, *command: str | Path, stdin: bytes = b"") -> bytes:
        """Run a program, which must succeed. What it prints."""
        with trio.fail_after(PATIENCE_S):
            done = await trio.run_process([str(part) for part in command], stdin=stdin, capture_stdout=True)
        return done.stdout

    async def socat(self, stdin: bytes, path: Path | None = None) -> list[Any]:
        """The lines that are answered when `stdin` is piped into the socket."""
        out = await self.run("socat", "-t20", "-", f"UNIX-CONNECT:{path or self.owner}", stdin=stdin)
        return [msgspec.json.decode(line) for line in out.splitlines()]

    async def curl(self, path: str, *options: str, socket: Path | None = None, stdin: bytes = b"") -> tuple[int, str]:
        """Status and body of a request over a Unix socket (the owner's unless another is named)."""
        command = ["curl", "-sS", "--unix-socket", str(socket or self.owner), "-w", "\n%{http_code}", *options]
        return _split(await self.run(*command, f"http://sessiond{path}", stdin=stdin))

    async def curl_tcp(self, path: str, *options: str) -> tuple[int, str]:
        return _split(await self.run("curl", "-sS", "-w", "\n%{http_code}", *options, f"http://{self.tcp}{path}"))

    async def raw(self, data: bytes, path: Path | None = None) -> bytes:
        """Everything that the server answers on a connection that sends `data` and then closes its half."""
        with trio.fail_after(PATIENCE_S):
            async with await trio.open_unix_socket(path or self.owner) as stream:
                await stream.send_all(data)
                await stream.send_eof()
                return b"".join([chunk async for chunk in stream])

    async def raw_tcp(self, data: bytes) -> bytes:
        host, port = self.tcp.split(":")
        with trio.fail_after(PATIENCE_S):
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(data)
                await stream.send_eof()
                return b"".join([chunk async for chunk in stream])


def _split(out: bytes) -> tuple[int, str]:
    body, _, status = out.decode().rpartition("\n")
    return int(status), body


OpenServer = Callable[..., AbstractAsyncContextManager[RunningServer]]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket's path has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="sd-"))
    yield made
    subprocess.run(["chmod", "-R", "u+rwx", made], check=False)
    shutil.rmtree(made)


@pytest.fixture
def open_server(folder: Path) -> OpenServer:
    """`async with open_server(rules=..., limits=...) as running`."""

    @asynccontextmanager
    async def run_server(
        *,
        rules: ServerLimits | None = None,
        limits: Limits | None = None,
        uid: int | None = None,
        files: KeptFiles | None = None,
    ) -> AsyncIterator[RunningServer]:
        services = Services()
        dispatcher = Dispatcher(
            METHODS,
            services,
            limits=limits or Limits(),
            on_fault=lambda what, error: services.faults.append((what, error)),
        )
        server = Server(
            dispatcher,
            ActiveConnections(),
            authenticate=authenticate,
            peer_uid=lambda _socket: os.geteuid() if uid is None else uid,
            with_room=(files or KeptFiles()).retry_with_room,
            rules=rules,
        )
        _add_routes(server, services)
        owner, agent = bind_unix(folder / "sessiond.sock", "sessiond"), bind_unix(folder / "agent.sock", "agent")
        tcp = bind_tcp("127.0.0.1:0")
        listeners = (owner, agent, tcp)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve, listeners)
                yield RunningServer(
                    server,
                    dispatcher,
                    services,
                    folder / "sessiond.sock",
                    folder / "agent.sock",
                    f"127.0.0.1:{tcp.address[1]}",
                )
                nursery.cancel_scope.cancel()
        finally:
            for listener in listeners:
                listener.close()

    return run_server


def _add_routes(server: Server, services: Services) -> None:
    async def show(request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return json_response({"key": request.params["key"], "query": request.query, "caller": request.caller.token_id})

    async def accept(request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return json_response({"bytes": len(request.body)})

    async def fault(_request: HttpRequest) -> Answer:
        raise LookupError

    async def refuse(_request: HttpRequest) -> Answer:
        raise Conflict("The label is in use.", code="label_in_use")

    async def hang(_request: HttpRequest) -> Answer:
        services.started += 1
        try:
            await services.release.wait()
        finally:
            services.ended += 1
        return json_response({"ok": True})

    async def events(request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        first = int(request.headers.get("last-event-id", "0"))

        async def write(stream: EventStream) -> None:
            services.started += 1
            try:
                for number in range(first + 1, first + 4):
                    await stream.event(b'{"n":%d}' % number, name="message", cursor=str(number))
                if "follow" in request.query:
                    await services.release.wait()
                if "fail" in request.query:
                    raise Conflict("It was reset.")
            finally:
                services.ended += 1

        return EventStreamAnswer(write)

    server.router.add("GET", "/sessions/{key}/history", show, query=("limit", "x", "cursor", "empty", "follow"))
    server.router.add("POST", "/sessions/{key}/kill", accept, max_body_bytes=1000)
    server.router.add("GET", "/fault", fault)
    server.router.add("GET", "/refuse", refuse)
    server.router.add("GET", "/hang", hang)
    server.router.add("GET", "/events", events, query=("follow", "fail"))
