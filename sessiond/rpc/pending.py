"""What dispatch keeps while it works: a method with its decoder, and a request in flight.

Does not decide which requests are accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import trio

from sessiond.errors import RequestCancelled, SessiondError
from sessiond.rpc.batch import Reply
from sessiond.rpc.bounds import ParamsDecoder
from sessiond.rpc.budget import Share
from sessiond.rpc.in_flight import OrderedTurn
from sessiond.rpc.method import Context, LongWork, Method


class PreparedMethod:
    """A method with its params decoder, which is built at its first call, and whether its handler waits."""

    decoder: ParamsDecoder
    __slots__ = ("decoder", "handle", "is_async", "method", "waits")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.handle = method.handle
        self.is_async = iscoroutinefunction(method.handle)
        self.waits = self.is_async or method.later

    def __getattr__(self, name: str) -> Any:
        # Only called while the slot is empty. Building all decoders takes about 30 ms, which the start does not need.
        if name != "decoder":
            raise AttributeError(name)
        self.decoder = ParamsDecoder(self.method.params)
        return self.decoder


class PendingRequest:
    """A request whose handler runs in a task of its own.

    `held` is the budget share of its message, where that was long; `work` is what is left to do for a handler that was
    called already. `turn` is its turn among the requests of its connection, if it has to wait for one.
    """

    __slots__ = ("context", "held", "key", "params", "reason", "reply", "route", "scope", "turn", "work")

    def __init__(
        self, route: PreparedMethod, context: Context[Any], params: Any, key: object, reply: Reply | None
    ) -> None:
        self.route = route
        self.context = context
        self.params = params
        self.key = key
        self.reply = reply
        self.held: Share | None = None
        self.work: LongWork | None = None
        self.scope = trio.CancelScope()
        self.reason: SessiondError = RequestCancelled("The request was cancelled.")
        self.turn: OrderedTurn | None = None

    async def result(self) -> Any:
        """Do what the request asks for, or what is left of it."""
        route, context = self.route, self.context
        if route.is_async:
            return await route.handle(context, self.params)
        outcome = self.work or route.handle(context, self.params)
        if self.turn is not None and not (isinstance(outcome, LongWork) and outcome.keeps_turn):
            self.turn.end()
        if not route.waits:
            return outcome
        later = await outcome.perform() if isinstance(outcome, LongWork) else outcome
        return await later.wait()

    def cancel(self, reason: SessiondError | None = None) -> None:
        """End the wait; the request is answered with `reason` (-32800 unless given)."""
        if reason is not None:
            self.reason = reason
        self.scope.cancel()


class PromisedRequest:
    """A request whose handler returned a `Later`: in flight without a task, answered once."""

    __slots__ = ("_answer", "held", "key")

    def __init__(self, key: object, answer: Callable[[object, SessiondError | None], None]) -> None:
        self.key = key
        self.held: Share | None = None
        self._answer: Callable[[object, SessiondError | None], None] | None = answer

    def settle(self, value: object, error: SessiondError | None) -> None:
        """Answer with the result or the error; ignored after a cancellation."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(value, error)

    def cancel(self, reason: SessiondError | None = None) -> None:
        """As `PendingRequest.cancel`."""
        self.settle(None, reason or RequestCancelled("The request was cancelled."))
