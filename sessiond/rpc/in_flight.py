"""A request in flight as its connection sees it: cancellable, with a turn if it must be accepted in order.

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
    """A request's turn among those requests of its connection that must be accepted in the order of their arrival."""

    __slots__ = ("_begun", "_turns")

    def __init__(self, line: dict[OrderedTurn, None]) -> None:
        self._turns = line
        self._begun = trio.Event()
        line[self] = None
        if next(iter(line)) is self:
            self._begun.set()

    async def wait(self) -> None:
        """Wait until every earlier request has ended its turn."""
        if not self._begun.is_set():
            await self._begun.wait()

    def end(self) -> None:
        """Let the next request begin: this one was accepted, or refused. May be called more than once."""
        self._turns.pop(self, None)
        following = next(iter(self._turns), None)
        if following is not None:
            following._begun.set()
