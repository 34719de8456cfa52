"""Asks one machine for what copies of its sessions miss: the newest first, a few at once, each once at a time.

What was asked for comes as messages of the kind ask, or never: then it is asked for again. Knows no files.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal

import msgspec
import structlog

from sessiond.client.retry import Backoff
from sessiond.link.envelope import PeerMessage, Refused, read_fields
from sessiond.link.failures import BusError
from sessiond.link.ranges import ANSWER_BYTES, COPY, ROWS, CopyRequest, Promise, RowsRequest

log = structlog.get_logger("sessiond.link")

AT_ONCE = 4
# Without anything new for so long, what was asked for is asked for again.
PATIENCE_S = 30.0
# All rows are asked for now and then: a stream that was emptied tells nobody what it had.
ROWS_S = 600.0
# As many as a machine may have here.
_MAX_WANTED = 100_000
# Entries of the order that are out of date, before it is made anew: a machine may send new rows for ever.
_MAX_STALE = 10_000
_BUSY_S = 1.0

Ask = Callable[[str, Any], Awaitable[PeerMessage]]


class Wanted(msgspec.Struct, frozen=True):
    """A session of which something is missing: it has `size` bytes of `generation`, as far as is known.

    `why`: to `check` a copy that may have more than its original, or to begin a `wrong` one anew.
    """

    session: str
    generation: str
    size: int
    updated_at: int
    why: Literal["missing", "check", "wrong"] = "missing"


class _UnderWay:
    """What was asked for: up to `end` of `generation`, by `until`. `newer` became known since."""

    __slots__ = ("end", "generation", "newer", "until", "wanted")

    def __init__(self, wanted: Wanted, generation: str, end: int, until: float) -> None:
        self.wanted, self.generation, self.end, self.until = wanted, generation, end, until
        self.newer: Wanted | None = None


class CopyAsker:
    """`ask(question, fields)` asks the machine; `have(session)` is the generation of a copy and its size; `rows()` is
    what to ask for when rows are.
    """

    def __init__(
        self, machine: str, ask: Ask, *, have: Callable[[str], tuple[str, int]], rows: Callable[[], RowsRequest]
    ) -> None:
        self._machine, self._ask, self._have, self._rows = machine, ask, have, rows
        self._wanted: dict[str, Wanted] = {}
        self._order: list[tuple[int, str]] = []
        self._later: dict[str, tuple[float, Wanted]] = {}
        self._under_way: dict[str, _UnderWay] = {}
        self._more: dict[str, None] = {}  # of which the next part is asked for while this one comes
        self._wake, self._back = asyncio.Event(), asyncio.Event()
        self._rows_due = True
        self._paused_until = 0.0

    def want(self, wanted: Wanted, delay_s: float = 0.0) -> None:
        """Something is missing. What is under way already is not asked for again."""
        session = wanted.session
        under_way = self._under_way.get(session)
        if under_way is not None:
            if wanted.why != "wrong" or under_way.wanted.why == "wrong":
                under_way.newer = wanted  # looked at again when this is here
                return
            # What comes for a copy that is wrong would differ, too.
            del self._under_way[session]
        held = self._wanted.get(session)
        if held is not None and held.why == "wrong" and wanted.generation <= held.generation:
            wanted = msgspec.structs.replace(wanted, why="wrong")
        if delay_s:
            self._later[session] = asyncio.get_running_loop().time() + delay_s, wanted
        elif session in self._wanted or len(self._wanted) < _MAX_WANTED:
            self._wanted[session] = wanted
            heapq.heappush(self._order, (-wanted.updated_at, session))
            if len(self._order) > 2 * len(self._wanted) + _MAX_STALE:
                self._order = [(-one.updated_at, name) for name, one in self._wanted.items()]
                heapq.heapify(self._order)
        self._wake.set()

    def note_written(self, session: str, generation: str, size: int, total: int) -> None:
        """A copy has `size` bytes now, of an original that had `total`."""
        under_way = self._under_way.get(session)
        if under_way is None:
            return
        if generation != under_way.generation:
            under_way.generation, under_way.end = generation, ANSWER_BYTES
        if size >= total and generation >= under_way.wanted.generation:
            self._end(session)
        elif size >= under_way.end:
            self._end(session)
            self.want(Wanted(session, generation, total, under_way.wanted.updated_at))
        else:
            under_way.until = asyncio.get_running_loop().time() + PATIENCE_S
            if total > under_way.end and size >= under_way.end - ANSWER_BYTES // 2:
                self._more[session] = None
                self._wake.set()

    def pause(self, delay_s: float) -> None:
        """There is no room for what comes: ask for no more of it for so long."""
        self._paused_until = asyncio.get_running_loop().time() + delay_s
        for session in list(self._under_way):
            one = self._under_way.pop(session)
            self.want(one.newer or one.wanted)

    def note_presence(self) -> None:
        """The machine, or the server, is back."""
        self._rows_due = True
        self._back.set()
        self._wake.set()

    async def run(self) -> None:
        backoff, loop = Backoff(0.2, 15.0), asyncio.get_running_loop()
        rows_at = loop.time() + ROWS_S
        while True:
            self._wake.clear()
            self._back.clear()  # not after an error: the machine may have come back during the attempt
            try:
                self._rows_due = self._rows_due or loop.time() >= rows_at
                if self._rows_due and await self._ask_for_rows():
                    self._rows_due, rows_at = False, loop.time() + ROWS_S
                await self._ask_for_more()
                await self._ask_for_wanted()
                backoff.reset()
            except BusError as error:
                log.debug("not asked", machine=self._machine, reason=error.message)
                await _wait(self._back, backoff.next_s())
                continue
            await _wait(self._wake, self._next_look(rows_at))

    def _next_look(self, rows_at: float) -> float:
        now = asyncio.get_running_loop().time()
        # Due still: they were asked for, and the machine is busy.
        times = [now + _BUSY_S if self._rows_due else rows_at]
        if self._wanted and self._paused_until > now:
            times.append(self._paused_until)
        times += [*(one.until for one in self._under_way.values()), *(at for at, _ in self._later.values())]
        return max(0.01, min(times) - now)

    async def _ask_for_rows(self) -> bool:
        reply = await self._ask(ROWS, self._rows())
        promise = read_fields(reply, Promise)
        return not isinstance(promise, Refused) and not promise.busy

    async def _ask_for_more(self) -> None:
        while self._more:
            session, _ = self._more.popitem()
            under_way = self._under_way.get(session)
            if under_way is not None:
                generation, end = under_way.generation, under_way.end
                under_way.end += ANSWER_BYTES
                # If it is lost, nothing comes, and all is asked for again.
                await self._ask(COPY, CopyRequest(session=session, generation=generation, have=end))

    async def _ask_for_wanted(self) -> None:
        now = asyncio.get_running_loop().time()
        for session in [name for name, one in self._under_way.items() if one.until <= now]:
            late = self._under_way[session]
            self._end(session)
            if late.newer is None:
                self.want(late.wanted)
        for session in [name for name, (at, _) in self._later.items() if at <= now]:
            self.want(self._later.pop(session)[1])
        while len(self._under_way) < AT_ONCE and self._paused_until <= now:
            newest = self._take_newest()
            if newest is None:
                return
            await self._ask_for(newest)

    async def _ask_for(self, wanted: Wanted) -> None:
        generation, size = self._have(wanted.session)
        if wanted.why == "missing" and generation == wanted.generation and size >= wanted.size:
            return
        end = (size if generation >= wanted.generation else 0) + ANSWER_BYTES
        until = asyncio.get_running_loop().time() + PATIENCE_S
        self._under_way[wanted.session] = _UnderWay(wanted, generation, end, until)
        wrong = wanted.why == "wrong"
        request = CopyRequest(session=wanted.session, generation=generation, have=size, wrong=wrong)
        try:
            promise = read_fields(await self._ask(COPY, request), Promise)
        except BusError:
            if self._is_under_way(wanted):
                self._end(wanted.session)
                self.want(wanted)
            raise
        # What was asked for may have come before the reply, or have differed from what is there.
        if not self._is_under_way(wanted):
            return
        if isinstance(promise, Refused) or promise.gone:
            self._end(wanted.session)
        elif promise.busy:
            self._end(wanted.session)
            self.want(wanted, _BUSY_S)

    def _is_under_way(self, wanted: Wanted) -> bool:
        under_way = self._under_way.get(wanted.session)
        return under_way is not None and under_way.wanted is wanted

    def _take_newest(self) -> Wanted | None:
        while self._order:
            _, session = heapq.heappop(self._order)
            wanted = self._wanted.pop(session, None)
            if wanted is not None:
                return wanted
        return None

    def _end(self, session: str) -> None:
        newer = self._under_way.pop(session).newer
        if newer is not None:
            self.want(newer)
        self._wake.set()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
