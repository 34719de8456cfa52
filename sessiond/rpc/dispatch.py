"""From a message to an answer: checks, decodes, calls, encodes. Knows the method table, no method and no socket.

The one place, beside the run supervisor, where any exception is caught: it is answered with -32603, and ends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Generic, TypeVar

import trio
from msgspec import UNSET

from sessiond.errors import (
    Forbidden,
    InternalError,
    InvalidRequest,
    MethodNotFound,
    Overloaded,
    SessiondError,
    Stopping,
    Unauthenticated,
    Unsupported,
    quote,
)
from sessiond.model.caller import Caller
from sessiond.rpc.answer_pieces import Text, encode_in_pieces, length
from sessiond.rpc.batch import Batch, Reply
from sessiond.rpc.budget import Budgets
from sessiond.rpc.limits import LONG_BYTES, Limits
from sessiond.rpc.messages import (
    Envelope,
    MessageError,
    RequestId,
    encode_failure,
    encode_result,
    parse,
    split_batch,
)
from sessiond.rpc.method import Context, Later, LongWork, Method
from sessiond.rpc.pace import Pace
from sessiond.rpc.params import cancelled_id, decode_params, take_meta
from sessiond.rpc.parsed_message import ParsedMessage, take_apart
from sessiond.rpc.peer import Peer
from sessiond.rpc.pending import Pending, PreparedMethod, Promised

S = TypeVar("S")
T = TypeVar("T")
CANCEL = "$/cancelRequest"


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
        budgets: Budgets | None = None,
    ) -> None:
        self.methods = tuple(methods)
        self.services = services
        self.limits = limits
        self.stopping = False
        self.budgets = budgets or Budgets()
        self.pace = Pace()
        self._on_fault = on_fault
        self._now_ms = now_ms
        self._routes: dict[str, PreparedMethod] = {}
        for method in self.methods:
            for name in (method.name, *method.aliases):
                if name in self._routes or name == CANCEL:
                    raise ValueError(f"two methods are named {name}")
                self._routes[name] = PreparedMethod(method)

    def accept(self, peer: Peer, message: bytes) -> None:
        """Take one message (JSON text without white space around it) from `peer`, no batch; never raises.

        Handlers that do not wait have been answered when this returns.
        """
        try:
            envelope = parse(message, self.limits.max_nesting)
        except MessageError as bad:
            if not peer.salvage(message, bad.error):
                peer.reply(encode_failure(bad.request_id, bad.error))
        else:
            self._accept(peer, ParsedMessage(envelope, b'"_meta"' in message), None)

    async def accept_slowly(self, peer: Peer, message: bytes) -> None:
        """As `accept`, for a batch and for long messages: others get their turn while it is taken apart."""
        long = len(message) >= LONG_BYTES
        if not message.startswith(b"["):
            await self._accept_item(peer, message, None, long=long)
            return
        try:
            split = partial(split_batch, message, self.limits.max_batch)
            items = await trio.to_thread.run_sync(split) if long else split()
        except MessageError as bad:
            if not peer.salvage(message, bad.error):
                peer.reply(encode_failure(bad.request_id, bad.error))
            return
        batch = Batch(len(items), peer.reply_for_batch, self.limits.max_batch_answer_bytes)
        for item in items:
            await self.pace.turn()
            await self._accept_item(peer, item, batch, long=len(item) >= LONG_BYTES)

    async def _accept_item(self, peer: Peer, message: bytes, batch: Batch | None, *, long: bool) -> None:
        try:
            apart = partial(take_apart, message, self.limits.max_nesting, self._routes)
            taken = await trio.to_thread.run_sync(apart) if long else apart()
        except MessageError as bad:
            if peer.salvage(message, bad.error):
                if batch is not None:
                    batch.item_without_answer()
                return
            (peer.reply if batch is None else batch.reply_to(bad.request_id))(encode_failure(bad.request_id, bad.error))
        else:
            self._accept(peer, taken, batch)

    def _accept(self, peer: Peer, taken: ParsedMessage, batch: Batch | None) -> None:
        envelope, request_id = taken.envelope, taken.envelope.id
        if envelope.method is UNSET:
            peer.settle(envelope)
        elif request_id is UNSET:
            # A notification is never answered, whatever comes of it.
            self._perform(peer, taken, None, None, batch)
        else:
            reply = peer.reply if batch is None else batch.reply_to(request_id)
            self._perform(peer, taken, request_id, reply, batch)
            return
        if batch is not None:
            batch.item_without_answer()

    def _perform(
        self, peer: Peer, taken: ParsedMessage, request_id: RequestId, reply: Reply | None, batch: Batch | None
    ) -> None:
        envelope = taken.envelope
        try:
            answer = self._begin(peer, taken, request_id, reply, batch)
        except SessiondError as error:
            answer = encode_failure(request_id, error)
        except Exception as error:  # noqa: BLE001
            answer = self._fault(str(envelope.method), request_id, error)
        if reply is not None and answer is not None:
            reply(answer)

    def _begin(
        self, peer: Peer, taken: ParsedMessage, request_id: RequestId, reply: Reply | None, batch: Batch | None
    ) -> bytes | None:
        """The answer of a handler that does not wait; None once a task has been started for one that does."""
        envelope = taken.envelope
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
            raise MethodNotFound(f"There is no method {quote(str(name)[:80])}.")
        if reply is not None and request_id in peer.pending:
            raise InvalidRequest("A request with this id is still in flight.")
        params, meta = envelope.params, None
        if taken.has_meta:
            params, meta = take_meta(params)
            caller = peer.caller_for(meta) if meta is not None else caller
        self._admit(peer, caller, route.method)
        if route.waits and len(peer.pending) >= self.limits.max_in_flight:
            raise Overloaded(
                f"A connection has at most {self.limits.max_in_flight} requests in flight.",
                limit="limits.maxInFlight",
                value=self.limits.max_in_flight,
            )
        decoded = decode_params(route.decode, params) if taken.params is None else taken.params
        context = Context(
            caller=caller,
            peer=peer,
            services=self.services,
            request_id=request_id,
            params_meta=meta,
            budgets=self.budgets,
            batch=batch,
        )
        key = request_id if reply is not None else object()
        work: LongWork | None = None
        # Behind a request that has no place yet even a handler that does not wait has to.
        if not route.is_async and not (route.method.ordered and peer.has_line):
            outcome = route.handle(context, decoded)
            if not route.waits:
                return encode_result(request_id, outcome)
            if isinstance(outcome, Later):
                self._promise(peer, outcome, request_id, key, reply)
                return None
            work = outcome
        pending = Pending(route, context, decoded, key, reply)
        pending.work = work
        if route.method.ordered:
            pending.turn = peer.join_line()
            context.in_line = pending.turn.pass_on
        peer.start(pending, self._run, before_auth=route.method.before_auth)
        return None

    def _promise(self, peer: Peer, later: Later, request_id: RequestId, key: object, reply: Reply | None) -> None:
        """Answer when the result is brought, or when the wait is cancelled, whichever is first."""

        def answer(value: object, error: SessiondError | None) -> None:
            peer.request_finished(promised)
            if reply is not None:
                reply(encode_result(request_id, value) if error is None else encode_failure(request_id, error))

        promised = Promised(key, answer)
        peer.add(promised)
        later.when_settled(promised.settle)

    def _admit(self, peer: Peer, caller: Caller, method: Method) -> None:
        # A call for a run (`_meta`) is no longer good than the connection that it came on.
        for one in (peer.caller, caller):
            if one.expires_at_ms is not None and one.expires_at_ms <= self._now_ms() and not method.before_auth:
                raise Unauthenticated("The token has expired.")
        if method.scope is not None and not caller.has(method.scope):
            raise Forbidden(f"`{method.name}` needs the scope `{method.scope}`.")
        if method.streams and not peer.lasting:
            raise Unsupported(f"`{method.name}` needs a lasting connection: a socket or a WebSocket.")

    async def _run(self, pending: Pending) -> None:
        """The task of one request. An answer is due whatever happens, unless the connection itself is gone."""
        context, reply, request_id = pending.context, pending.reply, pending.context.request_id
        answer: bytes | Text | None = None
        try:
            with pending.scope:
                if context.caller.kind != "owner":
                    await self.pace.turn()
                if pending.turn is not None:
                    await pending.turn.wait()
                result = await pending.result()
                if context.is_large:
                    turn = trio.lowlevel.checkpoint if context.caller.kind == "owner" else self.pace.turn
                    answer = await encode_in_pieces(request_id, result, turn)
                else:
                    answer = encode_result(request_id, result)
            if answer is None:
                answer = encode_failure(request_id, pending.reason)
        except SessiondError as error:
            answer = encode_failure(request_id, error)
        except Exception as error:  # noqa: BLE001
            answer = self._fault(pending.route.method.name, request_id, error)
        finally:
            if pending.turn is not None:
                pending.turn.pass_on()
            context.peer.request_finished(pending)
            if answer is None or reply is None:
                context.release(gone=answer is None)
        if reply is not None:
            reply(answer)
            context.answer_queued(length(answer))

    def _cancel(self, peer: Peer, envelope: Envelope, request_id: RequestId) -> bytes:
        pending = peer.pending.get(cancelled_id(envelope.params))
        if pending is not None:
            pending.cancel()
        return encode_result(request_id, None)

    def _fault(self, what: str, request_id: RequestId, error: Exception) -> bytes:
        return encode_failure(request_id, self._error_for_client(what, error))

    def _error_for_client(self, what: str, error: Exception) -> SessiondError:
        """What the client is told of an exception; one that nobody expected is logged."""
        expected = _only_leaf(error)
        if isinstance(expected, SessiondError):
            return expected
        self._on_fault(what, error)
        return InternalError("Something went wrong inside; the daemon's log says what.")

    async def run_guarded(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, which raises nothing but a SessiondError: a fault is logged and is an InternalError.

        For the handlers of routes, which have no message to answer.
        """
        try:
            return await work()
        except Exception as error:
            raise self._error_for_client(what, error) from error

    async def contain(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, and let no exception out of it but a cancellation: a fault is logged under the name `what`.

        For the task of a connection, so that one client never ends the server.
        """
        try:
            await work()
        except* Exception as group:  # noqa: BLE001
            self._on_fault(what, group)


def _only_leaf(error: BaseException) -> BaseException:
    """What a nursery has wrapped: the single exception inside nested groups, else the group."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
