"""Which other machines are there: each is asked every 15 seconds, and told to the daemon. Knows no server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import structlog

from sessiond.client.errors import CallTimeout, ClientError, RpcError
from sessiond.link.pacing import ArrivalPace

log = structlog.get_logger("sessiond.link")

# By the clock on the wall: what many machines ask of each other in the same moment wakes each of them once, and not a
# hundred times.
INTERVAL_S = 15.0
# A machine that has just closed its lid may miss one.
_ANSWER_S = 3.0

# How often a machine may say that it leaves, and how often later on: each is told to all who look on, and so is each
# return. Whatever is not heard the next look finds out.
MOST_LEAVES = 10
LEAVE_S = 60.0

DaemonCall = Callable[..., Awaitable[Any]]


class Presence:
    """Of the machines `names`. `ping(peer, timeout_s)` says whether the peer answers. `back(peer)` is called when one
    is there that was not, `changed()` whenever one has come or gone.
    """

    def __init__(
        self,
        *,
        names: Iterable[str],
        ping: Callable[[str, float], Awaitable[bool]],
        report: DaemonCall,
        back: Callable[[str], object],
        changed: Callable[[], object],
        interval_s: float = INTERVAL_S,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._names, self._ping, self._report, self._back = tuple(names), ping, report, back
        self._changed, self._interval_s, self._wall_s = changed, interval_s, wall_s
        self._present: dict[str, bool] = {}
        self._told: dict[str, bool] = {}
        self._leaves = {name: ArrivalPace(MOST_LEAVES, 1 / LEAVE_S) for name in self._names}
        self._look, self._has_left = asyncio.Event(), asyncio.Event()
        self._is_due = True  # a look at all
        self._signs: set[str] = set()

    @property
    def present(self) -> dict[str, bool]:
        """What is known of each machine."""
        return dict(self._present)

    def is_there(self, peer: str) -> bool:
        return self._present.get(peer, False)

    def look_now(self) -> None:
        """Ask all at once: the server is back, or away."""
        self._is_due = True
        self._look.set()

    def note_sign(self, peer: str) -> None:
        """The machine has asked for a sign of life just now, so it is there as well: ask it, and no other. Where a
        hundred machines start together, each would ask all for each.
        """
        if not self.is_there(peer):
            self._signs.add(peer)
            self._look.set()

    def note_leave(self, peer: str) -> None:
        """The machine says that its link ends. Where that was an old message, the next look finds it there again."""
        if self.is_there(peer) and self._leaves[peer].admits(asyncio.get_running_loop().time()):
            self._present[peer] = False
            log.info("machine leaves", machine=peer)
            self._has_left.set()

    async def tell_all(self, link: Any) -> None:
        """Tell a new connection to the daemon of all: what the one before was told ended with it."""
        self._told = dict(self._present)
        for name, there in self._present.items():
            # A daemon that wants to hear nothing of it is linked all the same.
            with suppress(RpcError):
                await link.call("machines.report", machine=name, present=there)

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tell_leaves())
            loop, next_s = asyncio.get_running_loop(), 0.0
            while True:
                self._look.clear()
                signs, self._signs = self._signs, set()
                if self._is_due or loop.time() >= next_s:
                    self._is_due = False
                    next_s = loop.time() + until_next(self._wall_s(), self._interval_s)
                    await self._look_at(self._names)
                else:
                    await self._look_at([name for name in self._names if name in signs])
                with suppress(TimeoutError):
                    async with asyncio.timeout(next_s - loop.time()):
                        await self._look.wait()

    async def _tell_leaves(self) -> None:
        while True:
            await self._has_left.wait()
            self._has_left.clear()
            self._changed()
            await self._tell_changes()

    async def _look_at(self, names: Sequence[str]) -> None:
        known = self.present
        found = await asyncio.gather(*(self._ping(name, _ANSWER_S) for name in names))
        for name, there in zip(names, found, strict=True):
            before, self._present[name] = self._present.get(name), there
            if before is not there and (there or before is not None):
                log.info("machine is there" if there else "machine is away", machine=name)
            if there and not before:
                self._back(name)
        if known != self._present:
            self._changed()
        await self._tell_changes()

    async def _tell_changes(self) -> None:
        for name, there in self._present.items():
            if self._told.get(name) is there:
                continue
            self._told[name] = there
            # A connection that ends now is followed by `tell_all` on the next.
            with suppress(ClientError):
                try:
                    await self._report("machines.report", machine=name, present=there, timeout_s=5.0)
                except CallTimeout:
                    self._told.pop(name, None)  # a daemon that is busy is told at the next look


def until_next(wall_s: float, interval_s: float) -> float:
    """How long it is until the next whole interval by the clock on the wall."""
    return interval_s - wall_s % interval_s
