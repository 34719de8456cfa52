"""The definition of a method, and the context that its handler gets. Knows no method by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import trio

from sessiond.errors import SessiondError
from sessiond.model.caller import Caller, Scope
from sessiond.rpc.batch import Batch
from sessiond.rpc.budget import ANSWER_FACTOR, Budgets, Share
from sessiond.rpc.in_flight import OrderedTurn
from sessiond.rpc.messages import RequestId
from sessiond.rpc.peer import Peer

S = TypeVar("S")


class Context(Generic[S]):
    """What a handler gets besides its params.

    Every authorization check uses `caller`; where the params had `_meta`, it may differ from `peer.caller`.
    `request_id` is None for a notification. `params_meta` is the `_meta` object of the params. `peer` is None where an
    HTTP route calls the handler of a method. `turn` is that of an `ordered` request which waits for others, or
    for which others wait. `unsent` is given by an HTTP route: it gets the share as soon as it is taken, and is released
    by the exchange, whatever becomes of the handler.
    """

    __slots__ = (
        "batch",
        "budgets",
        "caller",
        "holds_batch_lock",
        "params_meta",
        "peer",
        "request_id",
        "services",
        "share",
        "turn",
        "unsent",
    )

    def __init__(
        self,
        *,
        caller: Caller,
        peer: Peer | None,
        services: S,
        request_id: RequestId = None,
        params_meta: Mapping[str, Any] | None = None,
        budgets: Budgets | None = None,
        batch: Batch | None = None,
        turn: OrderedTurn | None = None,
        unsent: list[Share] | None = None,
    ) -> None:
        self.caller = caller
        self.peer = peer
        self.services = services
        self.request_id = request_id
        self.params_meta = params_meta
        self.turn = turn
        self.budgets = budgets
        self.batch = batch
        self.unsent = unsent
        self.share: Share | None = None
        self.holds_batch_lock = False

    def release_next(self) -> None:
        """The order of this request is settled, so the next `ordered` one may begin."""
        if self.turn is not None:
            self.turn.end()

    def require_peer(self) -> Peer:
        """The peer that sent the request, for handlers that need its connection. They are called by `dispatch` only."""
        assert self.peer is not None, "this handler was called without a connection"
        return self.peer

    async def reserve(self, answer_bytes: int) -> None:
        """Wait until memory for an answer of so many bytes is free. Handlers with large answers await it first.

        It is reserved until the client has read the answer. Raises LimitExceeded where the answers of the batch are too
        large already, Overloaded after too long a wait.
        """
        if self.budgets is None:
            return
        batch = self.batch
        if batch is not None:
            if not self.holds_batch_lock:
                await batch.large_answer_lock.acquire()
                self.holds_batch_lock = True
            if batch.is_full:
                raise batch.too_large_error()
        share = self.share if batch is None else batch.share
        if share is None:
            most = answer_bytes if batch is None else batch.max_answer_bytes(answer_bytes)
            share = await self.budgets.take(self.caller, self.peer, ANSWER_FACTOR * most)
            if batch is None:
                self.share = share
                if self.unsent is not None:
                    self.unsent.append(share)
            else:
                batch.share = share

    @property
    def is_large(self) -> bool:
        """Whether `reserve` was called, so that the answer may be large."""
        return self.share is not None or (self.batch is not None and self.batch.share is not None)

    def hold_share_until_sent(self, size: int) -> None:
        """The answer, of `size` bytes, was queued for sending: reduce the share to that until it is sent."""
        if self.share is not None and self.peer is not None:
            self.peer.reservations.hold_until_sent(self.share, size)
        self._release_batch_lock()

    def release(self, *, gone: bool) -> None:
        """Free what was reserved: there is no answer. `gone` says that the connection is gone too."""
        if self.share is not None:
            self.share.release()
        if gone and self.batch is not None and self.batch.share is not None:
            self.batch.share.release()
        self._release_batch_lock()

    def _release_batch_lock(self) -> None:
        if self.holds_batch_lock and self.batch is not None:
            self.holds_batch_lock = False
            self.batch.large_answer_lock.release()


class Later:
    """A promise of a result: whoever holds it calls `settle_with` or `fail`, once, from the event loop.

    For handlers that only wait for one event elsewhere: a task and its wake-ups would cost more than their work.
    """

    __slots__ = ("_outcome", "_settle")

    def __init__(self) -> None:
        self._outcome: tuple[object, SessiondError | None] | None = None
        self._settle: Callable[[object, SessiondError | None], None] | None = None

    def settle_with(self, result: object) -> None:
        """The request is answered with `result`."""
        self._resolve(result, None)

    def fail(self, error: SessiondError) -> None:
        """The request is answered with `error`."""
        self._resolve(None, error)

    def when_settled(self, settle: Callable[[object, SessiondError | None], None]) -> None:
        """Call `settle(result, error)` once it is settled, which may be now."""
        self._settle = settle
        if self._outcome is not None:
            settle(*self._outcome)

    async def wait(self) -> object:
        """The result; its error is raised."""
        over = trio.Event()
        self.when_settled(lambda _result, _error: over.set())
        await over.wait()
        assert self._outcome is not None
        result, error = self._outcome
        if error is not None:
            raise error
        return result

    def _resolve(self, result: object, error: SessiondError | None) -> None:
        self._outcome = (result, error)
        if self._settle is not None:
            self._settle(result, error)


@dataclass(frozen=True, slots=True)
class LongWork:
    """What a `later` handler returns instead of its `Later` if its work would block the event loop for too long.

    `perform` is awaited in a task of its own and returns the `Later`; it is always begun, even where the connection is
    closed at once. The handler has settled the order: later `ordered` requests do not wait for it. With `keeps_turn` it
    has not, and they wait until `perform` calls `ctx.release_next` or ends.
    """

    perform: Callable[[], Awaitable[Later]]
    keeps_turn: bool = False


@dataclass(frozen=True, slots=True)
class Method:
    """One entry of the method table.

    `handle(context, params)` is a plain function if it does not wait: it then runs in the read loop, at half the cost.
    An async one runs in a task, and counts as a request in flight.

    `scope` None requires no scope, but the caller must be authenticated unless `before_auth`. While a `before_auth`
    method runs, nothing else is read from its connection, because it may change the caller.
    `later` marks a plain handler that returns a `Later`, or `LongWork` that gives one: it waits like an async one,
    without the cost of a task where that is possible.
    `ordered` marks methods whose requests are accepted in the order of their arrival on a connection: a handler begins
    when each earlier one has called `ctx.release_next` or has ended.
    `streams` marks methods that need a persistent connection; `POST /rpc` refuses them. One with `before_ready` is
    answered while the daemon still loads; all others wait until it is ready.
    """

    name: str
    scope: Scope | None
    params: type[msgspec.Struct]
    result: Any
    handle: Callable[[Context[Any], Any], Any]
    summary: str
    aliases: tuple[str, ...] = ()
    before_auth: bool = False
    before_ready: bool = False
    streams: bool = False
    later: bool = False
    ordered: bool = False
