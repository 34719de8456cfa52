"""What dispatch keeps while it works: a method made ready, a request in flight, a batch half answered.

Knows nothing of how either is decided.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

import msgspec
import trio

from sessiond.errors import LimitExceeded, RequestCancelled, SessiondError
from sessiond.rpc.answer_pieces import Answer, Text, length
from sessiond.rpc.budget import Share
from sessiond.rpc.messages import RequestId, encode_failure
from sessiond.rpc.method import Context, Method

Reply = Callable[[bytes | Text], object]
# An error has about so much: where not even that were sent, somebody would wait for ever.
_ALWAYS_FITS_BYTES = 1024


class PreparedMethod:
    """A method made ready: its decoder built, its kind known."""

    __slots__ = ("decode", "handle", "is_async", "method", "waits")

    def __init__(self, method: Method) -> None:
        self.method = method
        self.handle = method.handle
        self.is_async = iscoroutinefunction(method.handle)
        self.waits = self.is_async or method.later
        self.decode = msgspec.json.Decoder(method.params).decode


class Pending:
    """A request whose handler runs in a task of its own, from its acceptance to its answer.

    `held` is what its message has of the budget, where it was a long one.
    """

    __slots__ = ("context", "held", "key", "params", "reason", "reply", "route", "scope", "turn")

    def __init__(
        self, route: PreparedMethod, context: Context[Any], params: Any, key: object, reply: Reply | None
    ) -> None:
        self.route = route
        self.context = context
        self.params = params
        self.key = key
        self.reply = reply
        self.held: Share | None = None
        self.scope = trio.CancelScope()
        self.reason: SessiondError = RequestCancelled("The request was cancelled.")
        self.turn: LinePlace | None = None

    def cancel(self, reason: SessiondError | None = None) -> None:
        """End the wait; the request is answered with `reason` (-32800 unless told otherwise)."""
        if reason is not None:
            self.reason = reason
        self.scope.cancel()


class LinePlace:
    """A request's place among those of its connection that are accepted in order."""

    __slots__ = ("_came", "_line")

    def __init__(self, line: dict[LinePlace, None]) -> None:
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

    __slots__ = ("_answer", "held", "key")

    def __init__(self, key: object, answer: Callable[[object, SessiondError | None], None]) -> None:
        self.key = key
        self.held: Share | None = None
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
    """Collects the answers of a batch, in any order, and sends them as one when the last is there.

    They have at most `max_bytes` together: what does not fit is answered with an error, and `is_full` is set. `turn` is
    for members whose answers are large: one at a time. `share` is what they have of the budget.
    """

    def __init__(self, size: int, send: Callable[[Answer, Share | None], object], max_bytes: int) -> None:
        self.turn = trio.Lock()
        self.share: Share | None = None
        self.is_full = False
        self._size = self._missing = size
        self._answers: list[bytes | Text] = []
        self._send = send
        self._max_bytes = max_bytes
        self._bytes = 0

    def reply_to(self, request_id: RequestId) -> Reply:
        """How the member with this id is answered."""

        def reply(text: bytes | Text) -> None:
            size = length(text)
            if self._bytes + size > self._max_bytes and size > _ALWAYS_FITS_BYTES:
                self.is_full = True
                text = encode_failure(request_id, self.too_large())
            self._bytes += length(text)
            self._answers.append(text)
            self.item_without_answer()

        return reply

    def most_bytes(self, answer_bytes: int) -> int:
        """How much the answers can be together, where one has so many bytes."""
        return min(answer_bytes * self._size, self._max_bytes)

    def too_large(self) -> LimitExceeded:
        """The error for what does not fit any more."""
        return LimitExceeded(
            f"The answers of a batch have at most {self._max_bytes} bytes together; ask for this one alone.",
            limit="batchAnswers",
            value=self._max_bytes,
        )

    def item_without_answer(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._send(self._answers, self.share)
