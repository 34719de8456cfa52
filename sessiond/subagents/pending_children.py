"""Children that are being made just now: how many of whom, and calling them off. Knows keys; makes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from sessiond.errors import Conflict


class PendingChild:
    """A child that is being made. `scope` is for what may be given up while it is; `counted` once it is to be."""

    def __init__(self) -> None:
        self.counted = False
        self.scope = trio.CancelScope()
        self._called_off = False
        self.over = trio.Event()

    def call_off(self) -> None:
        """It is not to be made after all. One whose transcript is being written is made, and stopped then."""
        self._called_off = True
        self.scope.cancel()

    def check_made(self, made: object) -> None:
        """Conflict where nothing was made because it was called off."""
        if made is None:
            self._called_off = True
            self.check()

    def check(self) -> None:
        """Conflict where it was called off."""
        if self._called_off:
            raise Conflict("the session that asked for this sub-agent was killed meanwhile; nothing was spawned")


class PendingChildren:
    """By the key of the session that asked."""

    def __init__(self) -> None:
        self._unborn: dict[str, list[PendingChild]] = {}

    def count_of(self, requester_key: str) -> int:
        """How many are as good as running."""
        return sum(one.counted for one in self._unborn.get(requester_key, ()))

    @contextmanager
    def begin(self, requester_key: str) -> Iterator[PendingChild]:
        """While a child of this session is being made."""
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
        """Call off what is being made; when this returns each is either there, or never will be."""
        called = list(self._unborn.get(requester_key, ()))
        for one in called:
            one.call_off()
        for one in called:
            await one.over.wait()
