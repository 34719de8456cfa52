"""What a machine may ask: how fast, how long its questions are, and what becomes of one that floods its lane."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from support.link_stand_ins import run_until, settle, until

from sessiond.link import question_lanes
from sessiond.link.question_lanes import MAX_QUESTION_BYTES, MOST_WAITING, QuestionLane


class StandInClient(Client):
    """Hands over what a server would, to whoever listens."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Any] = []
        self.asked_for: list[str] = []

    async def subscribe(self, subject: str, *, cb: Any, **_limits: Any) -> Any:
        self.asked_for.append(subject)
        self.listeners.append(cb)
        return self

    async def unsubscribe(self) -> None:
        self.listeners.pop()

    async def ask(self, data: bytes, reply: str = "_INBOX.lap.1") -> None:
        for listener in self.listeners:
            await listener(Msg(self, subject="ask.mars.lap", reply=reply, data=data))


class World:
    def __init__(self) -> None:
        self.client, self.is_free = StandInClient(), asyncio.Event()
        self.asked: list[bytes] = []
        self.said: list[tuple[str, bytes]] = []
        self.lane = QuestionLane("mars", "lap", self._answer, self._respond)

    async def _answer(self, sender: str, question: bytes) -> bytes | None:
        assert sender == "lap"
        self.asked.append(question)
        await self.is_free.wait()
        return question or None

    async def _respond(self, reply: str, answer: bytes) -> None:
        self.said.append((reply, answer))


def in_world(body: Any) -> None:
    async def made() -> None:
        world = World()
        running = asyncio.create_task(world.lane.run())
        await world.lane.listen(world.client)
        await body(world)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    run_until(made)


def test_questions_are_answered_in_turn_and_one_that_is_too_long_is_none() -> None:
    async def body(world: World) -> None:
        world.is_free.set()
        for length in (1, MAX_QUESTION_BYTES, MAX_QUESTION_BYTES + 1):
            await world.client.ask(bytes(length))
        await world.client.ask(b"nobody waits", reply="")
        await until(lambda: len(world.asked) == 4)
        await settle()
        assert [len(answer) for _, answer in world.said] == [1, MAX_QUESTION_BYTES]
        assert world.client.asked_for == ["ask.mars.lap"]

    in_world(body)


@pytest.mark.parametrize(("more", "is_heard"), [(0, True), (1, False)])
def test_a_lane_holds_so_many_questions_and_then_rests(
    monkeypatch: pytest.MonkeyPatch, more: int, is_heard: bool
) -> None:
    monkeypatch.setattr(question_lanes, "REST_S", 0.001)

    async def body(world: World) -> None:
        await world.client.ask(b"first")
        await until(lambda: world.asked)
        for number in range(MOST_WAITING + more):
            await world.client.ask(b"%d" % number)
        if is_heard:
            await settle()
            assert len(world.client.asked_for) == 1
            world.is_free.set()
            await until(lambda: len(world.said) == MOST_WAITING + 1)
            return
        await until(lambda: len(world.client.asked_for) == 2)
        assert len(world.client.listeners) == 1, "it is heard again, once"
        world.is_free.set()
        await world.client.ask(b"later")
        await until(lambda: world.said[-1:] == [("_INBOX.lap.1", b"later")])
        assert world.asked == [b"first", b"later"], "what it flooded is forgotten"

    in_world(body)


def test_a_new_connection_is_listened_to_when_the_rest_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_lanes, "REST_S", 0.001)

    async def body(world: World) -> None:
        for _ in range(MOST_WAITING + 2):
            await world.client.ask(b"flood")
        new = StandInClient()
        await world.lane.listen(new)
        assert not new.asked_for
        await until(lambda: new.asked_for == ["ask.mars.lap"])
        assert len(world.client.asked_for) == 1

    in_world(body)
