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

    __slots__ = ("decode", "handle", "is_async", "method")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.handle = method.handle
        self.is_async = iscoroutinefunction(method.handle)
        self.decode = msgspec.json.Decoder(method.params).decode


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
