"""What a method is, and what its handler is given. Knows no method by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import trio

from sessiond.errors import SessiondError
from sessiond.model.caller import Caller, Scope
from sessiond.rpc.batch import Batch
from sessiond.rpc.budget import MAKING, Budgets, Share
from sessiond.rpc.messages import RequestId
from sessiond.rpc.peer import Peer

S = TypeVar("S")


class Context(Generic[S]):
    """What a handler is given beside its params.

    `caller` is whom every check is made against; where a request carried `_meta`, it may differ from `peer.caller`.
    `request_id` is None for a notification too. `params_meta` is the `_meta` object of the params.
    """

    __slots__ = (
        "batch",
        "budgets",
        "caller",
        "has_turn",
        "in_line",
        "params_meta",
        "peer",
        "request_id",
        "services",
        "share",
    )

    def __init__(
        self,
        *,
        caller: Caller,
        peer: Peer,
        services: S,
        request_id: RequestId = None,
        params_meta: Mapping[str, Any] | None = None,
        budgets: Budgets | None = None,
        batch: Batch | None = None,
    ) -> None:
        self.caller = caller
        self.peer = peer
        self.services = services
        self.request_id = request_id
        self.params_meta = params_meta
        # For handlers of `ordered` methods: call it once the request has its place, and later ones may follow.
        self.in_line: Callable[[], None] = _do_nothing
        self.budgets = budgets
        self.batch = batch
        self.share: Share | None = None
        self.has_turn = False

    async def reserve(self, answer_bytes: int) -> None:
        """Wait until an answer of so many bytes may be made. For handlers whose answers can be large, before the work.

        What is reserved lasts until the client has taken the answer. LimitExceeded where the answers of a batch are too
        large already, Overloaded after too long a wait.
        """
        if self.budgets is None:
            return
        batch = self.batch
        if batch is not None:
            if not self.has_turn:
                await batch.turn.acquire()
                self.has_turn = True
            if batch.is_full:
                raise batch.too_large()
        held = self.share if batch is None else batch.share
        if held is None:
            most = answer_bytes if batch is None else batch.most_bytes(answer_bytes)
            held = await self.budgets.take(self.caller, self.peer, MAKING * most)
            if batch is None:
                self.share = held
            else:
                batch.share = held

    @property
    def is_large(self) -> bool:
        """Whether the answer may be a large one."""
        return self.share is not None or (self.batch is not None and self.batch.share is not None)

    def answer_queued(self, size: int) -> None:
        """The answer of so many bytes is on its way."""
        if self.share is not None:
            self.peer.reserved.answer_queued(self.share, size)
        self._pass_turn_on()

    def release(self, *, gone: bool) -> None:
        """There is no answer, and what was reserved for it is free. `gone`: nor is there anybody to answer."""
        if self.share is not None:
            self.share.release()
        if gone and self.batch is not None and self.batch.share is not None:
            self.batch.share.release()
        self._pass_turn_on()

    def _pass_turn_on(self) -> None:
        if self.has_turn and self.batch is not None:
            self.has_turn = False
            self.batch.turn.release()


def _do_nothing() -> None:
    pass


class Later:
    """A result that somebody else will bring: whoever holds it calls `bring` or `fail`, once, from the loop.

    For handlers whose whole wait is for one event elsewhere: a task and its wake-ups would cost more than their work.
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
        """Call `settle(result, error)` with what comes; at once where it has come."""
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
    """What a `later` handler gives in the place of its `Later` where its work is too long for one step of the loop.

    `perform` is awaited in a task of the request's own, which keeps its place in line, and gives the Later.
    """

    perform: Callable[[], Awaitable[Later]]


@dataclass(frozen=True, slots=True)
class Method:
    """One entry of the method table.

    `handle(context, params)` is a plain function where it does not wait: it is then answered in the read loop, at half
    the cost. An async one gets a task, and counts as a request in flight.

    `scope` None asks for no scope, but still for a caller who is somebody, unless `before_auth`. While a method of
    `before_auth` runs, nothing else of its connection is read: what follows is judged by what it made of the caller.
    `later` marks a plain handler that gives a `Later`, or `LongWork` that gives one: it waits like an async one, and
    without the cost of a task where it can.
    `ordered` marks what is accepted in the order in which it came on its connection: a handler begins when those before
    it have called `ctx.in_line`, or have ended.
    `streams` marks what needs a lasting connection; `POST /rpc` refuses it.
    """

    name: str
    scope: Scope | None
    params: type[msgspec.Struct]
    result: Any
    handle: Callable[[Context[Any], Any], Any]
    summary: str
    aliases: tuple[str, ...] = ()
    before_auth: bool = False
    streams: bool = False
    later: bool = False
    ordered: bool = False
