"""How much memory large messages may take, while they are received, made or still unread: per holder and in all.

Knows numbers of bytes and who waits for them. Does not know messages or connections.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import Literal

import trio

from sessiond.errors import Overloaded
from sessiond.model.caller import Caller

MIB = 1024 * 1024
# An answer of 16 MiB takes 48 MiB while it is made: the lines read, the masked messages, and the masking's own copies.
# Its JSON text refers to these messages without a copy.
ANSWER_FACTOR = 3
# A message of 16 MiB takes 48 MiB while it is received: the chunks, the joined text, the decoded values.
MESSAGE_FACTOR = 3
# Longer than any answer takes to be made. Whoever waits longer gets Overloaded instead of no answer at all.
PATIENCE_S = 30.0


# Why the daemon closed a connection: too many connections; its place was given to one that sent a message; it sent
# nothing in time; it read nothing of a large answer; its token was revoked or has expired.
Cause = Literal["turned_away", "yielded", "silent", "unread", "token_over"]


class Share:
    """A number of bytes taken from a budget, until `release`."""

    __slots__ = ("_budget", "_holder", "size")

    def __init__(self, budget: Budget, holder: Hashable, size: int) -> None:
        self._budget, self._holder, self.size = budget, holder, size

    def shrink(self, size: int) -> None:
        """No more than `size` bytes are still needed."""
        if size < self.size:
            freed, self.size = self.size - size, size
            self._budget.give_back(self._holder, freed)

    def release(self) -> None:
        """Give all of it back. May be called more than once."""
        self.shrink(0)


class _Wait:
    __slots__ = ("granted", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.granted = trio.Event()


class Budget:
    """At most `total_bytes` in use, and by one holder at most `holder_bytes`.

    A holder's requests wait in their order. Holders take turns; one that has reached its own bound delays nobody else.
    """

    def __init__(self, total_bytes: int, holder_bytes: int, patience_s: float = PATIENCE_S) -> None:
        self.used_bytes = 0
        self._total_bytes, self._holder_bytes, self._patience_s = total_bytes, holder_bytes, patience_s
        self._held: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[_Wait]] = {}

    async def take(self, holder: Hashable, size: int) -> Share:
        """A share of `size` bytes (at most `holder_bytes`). Raises Overloaded after `patience_s`."""
        wait = _Wait(min(size, self._holder_bytes))
        self._waiting.setdefault(holder, deque()).append(wait)
        self._grant()
        if not wait.granted.is_set():
            try:
                with trio.move_on_after(self._patience_s):
                    await wait.granted.wait()
            except trio.Cancelled:
                if wait.granted.is_set():
                    self.give_back(holder, wait.size)
                raise
            finally:
                if not wait.granted.is_set():
                    self._forget(holder, wait)
            if not wait.granted.is_set():
                raise Overloaded("Too many large messages are under way; try again later.", retryAfterMs=1000)
        return Share(self, holder, wait.size)

    def give_back(self, holder: Hashable, size: int) -> None:
        """Free `size` bytes and grant what waited for them."""
        self.used_bytes -= size
        left = self._held[holder] - size
        if left:
            self._held[holder] = left
        else:
            del self._held[holder]
        self._grant()

    def _grant(self) -> None:
        progress = True
        while progress:
            progress = False
            for holder, waits in list(self._waiting.items()):
                size = waits[0].size
                if self._held.get(holder, 0) + size > self._holder_bytes:
                    continue
                if self.used_bytes + size > self._total_bytes:
                    return  # first come, first served: smaller requests must not overtake this one for ever
                self.used_bytes += size
                self._held[holder] = self._held.get(holder, 0) + size
                waits.popleft().granted.set()
                # The holder goes to the end, so that the next grant is another holder's.
                del self._waiting[holder]
                if waits:
                    self._waiting[holder] = waits
                progress = True

    def _forget(self, holder: Hashable, wait: _Wait) -> None:
        waits = self._waiting[holder]
        waits.remove(wait)
        if not waits:
            del self._waiting[holder]
        self._grant()


class Budgets:
    """One budget for the owner and one for all tokens: requests of tokens never make the owner wait.

    `closed` counts the connections that the daemon closed, by cause.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.closed: Counter[Cause] = Counter()
        self.owner = Budget(96 * MIB, 64 * MIB, patience_s)
        self.others = Budget(64 * MIB, 48 * MIB, patience_s)

    async def take(self, caller: Caller, peer: Hashable, size: int) -> Share:
        """A share for the caller. The holder is the token or the run, on all its connections; else the connection."""
        if caller.kind == "owner":
            return await self.owner.take(peer, size)
        return await self.others.take(caller.token_id or caller.run_id or peer, size)
