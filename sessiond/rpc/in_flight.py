"""What a connection knows of a request in flight: how to cancel it, and its turn where requests are accepted in order.

Does not know methods or handlers.
"""

from __future__ import annotations

from typing import Protocol

import trio

from sessiond.errors import SessiondError
from sessiond.rpc.budget import Share


class InFlight(Protocol):
    """A request whose answer is still to come.

    `key` is its id (an object of its own for a notification). `held` is the budget share of its message, where that was
    long; it is released with the answer.
    """

    key: object
    held: Share | None

    def cancel(self, reason: SessiondError | None = None) -> None:
        """End the wait; the request is answered with `reason` (-32800 unless given)."""
        ...


class OrderedTurn:
    """A request's place among those of its connection that are accepted in order."""

    __slots__ = ("_came", "_line")

    def __init__(self, line: dict[OrderedTurn, None]) -> None:
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
