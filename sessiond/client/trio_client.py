"""The client for Trio: the same calls, live events and answers as the blocking client, with tasks instead of threads.

Both share the sans-io modules `wire`, `follow`, `retry` and `agent`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

import trio

from sessiond.client import agent, locate, wire
from sessiond.client.agent import YES_OR_NO, AttachedRun, question_params
from sessiond.client.errors import ClientError, ConnectionLost, RpcError
from sessiond.client.follow import FollowState
from sessiond.client.retry import Attempts, Backoff, Reconnection, is_wait_over
from sessiond.client.searching import SearchPages
from sessiond.client.trio_link import Handler, Params, TrioExchange, TrioLink
from sessiond.client.wire import Event

Answer = Callable[[Params], Awaitable[object]]

PROTOCOL = 1
WAIT_SLICE_S = 30.0


class TrioClient:
    """`async with TrioClient() as client: await client.call("sessions_list", limit=5)`.

    Arguments and errors are those of the blocking `Client`; handlers are async functions, and are cancelled when the
    daemon cancels their request. It is a context manager, whose nursery runs the reading task.
    """

    def __init__(
        self,
        socket: str | None = None,
        *,
        token: str | None = None,
        name: str = "sessiond-client",
        version: str = "0",
        on_request: Mapping[str, Answer] | None = None,
        on_reconnect: Callable[[int], object] | None = None,
    ) -> None:
        self._given_socket = socket
        self._given_token = token
        self._client_info = {"name": name, "version": version}
        self._handlers: dict[str, Handler] = {
            method: _params_only(answer) for method, answer in (on_request or {}).items()
        }
        self._on_reconnect = on_reconnect
        self._connecting = trio.Lock()
        self._exchange: TrioExchange | None = None
        self._links: list[TrioLink] = []
        self._closed = False

    async def __aenter__(self) -> Self:
        self._nursery_manager = trio.open_nursery()
        self._nursery = await self._nursery_manager.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> bool | None:
        self._closed = True
        self._nursery.cancel_scope.cancel()
        try:
            # Only a cancellation is passed to the nursery; an error of the body is raised as it is, in no group.
            if isinstance(error, trio.Cancelled):
                return await self._nursery_manager.__aexit__(kind, error, error.__traceback__)
            await self._nursery_manager.__aexit__(None, None, None)
            return None
        finally:
            for link in self._links:
                link.close()

    async def caller(self) -> Params:
        """This client as the daemon sees it: `{sessionKey?, agentId?, sandboxed, scopes}`. Connects if necessary."""
        return (await self._ensure_connected()).link.caller

    async def call(
        self, method: str, params: Params | None = None, /, *, timeout_s: float | None = None, **more: Any
    ) -> Any:
        """The result of `method`. Cancelling the call cancels the request, but no work that it has started."""
        given = {**(params or {}), **more}
        now = trio.current_time()
        attempts = Attempts(method, lambda _left_s: given, math.inf if timeout_s is None else now + timeout_s)
        while True:
            asked, left_s = attempts.begin(now), None if timeout_s is None else attempts.left_s(now)
            try:
                return await (await self._ensure_connected(left_s)).call(method, asked, left_s)
            except ClientError as error:
                is_over = not self._links or self._closed
                if is_over or not attempts.may_retry(error, trio.current_time()):
                    raise
            await self._pause(attempts.backoff)
            now = trio.current_time()

    async def search(self, query: str, limit: int | None = None, **params: Any) -> AsyncIterator[Params]:
        """As `Client.search`. Cancelling it cancels the search in the daemon."""
        pages = SearchPages({"query": query, **params}, limit)
        while not pages.is_over:
            page: Params = await self.call("sessions_search", pages.next_params())
            pages.take(page)
            yield page

    async def notify(self, method: str, params: Params | None = None, /, **more: Any) -> None:
        """Send a notification, which the daemon does not answer."""
        exchange = await self._ensure_connected()
        await exchange.link.send(wire.notification(method, {**(params or {}), **more}))

    async def wait(self, run_id: str, timeout_s: float | None = None, slice_s: float = WAIT_SLICE_S) -> Params:
        """The end of a run, as `agent.wait` returns it; `status: "running"` where `timeout_s` passed first, or where
        the run waits for the caller's own (`reason: "ancestor_busy"`). Goes on waiting when the daemon restarts.
        """
        deadline = math.inf if timeout_s is None else trio.current_time() + timeout_s
        retry = Reconnection(worked=True)
        while True:
            left = max(0.0, min(slice_s, deadline - trio.current_time()))
            async with self._resume(retry, deadline):
                answer: Params = await self.call(
                    "agent.wait", timeout_s=left + 10, runId=run_id, timeoutMs=math.ceil(left * 1000)
                )
                retry.note_success()
                if is_wait_over(answer) or trio.current_time() >= deadline:
                    return answer

    def subscribe(
        self,
        key: str | None = None,
        cursor: str | None = None,
        *,
        with_changes: bool = False,
        on_connect: Callable[[], Awaitable[object]] | None = None,
    ) -> TrioSubscription:
        """`async for event in client.subscribe("main")`: every event of the session `key` after `cursor` (None: from
        now), or of all visible sessions. Each stored message comes exactly once, also over lost connections.

        Of all sessions `sessions.changed` comes as well, of one only `with_changes`. `on_connect` runs each time that
        the subscription stands: at first, and when a lost connection is back.
        """
        follow = FollowState(key, cursor, with_changes=with_changes)
        return TrioSubscription(follow, self._open_link, self._resume, on_connect)

    async def serve(self, on_connect: Callable[[], Awaitable[object]] | None = None) -> None:
        """Answer the daemon's requests until cancelled; `on_connect` is awaited after each new connection."""
        retry = Reconnection()
        while True:
            async with self._resume(retry):
                exchange = await self._ensure_connected()
                if on_connect is not None:
                    await on_connect()
                retry.note_success()
                await exchange.ended.wait()
                raise ConnectionLost(str(exchange.lost))

    async def attach(
        self,
        agent_id: str,
        handler: Callable[[TrioRun], Awaitable[object]],
        *,
        steer: Callable[[str, str], Awaitable[object]] | None = None,
    ) -> None:
        """Run the agent `agent_id` here until cancelled. `handler(run)`, a task for each run, returns the reply, or
        the answer of `run.start` as a dict; `run.ask` asks a person meanwhile. `steer(run_id, message)` takes messages
        for a run that is live."""

        async def start(exchange: TrioExchange, request: wire.DaemonRequest) -> object:
            def notify(method: str, params: Params) -> None:
                exchange.link.send_soon(wire.notification(method, params))

            return agent.run_answer(await handler(TrioRun(request.params, notify, exchange)))

        self._handlers["run.start"] = start
        if steer is not None:
            self._handlers["run.steer"] = _params_only(lambda params: steer(params["runId"], params["message"]))
        params = agent.attach_params(agent_id, steer is not None)
        await self.serve(lambda: self.call("agents.attach", params))

    async def attach_channel(
        self,
        channel: str,
        deliver: Answer,
        *,
        account_id: str | None = None,
        bind_thread: Answer | None = None,
    ) -> None:
        """Deliver for `channel` until cancelled. When `deliver({deliveryId, to, text, ...})` returns, the delivery is
        acknowledged.
        """

        async def acknowledge(params: Params) -> object:
            return await deliver(params) or {}

        self._handlers["channel.deliver"] = _params_only(acknowledge)
        if bind_thread is not None:
            self._handlers["channel.bindThread"] = _params_only(bind_thread)
        params = agent.channel_params(channel, account_id, bind_thread is not None)
        await self.serve(lambda: self.call("channels.attach", params))

    async def _ensure_connected(self, within_s: float | None = None) -> TrioExchange:
        async with self._connecting:
            if self._exchange is None or self._exchange.lost is not None:
                self._exchange = TrioExchange(await self._open_link(within_s), self._handlers)
                self._nursery.start_soon(self._exchange.run)
            return self._exchange

    async def _open_link(self, within_s: float | None = None) -> TrioLink:
        if self._closed:
            raise ClientError("this client is closed")
        hello: Params = {"protocol": PROTOCOL, "client": self._client_info}
        token = locate.find_token(self._given_token)
        path = locate.socket_path(self._given_socket)
        link = await TrioLink.open(path, hello if token is None else {**hello, "token": token}, within_s)
        # Collected, so that closing the client also closes subscriptions that were abandoned.
        self._links = [link, *(other for other in self._links if not other.is_closed)]
        return link

    @asynccontextmanager
    async def _resume(self, retry: Reconnection, deadline: float = math.inf) -> AsyncIterator[None]:
        """Pass over an error after which what stands inside is tried again, and pause before that."""
        try:
            yield
        except ClientError as error:
            if not retry.may_retry(error) or trio.current_time() >= deadline:
                raise
            await self._pause(retry.backoff)

    async def _pause(self, backoff: Backoff) -> None:
        delay = backoff.next_s()
        if self._on_reconnect is not None:
            self._on_reconnect(backoff.attempt)
        await trio.sleep(delay)


