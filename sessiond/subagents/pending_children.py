"""Children that are being created: how many each session has, and how to cancel them. Creates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from sessiond.errors import Conflict


class PendingChild:
    """A child that is being created. `counted`: it passed the checks and counts as running."""

    def __init__(self) -> None:
        self.counted = False
        self.scope = trio.CancelScope()
        self._called_off = False
        self.over = trio.Event()

    def call_off(self) -> None:
        """Cancel its creation. If its transcript is already being written it is created, and its run stopped then."""
        self._called_off = True
        self.scope.cancel()

    def check_made(self, made: object) -> None:
        """Raise Conflict if no child was created because its creation was cancelled."""
        if made is None:
            self._called_off = True
            self.check()

    def check(self) -> None:
        """Raise Conflict if its creation was cancelled."""
        if self._called_off:
            raise Conflict("the session that asked for this sub-agent was killed meanwhile; nothing was spawned")


class PendingChildren:
    """The children being created, by the key of the requester."""

    def __init__(self) -> None:
        self._unborn: dict[str, list[PendingChild]] = {}

    def count_of(self, requester_key: str) -> int:
        """How many children of this requester are being created and count as running."""
        return sum(one.counted for one in self._unborn.get(requester_key, ()))

    @contextmanager
    def begin(self, requester_key: str) -> Iterator[PendingChild]:
        """Register a child of this requester for as long as the context lasts."""
        unborn = PendingChild()
        siblings = self._unborn.setdefault(requester_key, [])
        siblings.append(unborn)
        try:
            yield unborn
        finally:
            siblings.remove(unborn)
            if not siblings:
                self._unborn.pop(requester_key, None)
            unborn.over.set()

    async def call_off(self, requester_key: str) -> None:
        """Cancel all children of this requester that are being created; returns when each exists or never will."""
        called = list(self._unborn.get(requester_key, ()))
        for one in called:
            one.call_off()
        for one in called:
            await one.over.wait()
