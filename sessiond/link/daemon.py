"""The daemon's socket for asyncio: calls from any task, events, and requests of the daemon, over lost connections.

    daemon = DaemonClient(say=print, handlers={"run.start": start}, on_event=note, on_connect=[attach])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(daemon.run())
        rows = await daemon.call("sessions_list", limit=200)

`DaemonLink` is one connection, `DaemonClient` keeps one for as long as it runs. Shares the sans-io parts of the client
library. Knows nothing of NATS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from sessiond import __version__
from sessiond.client import locate, wire
from sessiond.client.agent import call_cancelled_error
from sessiond.client.errors import CallTimeout, ClientError, ConnectionLost, DaemonNotRunning, NotSent, RpcError
from sessiond.client.link import CONNECT_TIMEOUT_S, connect_error
from sessiond.client.retry import FIRST_DELAY_S, Backoff, may_repeat

PROTOCOL = 1
# A daemon that was killed is back within a second; looking for one that is stopped must not keep the machine awake.
MAX_PAUSE_S = 5.0

Params = dict[str, Any]
# What answers a request of the daemon: the result, or an RpcError that is raised. Cancelled where the daemon cancels
# the request and where the connection ends.
RequestHandler = Callable[["DaemonLink", wire.DaemonRequest], Awaitable[object]]
# What is done on every new connection before others use it: attach, subscribe.
ConnectHook = Callable[["DaemonLink"], Awaitable[object]]


class _ResultLine(msgspec.Struct, frozen=True):
    """A line with the answer to a call. The result is decoded by whoever knows its type."""

    id: int
    result: msgspec.Raw


_decode_answer = msgspec.json.Decoder(_ResultLine).decode


def _parse(line: bytes) -> wire.Incoming:
    """As `wire.decode`, with results as they stand in the line: a third of the time for a range of 256 kB."""
    try:
        found = _decode_answer(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return wire.decode(line)
    return wire.CallResponse(found.id, found.result, None)


def json_wire() -> wire.JsonRpcWire:
    """Lines of JSON, as most calls need them."""
    return wire.JsonRpcWire(_parse)


class DaemonLink(asyncio.Protocol):
    """One connection to the daemon. `caller` is what `initialize` returned, `lost` the error with which it ended."""

    def __init__(
        self,
        handlers: Mapping[str, RequestHandler],
        on_event: Callable[[wire.Event], object],
        make_wire: Callable[[], wire.JsonRpcWire],
    ) -> None:
        self.caller: Params = {}
        self.lost: ClientError | None = None
        self.ended = asyncio.Event()
        self._wire = make_wire()
        self._handlers, self._on_event = handlers, on_event
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._running: dict[int | str, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._early: list[wire.DaemonRequest] = []
        self._transport: asyncio.Transport

    @classmethod
    async def open(
        cls,
        path: str,
        hello: Params,
        handlers: Mapping[str, RequestHandler],
        on_event: Callable[[wire.Event], object],
        make_wire: Callable[[], wire.JsonRpcWire] = json_wire,
    ) -> DaemonLink:
        """A connection after `initialize`, which has CONNECT_TIMEOUT_S."""
        link: DaemonLink | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                made = asyncio.get_running_loop().create_unix_connection(
                    lambda: cls(handlers, on_event, make_wire), path
                )
                _, link = await made
                link.caller = (await link.call("initialize", hello)).get("caller") or {"scopes": []}
                return link
        except TimeoutError:
            raise DaemonNotRunning(path, "no answer") from None
        except OSError as error:
            raise connect_error(path, error) from None
        finally:
            if link is not None and not link.caller:
                link.close()

    async def call(
        self,
        method: str,
        params: Params | None = None,
        /,
        *,
        timeout_s: float | None = None,
        form: Any = Any,
        **more: Any,
    ) -> Any:
        """The result of `method`, of the type `form`; RpcError, ConnectionLost or CallTimeout. Cancelling it cancels
        the request.
        """
        if self.lost is not None:
            raise NotSent(str(self.lost))
        request_id, data = self._wire.request(method, {**(params or {}), **more})
        answer = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            async with asyncio.timeout(timeout_s):
                return _decode_result(method, await answer, form)
        except TimeoutError:
            raise CallTimeout(f"sessiond did not answer {method} within {timeout_s or 0:g} s") from None
        finally:
            del self._waiting[request_id]
            if answer.cancelled():
                self.notify("$/cancelRequest", id=request_id)

    def notify(self, method: str, params: Params | None = None, /, **more: Any) -> None:
        """Send a notification, which the daemon does not answer; nothing once the connection has ended."""
        if self.lost is None:
            self._transport.write(self._wire.outgoing(wire.notification(method, {**(params or {}), **more})))

    async def answer_requests(self, body: Callable[[], Awaitable[object]]) -> None:
        """Answer the daemon's requests, each in a task of its own, while `body` runs; then cancel what is left."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for request in self._early:
                self._start(tasks, request)
            try:
                await body()
            finally:
                self._tasks = None
                # Nothing is answered any more: what was asked here goes on elsewhere, and is asked again.
                self._end(ConnectionLost("the connection to sessiond is being closed"))
                for task in self._running.values():
                    task.cancel()

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._wire.feed(data):
                self._route(message)
        except ClientError as error:
            self._end(error)
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        why = "" if error is None else f" ({getattr(error, 'strerror', None) or error})"
        self._end(ConnectionLost(f"the connection to sessiond ended{why}"))

    def _end(self, error: ClientError) -> None:
        self.lost = self.lost or error
        self.ended.set()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost(str(self.lost)))

    def _route(self, message: wire.Incoming) -> None:
        if isinstance(message, wire.DaemonRequest):
            if self._tasks is None:
                self._early.append(message)
            else:
                self._start(self._tasks, message)
        elif isinstance(message, wire.CallResponse):
            answer = None if message.id is None else self._waiting.get(message.id)
            if message.id is None and message.error is not None:
                raise ConnectionLost(message.error.message)  # an error without an id concerns the whole connection
            if answer is not None and not answer.done():
                if message.error is None:
                    answer.set_result(message.result)
                else:
                    answer.set_exception(message.error)
        elif message.name != "$/cancelRequest":
            self._on_event(message)
        elif (task := self._running.get(message.get("id"))) is not None:
            # Not at once: a task that is cancelled before its first step answers nothing.
            asyncio.get_running_loop().call_soon(task.cancel)

    def _start(self, tasks: asyncio.TaskGroup, request: wire.DaemonRequest) -> None:
        task = self._running[request.id] = tasks.create_task(self._answer(request))
        task.add_done_callback(lambda _: self._running.pop(request.id, None))

    async def _answer(self, request: wire.DaemonRequest) -> None:
        data = wire.refusal(request.id, call_cancelled_error())
        try:
            handler = self._handlers.get(request.method)
            if handler is None:
                raise wire.no_such_method(request.method)
            data = wire.answer(request.id, await handler(self, request))
        except RpcError as error:
            data = wire.refusal(request.id, error)
        except ClientError as error:
            data = wire.refusal(request.id, RpcError(wire.INTERNAL, "internal", str(error)))
        finally:
            if self.lost is None:
                self._transport.write(self._wire.outgoing(data))


