"""From a message to an answer: checks, decodes, calls, encodes. Knows the method table, no method and no socket.

The one place, beside the run supervisor, where any exception is caught: a fault in one request or one connection is
logged and answered with -32603, and ends nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import trio
from msgspec import UNSET

from sessiond.errors import (
    Forbidden,
    InternalError,
    InvalidRequest,
    MethodNotFound,
    Overloaded,
    RequestCancelled,
    SessiondError,
    Stopping,
    Unauthenticated,
    Unsupported,
)
from sessiond.model.caller import Caller
from sessiond.rpc.limits import Limits
from sessiond.rpc.messages import (
    Envelope,
    MessageError,
    RequestId,
    encode_failure,
    encode_result,
    parse,
    split_batch,
)
from sessiond.rpc.method import Context, Method
from sessiond.rpc.params import cancelled_id, decode_params, take_meta

if TYPE_CHECKING:
    from sessiond.rpc.peer import Peer

S = TypeVar("S")
Reply = Callable[[bytes], object]
CANCEL = "$/cancelRequest"


class Pending:
    """A request whose handler runs in a task of its own, from its acceptance to its answer."""

    __slots__ = ("context", "key", "params", "reason", "reply", "route", "scope")

    def __init__(self, route: Route, context: Context[Any], params: Any, key: object, reply: Reply | None) -> None:
        self.route = route
        self.context = context
        self.params = params
        self.key = key
        self.reply = reply
        self.scope = trio.CancelScope()
        self.reason: SessiondError = RequestCancelled("The request was cancelled.")

    def cancel(self, reason: SessiondError | None = None) -> None:
        """End the wait; the request is answered with `reason` (-32800 unless told otherwise)."""
        if reason is not None:
            self.reason = reason
        self.scope.cancel()


class Route:
    """A method made ready: its decoder built, its kind known."""

    __slots__ = ("decode", "handle", "is_async", "method")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.handle = method.handle
        self.is_async = iscoroutinefunction(method.handle)
        self.decode = msgspec.json.Decoder(method.params).decode


class Dispatcher(Generic[S]):
    """The method table at work, one for all connections.

    `stopping` is set when the daemon drains: new requests are then refused with -32008, running ones end.
    `on_fault(what, error)` is told every exception that nobody expected; it writes the log.
    """

    def __init__(
        self,
        methods: Iterable[Method],
        services: S,
        *,
        limits: Limits,
        on_fault: Callable[[str, BaseException], None],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.methods = tuple(methods)
        self.services = services
        self.limits = limits
        self.stopping = False
        self._on_fault = on_fault
        self._now_ms = now_ms
        self._routes: dict[str, Route] = {}
        for method in self.methods:
            for name in (method.name, *method.aliases):
                if name in self._routes or name == CANCEL:
                    raise ValueError(f"two methods are named {name}")
                self._routes[name] = Route(method)

    def accept(self, peer: Peer, message: bytes) -> None:
        """Take one message (JSON text without white space around it) from `peer`; never raises.

        Handlers that do not wait have been answered when this returns.
        """
        if message.startswith(b"["):
            self._accept_batch(peer, message)
        else:
            self._accept_one(peer, message, peer.reply)

    def _accept_batch(self, peer: Peer, message: bytes) -> None:
        try:
            items = split_batch(message, self.limits.max_batch)
        except MessageError as bad:
            peer.reply(encode_failure(bad.request_id, bad.error))
            return
        batch = _Batch(len(items), peer.reply)
        for item in items:
            self._accept_one(peer, item, batch.answer, batch.nothing)

    def _accept_one(self, peer: Peer, message: bytes, reply: Reply, no_reply: Callable[[], None] | None = None) -> None:
        try:
            envelope = parse(message, self.limits.max_nesting)
        except MessageError as bad:
            reply(encode_failure(bad.request_id, bad.error))
            return
        request_id = envelope.id
        if envelope.method is UNSET:
            peer.settle(envelope)
        elif request_id is UNSET:
            # A notification is never answered, whatever comes of it.
            self._perform(peer, envelope, message, None, None)
        else:
            self._perform(peer, envelope, message, request_id, reply)
            return
        if no_reply is not None:
            no_reply()

    def _perform(
        self, peer: Peer, envelope: Envelope, message: bytes, request_id: RequestId, reply: Reply | None
    ) -> None:
        try:
            answer = self._begin(peer, envelope, message, request_id, reply)
        except SessiondError as error:
            answer = encode_failure(request_id, error)
        except Exception as error:  # noqa: BLE001
            answer = self._fault(str(envelope.method), request_id, error)
        if reply is not None and answer is not None:
            reply(answer)

    def _begin(
        self, peer: Peer, envelope: Envelope, message: bytes, request_id: RequestId, reply: Reply | None
    ) -> bytes | None:
        """The answer of a handler that does not wait; None once a task has been started for one that does."""
        name = envelope.method
        route = self._routes.get(name)  # type: ignore[arg-type]
        caller = peer.caller
        if caller.kind == "nobody" and not (route is not None and route.method.before_auth):
            raise Unauthenticated("Say who you are first: call `initialize` with a token.")
        if name == CANCEL:
            return self._cancel(peer, envelope, request_id)
        if self.stopping:
            raise Stopping("The daemon is stopping; try again when it is back.")
        if route is None:
            raise MethodNotFound(f"There is no method {str(name)[:80]!r}.")
        if reply is not None and request_id in peer.pending:
            raise InvalidRequest("A request with this id is still in flight.")
        params, meta = envelope.params, None
        if b'"_meta"' in message:
            params, meta = take_meta(params)
            caller = peer.caller_for(meta) if meta is not None else caller
        self._admit(peer, caller, route.method)
        if route.is_async and len(peer.pending) >= self.limits.max_in_flight:
            raise Overloaded(
                f"A connection has at most {self.limits.max_in_flight} requests in flight.",
                limit="limits.maxInFlight",
                value=self.limits.max_in_flight,
            )
        decoded = decode_params(route.decode, params)
        context = Context(caller=caller, peer=peer, services=self.services, request_id=request_id, params_meta=meta)
        if not route.is_async:
            return encode_result(request_id, route.handle(context, decoded))
        key = request_id if reply is not None else object()
        peer.start(Pending(route, context, decoded, key, reply), self._run)
        return None

    def _admit(self, peer: Peer, caller: Caller, method: Method) -> None:
        if caller.expires_at_ms is not None and caller.expires_at_ms <= self._now_ms() and not method.before_auth:
            raise Unauthenticated("The token has expired.")
        if method.scope is not None and not caller.has(method.scope):
            raise Forbidden(f"`{method.name}` needs the scope `{method.scope}`.")
        if method.streams and not peer.lasting:
            raise Unsupported(f"`{method.name}` needs a lasting connection: a socket or a WebSocket.")

    async def _run(self, pending: Pending) -> None:
        """The task of one request. An answer is due whatever happens, unless the connection itself is gone."""
        request_id = pending.context.request_id
        peer = pending.context.peer
        answer: bytes | None = None
        try:
            with pending.scope:
                result = await pending.route.handle(pending.context, pending.params)
                answer = encode_result(request_id, result)
            if answer is None:
                answer = encode_failure(request_id, pending.reason)
        except SessiondError as error:
            answer = encode_failure(request_id, error)
        except Exception as error:  # noqa: BLE001
            answer = self._fault(pending.route.method.name, request_id, error)
        finally:
            peer.finished(pending)
        if pending.reply is not None:
            pending.reply(answer)

    def _cancel(self, peer: Peer, envelope: Envelope, request_id: RequestId) -> bytes:
        pending = peer.pending.get(cancelled_id(envelope.params))
        if pending is not None:
            pending.cancel()
        return encode_result(request_id, None)

    def _fault(self, method: str, request_id: RequestId, error: Exception) -> bytes:
        expected = _only_leaf(error)
        if isinstance(expected, SessiondError):
            return encode_failure(request_id, expected)
        self._on_fault(method, error)
        return encode_failure(request_id, InternalError("Something went wrong inside; the daemon's log says what."))

    async def contain(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, and let no exception out of it but a cancellation: a fault is logged under the name `what`.

        For the task of a connection, so that one client never ends the server.
        """
        try:
            await work()
        except* Exception as group:  # noqa: BLE001
            self._on_fault(what, group)


class _Batch:
    """Collects the answers of a batch, in any order, and sends them as one when the last is there."""

    def __init__(self, size: int, send: Reply) -> None:
        self._missing = size
        self._answers: list[bytes] = []
        self._send = send

    def answer(self, text: bytes) -> None:
        self._answers.append(text)
        self.nothing()

    def nothing(self) -> None:
        self._missing -= 1
        if not self._missing and self._answers:
            self._send(b"[" + b",".join(self._answers) + b"]")


def _only_leaf(error: BaseException) -> BaseException:
    """What a nursery has wrapped: the single exception inside nested groups, else the group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


MetaCaller = Callable[[Mapping[str, Any]], Caller]