class TrioRun(AttachedRun):
    """A run of the client for Trio. `cancelled()` is always False: of a cancelled run the handler is cancelled."""

    def __init__(self, params: Params, notify: Callable[[str, Params], object], exchange: TrioExchange) -> None:
        super().__init__(params, notify, lambda: False)
        self._exchange = exchange

    async def ask(
        self,
        title: str,
        options: Iterable[Mapping[str, str]] = YES_OR_NO,
        *,
        detail: str | None = None,
        timeout_s: float | None = None,
    ) -> Params:
        """As `BlockingRun.ask`. Cancelling it withdraws the question."""
        params = question_params(self.run_id, title, options, detail, timeout_s)
        answer: Params = await self._exchange.call("agents.ask", params, None)
        return answer


class TrioSubscription:
    """The events of one subscription, for `async for`. It has its own connection, which is closed with the client."""

    def __init__(
        self,
        follow: FollowState,
        open_link: Callable[[], Awaitable[TrioLink]],
        resume: Callable[[Reconnection], AbstractAsyncContextManager[None]],
        on_connect: Callable[[], Awaitable[object]] | None,
    ) -> None:
        self._follow = follow
        self._open_link = open_link
        self._resume = resume
        self._on_connect = on_connect
        self._retry = Reconnection()
        self._link: TrioLink | None = None
        self._is_announced = False  # whether `on_connect` has run for this link
        self._ready: deque[Event] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            while self._ready and self._is_announced:
                event = self._ready.popleft()
                if self._follow.take(event):
                    return event
            async with self._resume(self._retry):
                try:
                    await self._read()
                except ClientError:
                    self.close()
                    raise

    def close(self) -> None:
        """End the subscription."""
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _read(self) -> None:
        """Read what comes next into `_ready`. Each step that is cancelled is done again by the next call."""
        if self._link is None:
            self._link = await self._connect()
            self._is_announced = False
        if not self._is_announced:
            if self._on_connect is not None:
                await self._on_connect()
            self._is_announced = True
        else:
            self._ready += [message for message in await self._link.receive() if isinstance(message, Event)]

    async def _connect(self) -> TrioLink:
        """A connection that is subscribed; the first events are in `_ready`."""
        link = await self._open_link()
        backlog: list[Event] = []
        try:
            events = await _run_plan(self._follow, link, backlog)
        except BaseException:
            link.close()
            raise
        self._ready += [*events, *backlog]
        self._retry.note_success()
        return link


def _params_only(answer: Answer) -> Handler:
    return lambda _, request: answer(request.params)


async def _run_plan(follow: FollowState, link: TrioLink, backlog: list[Event]) -> list[Event]:
    plan = follow.connect()
    try:
        method, params = next(plan)
        while True:
            try:
                result = await link.ask(method, params, backlog)
            except RpcError as error:
                method, params = plan.throw(error)
            else:
                method, params = plan.send(result)
    except StopIteration as end:
        return end.value or []
