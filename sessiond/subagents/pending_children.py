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
        self._is_cancelled = False
        self.finished = trio.Event()

    def cancel(self) -> None:
        """Cancel its creation. If its transcript is already being written it is created, and its run stopped then."""
        self._is_cancelled = True
        self.scope.cancel()

    def check_created(self, made: object) -> None:
        """Raise Conflict if no child was created because its creation was cancelled."""
        if made is None:
            self._is_cancelled = True
            self.check()

    def check(self) -> None:
        """Raise Conflict if its creation was cancelled."""
        if self._is_cancelled:
            raise Conflict("the session that asked for this sub-agent was killed meanwhile; nothing was spawned")


class PendingChildren:
    """The children being created, by the key of the requester."""

    def __init__(self) -> None:
        self._pending: dict[str, list[PendingChild]] = {}

    def count_of(self, requester_key: str) -> int:
        """How many children of this requester are being created and count as running."""
        return sum(one.counted for one in self._pending.get(requester_key, ()))

    @contextmanager
    def begin(self, requester_key: str) -> Iterator[PendingChild]:
        """Register a child of this requester for as long as the context lasts."""
        pending = PendingChild()
        siblings = self._pending.setdefault(requester_key, [])
        siblings.append(pending)
        try:
            yield pending
        finally:
            siblings.remove(pending)
            if not siblings:
                self._pending.pop(requester_key, None)
            pending.finished.set()

    async def cancel(self, requester_key: str) -> None:
        """Cancel all children of this requester that are being created; returns when each exists or never will."""
        called = list(self._pending.get(requester_key, ()))
        for one in called:
            one.cancel()
        for one in called:
            await one.finished.wait()
