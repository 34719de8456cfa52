"""What is asked for of another machine's sessions, in which order, and how much of that is kept."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from support.jumping_loop import run_jumping
from support.link_stand_ins import run_until, settle

from sessiond.link import copy_asker
from sessiond.link.copy_asker import ROWS_S, CopyAsker, Wanted
from sessiond.link.envelope import PeerMessage
from sessiond.link.failures import BusError
from sessiond.link.ranges import COPY, CopyRequest, RowsRequest

G1 = "0" * 15 + "1"


async def nobody(question: str, fields: Any) -> PeerMessage:
    raise AssertionError(question)


def test_rows_that_come_again_and_again_are_kept_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(copy_asker, "_MAX_STALE", 10)
    asker = CopyAsker("mars", nobody, have=lambda session: ("", 0), rows=RowsRequest)
    for moment in range(1000):
        for session in ("a", "b", "c"):
            asker.want(Wanted(session, "0" * 16, 1, moment + (session == "b")))
    assert len(asker._order) <= 2 * 3 + 10
    assert [asker._take_newest(), asker._take_newest(), asker._take_newest(), asker._take_newest()] == [
        Wanted("b", "0" * 16, 1, 1000),
        Wanted("a", "0" * 16, 1, 999),
        Wanted("c", "0" * 16, 1, 999),
        None,
    ]


def reply(**fields: bool) -> PeerMessage:
    return PeerMessage("mars", "lap", "rep", "copy:1", json.dumps(fields).encode(), b"", False)


class SlowMachine:
    """A machine that replies to a question for a part of a session when it is let: `ends` are its replies."""

    def __init__(self, *ends: PeerMessage | BusError) -> None:
        self.ends, self.asked = list(ends), asyncio.Queue[CopyRequest]()
        self.may_reply = asyncio.Event()

    async def ask(self, question: str, fields: Any) -> PeerMessage:
        if question != COPY:
            return reply()
        self.asked.put_nowait(fields)
        await self.may_reply.wait()
        end = self.ends.pop(0)
        if isinstance(end, BusError):
            raise end
        return end


LATE = [reply(gone=True), reply(busy=True), BusError("timeout", "no answer")]


@pytest.mark.parametrize("late", LATE, ids=["gone", "busy", "lost"])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_what_comes_before_the_reply_ends_the_question_and_not_the_link(
    late: PeerMessage | BusError, is_wrong: bool
) -> None:
    async def body() -> None:
        machine = SlowMachine(late, reply())
        asker = CopyAsker("mars", machine.ask, have=lambda session: (G1, 1), rows=RowsRequest)
        running = asyncio.create_task(asker.run())
        asker.want(Wanted("s", G1, 3, 1))
        assert await machine.asked.get() == CopyRequest(session="s", generation=G1, have=1)
        if is_wrong:
            asker.want(Wanted("s", G1, 3, 1, "wrong"))
        else:
            asker.note_written("s", G1, 3, 3)
        machine.may_reply.set()
        await settle()
        assert not running.done(), running.exception()
        if is_wrong:
            assert await machine.asked.get() == CopyRequest(session="s", generation=G1, have=1, wrong=True)
        running.cancel()

    run_until(body)


def test_a_machine_that_stays_busy_is_asked_for_rows_once_a_second() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        asked: list[float] = []
        is_over = asyncio.Event()

        async def ask(question: str, fields: Any) -> PeerMessage:
            asked.append(loop.time())
            if loop.time() > asked[0] + ROWS_S + 10:
                is_over.set()
            return reply(busy=True)

        asker = CopyAsker("mars", ask, have=lambda session: ("", 0), rows=RowsRequest)
        running = asyncio.create_task(asker.run())
        await is_over.wait()
        running.cancel()
        pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
        assert min(pauses) > 0.9

    run_jumping(body)


def test_while_there_is_no_room_nothing_is_asked_for_and_then_again() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        machine = SlowMachine(*[reply()] * 10)
        machine.may_reply.set()
        asker = CopyAsker("mars", machine.ask, have=lambda session: (G1, 1), rows=RowsRequest)
        running = asyncio.create_task(asker.run())
        for number in range(6):
            asker.want(Wanted(f"s{number}", G1, 3, number))
        first = [(await machine.asked.get()).session for _ in range(4)]
        assert first == ["s5", "s4", "s3", "s2"]
        asker.pause(600)

        paused_at = loop.time()
        again = [(await machine.asked.get()).session for _ in range(4)]
        assert again == first
        assert 600 <= loop.time() - paused_at < 601
        running.cancel()

    run_jumping(body)


def test_a_machine_that_comes_back_during_a_question_is_asked_again_at_once() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        asked: asyncio.Queue[float] = asyncio.Queue()
        is_coming = False

        async def ask(question: str, fields: Any) -> PeerMessage:
            nonlocal is_coming
            asked.put_nowait(loop.time())
            await asyncio.sleep(0)
            if is_coming:
                is_coming = False
                asker.note_presence()
            raise BusError("timeout", "no answer")

        asker = CopyAsker("mars", ask, have=lambda session: ("", 0), rows=RowsRequest)
        running = asyncio.create_task(asker.run())
        for _ in range(12):
            began = await asked.get()
        is_coming = True  # during this attempt
        assert await asked.get() - began < 1
        running.cancel()

    run_jumping(body)
