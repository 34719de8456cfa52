"""What dispatch keeps while it works: a method made ready, a request in flight, a batch half answered.

Knows nothing of how either is decided.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import msgspec
import trio

from sessiond.errors import RequestCancelled, SessiondError
from sessiond.rpc.method import Context, Method

Reply = Callable[[bytes], object]


class Route:
    """A method made ready: its decoder built, its kind known."""

    __slots__ = ("decode", "handle", "is_async", "method", "waits")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.handle = method.handle
        self.is_async = iscoroutinefunction(method.handle)
        self.waits = self.is_async or method.later
        self.decode = msgspec.json.Decoder(method.params).decode


class Pending:
    """A request whose handler runs in a task of its own, from its acceptance to its answer."""

    __slots__ = ("context", "key", "params", "reason", "reply", "route", "scope", "turn")

    def __init__(self, route: Route, context: Context[Any], params: Any, key: object, reply: Reply | None) -> None:
        self.route = route
        self.context = context
        self.params = params
        self.key = key
        self.reply = reply
        self.scope = trio.CancelScope()
        self.reason: SessiondError = RequestCancelled("The request was cancelled.")
        self.turn: Turn | None = None

    def cancel(self, reason: SessiondError | None = None) -> None:
        """End the wait; the request is answered with `reason` (-32800 unless told otherwise)."""
        if reason is not None:
            self.reason = reason
        self.scope.cancel()


class Turn:
    """A request's place among those of its connection that are accepted in order."""

    __slots__ = ("_came", "_line")

    def __init__(self, line: dict[Turn, None]) -> None:
        self._line = line
        self._came = trio.Event()
        line[self] = None
        if next(iter(line)) is self:
            self._came.set()

    async def wait(self) -> None:
        """Return when all that came before are in line. Where there are none, at once."""
        if not self._came.is_set():
            await self._came.wait()

    def pass_on(self) -> None:
        """The request is in line, or never will be: the next one may follow. Again is nothing."""
        self._line.pop(self, None)
        following = next(iter(self._line), None)
        if following is not None:
            following._came.set()


class Promised:
    """A request whose handler gave a `Later`: in flight without a task, answered once."""

    __slots__ = ("_answer", "key")

    def __init__(self, key: object, answer: Callable[[object, SessiondError | None], None]) -> None:
        self.key = key
        self._answer: Callable[[object, SessiondError | None], None] | None = answer

    def settle(self, value: object, error: SessiondError | None) -> None:
        """The result, or why there is none. What comes after a cancellation counts for nothing."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(value, error)

    def cancel(self, reason: SessiondError | None = None) -> None:
        """As `Pending.cancel`."""
        self.settle(None, reason or RequestCancelled("The request was cancelled."))


class Batch:
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