def _decode_result(method: str, result: Any, form: Any) -> Any:
    try:
        if isinstance(result, msgspec.Raw):
            return msgspec.json.decode(result, type=form)
        return result if form is Any else msgspec.convert(result, form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ConnectionLost(
            f"sessiond answered {method} with something unexpected; see that both are of one release"
        ) from None


class DaemonClient:
    """The daemon over lost connections, while `run` runs, as the owner.

    `say` gets a sentence when the daemon is away, once, and one when it is back. `on_event` is called for every event,
    in their order; it must not block. The `on_connect` hooks run one after another on each new connection; one that
    fails ends this connection, and the next one is tried after a pause. `make_wire` is for each connection.
    """

    def __init__(
        self,
        socket: str | None = None,
        *,
        say: Callable[[str], object],
        handlers: Mapping[str, RequestHandler] | None = None,
        on_event: Callable[[wire.Event], object] = lambda _event: None,
        on_connect: Iterable[ConnectHook] = (),
        max_pause_s: float = MAX_PAUSE_S,
        make_wire: Callable[[], wire.JsonRpcWire] = json_wire,
    ) -> None:
        self._handlers, self._on_connect = dict(handlers or {}), list(on_connect)
        self._given_socket, self._make_wire = socket, make_wire
        self._say, self._on_event, self._max_pause_s = say, on_event, max_pause_s
        self._link: DaemonLink | None = None
        self._waiting_for_link: list[asyncio.Future[None]] = []
        self._told = ""

    @property
    def is_connected(self) -> bool:
        return self._link is not None and self._link.lost is None

    async def run(self) -> None:
        """Keep a connection until cancelled."""
        backoff = Backoff(FIRST_DELAY_S, self._max_pause_s)
        while True:
            try:
                link = await self._open()
                await self._keep(link, backoff)
            except* ClientError as group:
                self._tell_away(_first_of(group))
            await asyncio.sleep(backoff.next_s())

    async def call(
        self,
        method: str,
        params: Params | None = None,
        /,
        *,
        timeout_s: float | None = None,
        form: Any = Any,
        **more: Any,
    ) -> Any:
        """The result of `method`, of the type `form`. Waits for a daemon that is away, and repeats what does no harm;
        else ConnectionLost.

        CallTimeout after `timeout_s`, all waits included; with None it waits for as long as it takes.
        """
        given, backoff = {**(params or {}), **more}, Backoff(max_s=self._max_pause_s)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    link = await self.current_link()
                    try:
                        return await link.call(method, given, form=form)
                    except ClientError as error:
                        if not may_repeat(error, method, given):
                            raise
                    await asyncio.sleep(backoff.next_s())
        except TimeoutError:
            raise CallTimeout(f"sessiond did not answer {method} within {timeout_s or 0:g} s") from None

    async def current_link(self) -> DaemonLink:
        """The connection, as soon as there is one whose hooks have run."""
        while self._link is None or self._link.lost is not None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting_for_link.append(waiter)
            await waiter
        return self._link

    async def _open(self) -> DaemonLink:
        hello: Params = {"protocol": PROTOCOL, "client": {"name": "sessiond-link", "version": __version__}}
        path = locate.socket_path(self._given_socket)
        return await DaemonLink.open(path, hello, self._handlers, self._on_event, self._make_wire)

    async def _keep(self, link: DaemonLink, backoff: Backoff) -> None:
        async def serve() -> None:
            for hook in self._on_connect:
                await hook(link)
            backoff.reset()
            if self._told:
                self._told = ""
                self._say("sessiond is back")
            self._link = link
            for waiter in self._waiting_for_link:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting_for_link.clear()
            await link.ended.wait()
            raise ConnectionLost(str(link.lost))

        try:
            await link.answer_requests(serve)
        finally:
            self._link = None
            link.close()

    def _tell_away(self, error: ClientError) -> None:
        # A connection that was lost is followed by the reason why there is no other, or by one that is back at once.
        said = str(error)
        if isinstance(error, RpcError) and error.slug in ("method_not_found", "invalid_params"):
            said = f"sessiond refuses what this link asks of it ({said.rstrip('.')}); see that both are of one release"
        if isinstance(error, ConnectionLost) or said == self._told:
            return
        self._told = said
        self._say(f"{said}; trying again")


def _first_of(group: BaseExceptionGroup[ClientError]) -> ClientError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cast(ClientError, error)
