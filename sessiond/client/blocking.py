"""The blocking client: calls, live events and answers to the daemon's requests, on plain sockets and threads.

It connects at the first call, and again after the connection was lost. A call that the daemon did not get, or that is
idempotent, is then repeated; any other raises, because it may have been carried out. `subscribe` has its own
connection, so a slow reader of events delays no call.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager, suppress

from sessiond.client import agent, locate, wire
from sessiond.client.errors import ClientError, ConnectionLost
from sessiond.client.exchange import Exchange
from sessiond.client.follow import FollowState
from sessiond.client.link import ClientLink
from sessiond.client.retry import Attempts, Backoff, Reconnection, is_wait_over
from sessiond.client.searching import SearchPages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Self

    from sessiond.client.agent import BlockingRun
    from sessiond.client.cancellation import Cancellation
    from sessiond.client.exchange import Handler
    from sessiond.client.wire import Event

    Params = dict[str, Any]
    Answer = Callable[[Params], object]

PROTOCOL = 1
WAIT_SLICE_S = 30.0


class Client:
    """A client of the daemon; `with Client() as client: client.call("sessions_list", limit=5)`.

    The defaults of `socket` and `token` come from the environment (see `locate`). `on_request` answers the daemon's
    requests: it maps methods to functions of the params, each called in a thread of its own, which return the result or
    raise RpcError. `on_reconnect(attempt)` is called for every attempt (from 1) to reconnect. Methods may be called
    from any thread.
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
        self._reads_in_background = bool(on_request)
        self._on_reconnect = on_reconnect
        self._closed = threading.Event()
        self._lock = threading.Lock()  # guards the attributes below
        self._exchange: Exchange | None = None
        self._links: set[ClientLink] = set()
        self._was_connected = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; waiting calls raise ConnectionLost, `attach` and `subscribe` return."""
        self._closed.set()
        with self._lock:
            for link in self._links:
                link.close()

    @property
    def caller(self) -> Params:
        """This client as the daemon sees it: `{sessionKey?, agentId?, sandboxed, scopes}`. Connects if necessary."""
        return self._ensure_connected().link.caller

    def call(
        self,
        method: str,
        params: Params | None = None,
        /,
        *,
        timeout_s: float | None = None,
        cancellation: Cancellation | None = None,
        **more: Any,
    ) -> Any:
        """The result of `method`. Params by name, or as a dict.

        Raises RpcError for an error answer (slug `cancelled` after a `cancellation`), CallTimeout after `timeout_s`
        (the request is cancelled), DaemonNotRunning, and ConnectionLost for a lost call that must not be repeated.
        """
        given = {**(params or {}), **more}
        return self.call_within(method, lambda _left_s: given, timeout_s=timeout_s, cancellation=cancellation)

    def call_within(
        self,
        method: str,
        params_of: Callable[[float], Params],
        /,
        *,
        timeout_s: float | None,
        cancellation: Cancellation | None = None,
    ) -> Any:
        """As `call`. `params_of(left_s)` returns the params for an attempt with so many seconds left of `timeout_s`, so
        that a wait in the daemon does not begin anew after a lost connection.
        """
        now = time.monotonic()
        attempts = Attempts(method, params_of, math.inf if timeout_s is None else now + timeout_s)
        while True:
            given, left_s = attempts.begin(now), None if timeout_s is None else attempts.left_s(now)
            try:
                return self._ensure_connected(left_s).call(method, given, left_s, cancellation)
            except ClientError as error:
                is_over = not self._was_connected or self._closed.is_set()
                if is_over or not attempts.may_retry(error, time.monotonic()):
                    raise
                if self._pause(attempts.backoff, cancellation):
                    raise
            now = time.monotonic()

    def search(self, query: str, limit: int | None = None, **params: Any) -> Iterator[Params]:
        """The answers of `sessions_search`, page after page: the first matches before the last are found.

        `params` are those of the method. A page of a search that goes on has its `progress`.
        """
        pages = SearchPages({"query": query, **params}, limit)
        while not pages.is_over:
            page: Params = self.call("sessions_search", pages.next_params())
            pages.take(page)
            yield page

    def notify(self, method: str, params: Params | None = None, /, **more: Any) -> None:
        """Send a notification, which the daemon does not answer."""
        self._ensure_connected().notify(method, {**(params or {}), **more})

    def wait(self, run_id: str, timeout_s: float | None = None, slice_s: float = WAIT_SLICE_S) -> Params:
        """The end of a run, as `agent.wait` returns it; `status: "running"` where `timeout_s` passed first, or where
        the run waits for the caller's own (`reason: "ancestor_busy"`).

        The daemon waits, in slices of `slice_s`; a daemon that restarts in between is asked again.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        retry = Reconnection(worked=True)
        while True:
            left = max(0.0, min(slice_s, deadline - time.monotonic()))
            with self._resume(retry, deadline):
                # The daemon answers at the end of the slice at the latest, so ten more seconds mean that it does not.
                params = {"runId": run_id, "timeoutMs": math.ceil(left * 1000)}
                answer: Params = self.call("agent.wait", params, timeout_s=left + 10)
                retry.note_success()
                if is_wait_over(answer) or time.monotonic() >= deadline:
                    return answer

    def subscribe(
        self,
        key: str | None = None,
        cursor: str | None = None,
        *,
        with_changes: bool = False,
        on_connect: Callable[[], object] | None = None,
    ) -> Iterator[Event]:
        """Every event of the session `key` after `cursor` (None: from now), or of all visible sessions; for ever.

        Of all sessions `sessions.changed` comes as well, of one only `with_changes`: how its runs begin and end.
        `on_connect` is called each time that the subscription stands: at first, and when a lost connection is back.
        A lost connection is got back, and what was missed meanwhile comes first: each stored message comes exactly
        once. Raises RpcError where the subscription is refused, DaemonNotRunning where the first connection fails.
        """
        follow = FollowState(key, cursor, with_changes=with_changes)
        retry = Reconnection()
        while not self._closed.is_set():
            with self._resume(retry, until_closed=True), self._own_link() as link:
                backlog: list[Event] = []
                missed = _run_plan(follow, link, backlog)
                retry.note_success()
                if on_connect is not None:
                    on_connect()
                yield from filter(follow.take, missed)
                yield from filter(follow.take, backlog)
                while True:
                    yield from filter(follow.take, (m for m in link.receive() if isinstance(m, wire.Event)))

    def serve(self, on_connect: Callable[[], object] | None = None) -> None:
        """Answer the daemon's requests until `close()`; `on_connect` is called after each new connection."""
        retry = Reconnection()
        while not self._closed.is_set():
            with self._resume(retry, until_closed=True):
                exchange = self._ensure_connected()
                if on_connect is not None:
                    on_connect()
                retry.note_success()
                exchange.read()

    def attach(
        self,
        agent_id: str,
        handler: Callable[[BlockingRun], object],
        *,
        steer: Callable[[str, str], object] | None = None,
    ) -> None:
        """Run the agent `agent_id` here until `close()`. `handler(run)`, in a thread for each run, returns the reply,
        or the answer of `run.start` as a dict; `run.ask` asks a person meanwhile. `steer(run_id, message)` takes
        messages for a run that is live.
        """

        def start(exchange: Exchange, request: wire.DaemonRequest) -> object:
            def call(method: str, params: Params) -> Any:
                return exchange.call(method, params, None)

            run = agent.BlockingRun(request.params, exchange.notify, lambda: exchange.is_cancelled(request.id), call)
            return agent.run_answer(handler(run))

        self._handlers["run.start"] = start
        if steer is not None:
            self._handlers["run.steer"] = lambda _, request: steer(request.params["runId"], request.params["message"])
        self.serve(lambda: self.call("agents.attach", agent.attach_params(agent_id, steer is not None)))

    def attach_channel(
        self,
        channel: str,
        deliver: Callable[[Params], object],
        *,
        account_id: str | None = None,
        bind_thread: Callable[[Params], object] | None = None,
    ) -> None:
        """Deliver for `channel` until `close()`. When `deliver({deliveryId, to, text, ...})` returns, the delivery is
        acknowledged.

        `bind_thread({sessionKey, label?, to?})`, where the channel has threads, returns `{"threadId": ...}`.
        """
        self._handlers["channel.deliver"] = _params_only(lambda params: deliver(params) or {})
        if bind_thread is not None:
            self._handlers["channel.bindThread"] = _params_only(bind_thread)
        params = agent.channel_params(channel, account_id, bind_thread is not None)
        self.serve(lambda: self.call("channels.attach", params))

    def _ensure_connected(self, within_s: float | None = None) -> Exchange:
        with self._lock:
            exchange = self._exchange
            if exchange is None or exchange.lost is not None:
                if exchange is not None:
                    self._links.discard(exchange.link)
                    exchange.link.close()
                exchange = self._exchange = Exchange(self._open_link(within_s), self._handlers)
                if self._reads_in_background:
                    threading.Thread(target=_read_quietly, args=(exchange,), daemon=True).start()
            return exchange

    def _open_link(self, within_s: float | None = None) -> ClientLink:
        """A new connection after `initialize`; CallTimeout after `within_s`. Called with the lock held."""
        if self._closed.is_set():
            raise ConnectionLost("this client is closed")
        hello: Params = {"protocol": PROTOCOL, "client": self._client_info}
        token = locate.find_token(self._given_token)
        link = ClientLink(locate.socket_path(self._given_socket), within_s)
        try:
            link.initialize(hello if token is None else {**hello, "token": token})
        except ClientError:
            link.close()
            raise
        self._links.add(link)
        self._was_connected = True
        return link

    @contextmanager
    def _own_link(self) -> Iterator[ClientLink]:
        with self._lock:
            link = self._open_link()
        try:
            yield link
        finally:
            with self._lock:
                self._links.discard(link)
            link.close()

    @contextmanager
    def _resume(self, retry: Reconnection, deadline: float = math.inf, *, until_closed: bool = False) -> Iterator[None]:
        """Suppress an error of the block after which the caller tries again, and pause before that.

        With `until_closed` an error after `close()` is suppressed too.
        """
        try:
            yield
        except ClientError as error:
            if self._closed.is_set():
                if until_closed:
                    return
                raise
            if not retry.may_retry(error) or time.monotonic() >= deadline:
                raise
            self._pause(retry.backoff)

    def _pause(self, backoff: Backoff, cancellation: Cancellation | None = None) -> bool:
        """Wait before the next attempt; True if the client was closed or the call cancelled meanwhile."""
        delay = backoff.next_s()
        if self._on_reconnect is not None:
            self._on_reconnect(backoff.attempt)
        return self._closed.wait(delay) if cancellation is None else cancellation.wait(delay)


def _read_quietly(exchange: Exchange) -> None:
    with suppress(ConnectionLost):  # the next call makes a new connection
        exchange.read()


def _params_only(answer: Answer) -> Handler:
    return lambda _, request: answer(request.params)


def _run_plan(follow: FollowState, link: ClientLink, backlog: list[Event]) -> list[Event]:
    """Make the calls that `follow` plans, and return its events; events in between are appended to `backlog`."""
    plan = follow.connect()
    try:
        method, params = next(plan)
        while True:
            request_id, data = link.wire.request(method, params)
            link.send(data)
            answer = _answer_to(request_id, link, backlog)
            method, params = plan.throw(answer.error) if answer.error is not None else plan.send(answer.result)
    except StopIteration as end:
        return end.value or []


def _answer_to(request_id: int, link: ClientLink, backlog: list[Event]) -> wire.CallResponse:
    found = None
    while found is None:
        for message in link.receive():
            if isinstance(message, wire.Event):
                backlog.append(message)
            elif isinstance(message, wire.CallResponse) and message.id in (request_id, None):
                found = message
    return found
