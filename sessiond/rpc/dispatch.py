"""From a message to its answer: check, decode, call the handler, encode. Knows the method table, no method, no socket.

Beside `runs/executor.py` the only place that catches every exception: the request is answered with -32603.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

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
    lacks_memory,
    no_memory,
    quote,
)
from sessiond.model.caller import Caller
from sessiond.rpc.answer_pieces import AnswerText, encode_in_pieces, json_length
from sessiond.rpc.batch import Batch, Reply
from sessiond.rpc.budget import Budgets
from sessiond.rpc.limits import LONG_BYTES, Limits
from sessiond.rpc.messages import (
    Envelope,
    MessageError,
    RequestId,
    encode_failure,
    encode_result,
    find_id,
    parse,
    split_batch,
)
from sessiond.rpc.method import Context, Later, LongWork, Method
from sessiond.rpc.pace import Pace
from sessiond.rpc.params import cancelled_id, decode_params, read_meta
from sessiond.rpc.parsed_message import ParsedMessage, parse_message
from sessiond.rpc.peer import Peer
from sessiond.rpc.pending import PendingRequest, PreparedMethod, PromisedRequest
from sessiond.rpc.readiness import Readiness
from sessiond.tasks import run_in_thread

S = TypeVar("S")
T = TypeVar("T")
CANCEL = "$/cancelRequest"


class Dispatcher(Generic[S]):
    """Calls the handlers of a method table; one dispatcher for all connections.

    After `stop`, when the daemon shuts down, new requests are refused with -32008, running ones finish. Until `ready`
    is set, only methods with `before_ready` are answered; the other requests wait, and then begin in their order.
    `on_fault(what, error)` is called with every unexpected exception, and logs it; also with a shortage of memory or
    threads that no handler expected, which the client is told as Overloaded.
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
        ready: trio.Event | None = None,
    ) -> None:
        self.methods = tuple(methods)
        self.services = services
        self.limits = limits
        self.stopping = False
        self._readiness = Readiness(ready)
        self.budgets = budgets or Budgets()
        self.pace = Pace()
        # Runs what takes long in a worker thread; OSError where there is none.
        self.run_in_thread: Callable[..., Awaitable[Any]] = run_in_thread
        self._on_fault = on_fault
        self._now_ms = now_ms
        self._routes: dict[str, PreparedMethod] = {}
        for method in self.methods:
            for name in (method.name, *method.aliases):
                if name in self._routes or name == CANCEL:
                    raise ValueError(f"two methods are named {name}")
                self._routes[name] = PreparedMethod(method)

    def stop(self) -> None:
        """Refuse all further requests, and those that wait until the daemon is ready, which it will not be."""
        self.stopping = True
        self._readiness.cancel_all(_stopping_error())

    def accept(self, peer: Peer, message: bytes) -> None:
        """Handle one message of `peer` (JSON text without surrounding white space) that is no batch; never raises.

        When it returns, requests of handlers that do not wait have been answered.
        """
        try:
            envelope = parse(message, self.limits.max_nesting)
        except MessageError as bad:
            if not peer.salvage(message, bad.error):
                peer.reply(encode_failure(bad.request_id, bad.error))
        else:
            self._accept(peer, ParsedMessage(envelope, b'"_meta"' in message), None)

    async def accept_slowly(self, peer: Peer, message: bytes) -> None:
        """As `accept`, for batches and long messages: long ones are parsed in a worker thread, items take turns."""
        long = len(message) >= LONG_BYTES
        if not message.startswith(b"["):
            await self._accept_item(peer, message, None, long=long)
            return
        try:
            split = partial(split_batch, message, self.limits.max_batch)
            items = await self.run_in_thread(split) if long else split()
        except MessageError as bad:
            if not peer.salvage(message, bad.error):
                peer.reply(encode_failure(bad.request_id, bad.error))
            return
        except OSError as error:  # no thread or memory to read it in
            peer.reply(encode_failure(None, no_memory(error)))
            return
        batch = Batch(len(items), peer.reply_for_batch, self.limits.max_batch_answer_bytes)
        try:
            for item in items:
                await self.pace.turn()
                await self._accept_item(peer, item, batch, long=len(item) >= LONG_BYTES)
        except BaseException:
            batch.abandon()
            raise

    async def _accept_item(self, peer: Peer, message: bytes, batch: Batch | None, *, long: bool) -> None:
        try:
            apart = partial(parse_message, message, self.limits.max_nesting, self._routes)
            parsed = await self.run_in_thread(apart) if long else apart()
        except MessageError as bad:
            self._refuse(peer, message, batch, bad.request_id, bad.error)
        except OSError as error:  # no thread or memory to parse it in
            self._refuse(peer, message, batch, find_id(message), no_memory(error))
        else:
            self._accept(peer, parsed, batch)

    def _refuse(
        self, peer: Peer, message: bytes, batch: Batch | None, request_id: RequestId, error: SessiondError
    ) -> None:
        """Answer what could not be read; where it was itself an answer, end the wait for it."""
        if peer.salvage(message, error):
            if batch is not None:
                batch.skip_answer()
            return
        (peer.reply if batch is None else batch.reply_to(request_id))(encode_failure(request_id, error))

    def _accept(self, peer: Peer, parsed: ParsedMessage, batch: Batch | None) -> None:
        envelope, request_id = parsed.envelope, parsed.envelope.id
        if envelope.method is UNSET:
            peer.settle(envelope)
        elif request_id is UNSET:
            # A notification is never answered, not even with an error.
            self._perform(peer, parsed, None, None, batch)
        else:
            reply = peer.reply if batch is None else batch.reply_to(request_id)
            self._perform(peer, parsed, request_id, reply, batch)
            return
        if batch is not None:
            batch.skip_answer()

    def _perform(
        self, peer: Peer, parsed: ParsedMessage, request_id: RequestId, reply: Reply | None, batch: Batch | None
    ) -> None:
        envelope = parsed.envelope
        try:
            answer = self._begin_request(peer, parsed, request_id, reply, batch)
        except SessiondError as error:
            answer = encode_failure(request_id, error)
        except Exception as error:  # noqa: BLE001
            answer = self._fault_answer(str(envelope.method), request_id, error)
        if reply is not None and answer is not None:
            reply(answer)

    def _begin_request(
        self, peer: Peer, parsed: ParsedMessage, request_id: RequestId, reply: Reply | None, batch: Batch | None
    ) -> bytes | None:
        """The answer of a handler that does not wait; None where the answer comes later, from a task or a `Later`."""
        envelope = parsed.envelope
        name = envelope.method
        route = self._routes.get(name)  # type: ignore[arg-type]
        caller = peer.caller
        if caller.kind == "nobody" and not (route is not None and route.method.before_auth):
            raise Unauthenticated("Say who you are first: call `initialize` with a token.")
        if name == CANCEL:
            return self._cancel(peer, envelope, request_id)
        if self.stopping:
            raise _stopping_error()
        if route is None:
            raise MethodNotFound(f"There is no method {quote(str(name)[:80])}.")
        if reply is not None and request_id in peer.pending:
            raise InvalidRequest("A request with this id is still in flight.")
        meta = read_meta(envelope.params) if parsed.meta is UNSET else parsed.meta
        if meta is not None:
            caller = peer.caller_for(meta)
        self._admit(peer, caller, route.method)
        must_wait = self._readiness.ready is not None and self._readiness.must_wait(peer, route.method)
        if route.waits or must_wait:
            self._check_in_flight(peer)
        decoded = parsed.params
        if decoded is None:
            decoded = decode_params(route.decoder, envelope.params, has_meta=parsed.has_meta)
        ordered = route.method.ordered or must_wait
        # A request whose turn has not come needs a task to wait in, even if its handler does not wait.
        at_once = not (route.is_async or must_wait or (ordered and peer.has_open_turns))
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
        if at_once:
            outcome = route.handle(context, decoded)
            if not route.waits:
                return encode_result(request_id, outcome)
            if isinstance(outcome, Later):
                self._promise(peer, outcome, request_id, key, reply)
                return None
            work = outcome
        pending = PendingRequest(route, context, decoded, key, reply)
        pending.work = work
        self._start(peer, pending, ordered=ordered, must_wait=must_wait)
        return None

    def _start(self, peer: Peer, pending: PendingRequest, *, ordered: bool, must_wait: bool) -> None:
        """Run a request in a task. If it cannot be started, for want of memory, no later request waits for it."""
        turn = peer.take_turn() if ordered else None
        try:
            pending.turn = pending.context.turn = turn
            if must_wait:
                self._readiness.waiting[pending] = None
            peer.start(pending, self._run, before_auth=pending.route.method.before_auth)
        except BaseException:
            self._readiness.waiting.pop(pending, None)
            if turn is not None:
                turn.end()
            raise

    def _check_in_flight(self, peer: Peer) -> None:
        if len(peer.pending) >= self.limits.max_in_flight:
            raise Overloaded(
                f"A connection has at most {self.limits.max_in_flight} requests in flight.",
                limit="limits.maxInFlight",
                value=self.limits.max_in_flight,
            )

    async def _wait_to_begin(self, pending: PendingRequest) -> None:
        """Wait for the daemon to be ready, for earlier requests of the connection, then for a turn of the loop.

        That turn comes last, or all that waited for one event would begin in one. Who waited is admitted again.
        """
        context = pending.context
        waits = await self._readiness.wait(pending)
        if pending.turn is not None:
            await pending.turn.wait()
        if context.caller.kind != "owner" and pending.work is None:
            await self.pace.turn()
        if not waits:
            return
        del self._readiness.waiting[pending]
        if pending.turn is not None and not pending.route.method.ordered:
            pending.turn.end()  # the next one begins in another turn of the loop, so after this one
        # Meanwhile its token may have expired, or the run of its `_meta` have ended.
        peer = context.require_peer()
        if context.params_meta is not None:
            context.caller = peer.caller_for(context.params_meta)
        self._admit(peer, context.caller, pending.route.method)

    def _promise(self, peer: Peer, later: Later, request_id: RequestId, key: object, reply: Reply | None) -> None:
        """Answer when `later` is settled, or when the request is cancelled, whichever is first."""

        def answer(value: object, error: SessiondError | None) -> None:
            peer.request_finished(promised)
            if reply is not None:
                reply(encode_result(request_id, value) if error is None else encode_failure(request_id, error))

        promised = PromisedRequest(key, answer)
        peer.add(promised)
        later.when_settled(promised.settle)

    def _admit(self, peer: Peer, caller: Caller, method: Method) -> None:
        # A call on behalf of a run (`_meta`) is valid no longer than the token of its connection.
        for one in (peer.caller, caller):
            if one.expires_at_ms is not None and one.expires_at_ms <= self._now_ms() and not method.before_auth:
                raise Unauthenticated("The token has expired.")
        if method.scope is not None and not caller.has(method.scope):
            raise Forbidden(f"`{method.name}` needs the scope `{method.scope}`.")
        if method.streams and not peer.persistent:
            raise Unsupported(f"`{method.name}` needs a lasting connection: a socket or a WebSocket.")

    async def _run(self, pending: PendingRequest) -> None:
        """The task of one request. It is answered whatever happens, unless the connection itself was closed."""
        context, reply, request_id = pending.context, pending.reply, pending.context.request_id
        answer: bytes | AnswerText | None = None
        try:
            with pending.scope:
                await self._wait_to_begin(pending)
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
            answer = self._fault_answer(pending.route.method.name, request_id, error)
        finally:
            self._readiness.waiting.pop(pending, None)
            if pending.turn is not None:
                pending.turn.end()
            context.require_peer().request_finished(pending)
            if answer is None or reply is None:
                context.release(gone=answer is None)
        if reply is not None:
            reply(answer)
            context.hold_share_until_sent(json_length(answer))

    def _cancel(self, peer: Peer, envelope: Envelope, request_id: RequestId) -> bytes:
        pending = peer.pending.get(cancelled_id(envelope.params))
        if pending is not None:
            pending.cancel()
        return encode_result(request_id, None)

    def _fault_answer(self, what: str, request_id: RequestId, error: Exception) -> bytes:
        return encode_failure(request_id, self._error_for_client(what, error))

    def _error_for_client(self, what: str, error: Exception) -> SessiondError:
        """The error that the client gets for an exception; an unexpected one is logged and answered as internal."""
        expected = _unwrap_groups(error)
        if isinstance(expected, SessiondError):
            return expected
        if lacks_memory(expected):
            self._on_fault(what, expected)
            return no_memory(expected)
        self._on_fault(what, error)
        return InternalError("Something went wrong inside; the daemon's log says what.")

    async def run_guarded(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`. Any exception is raised as a SessiondError; an unexpected one is logged first.

        For handlers of HTTP routes, which answer no JSON-RPC message.
        """
        try:
            return await work()
        except Exception as error:
            raise self._error_for_client(what, error) from error

    async def run_contained(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`; an exception is logged under the name `what` and not raised, except cancellation.

        For the task of a connection: one client must not end the server.
        """
        try:
            await work()
        except* Exception as group:  # noqa: BLE001
            self._on_fault(what, _unwrap_groups(group))


def _stopping_error() -> Stopping:
    return Stopping("The daemon is stopping; try again when it is back.")


def _unwrap_groups(error: BaseException) -> BaseException:
    """The single exception inside nested exception groups, as nurseries wrap it; else the group itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
