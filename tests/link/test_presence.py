"""Who is there: asked in turn, told to the daemon once for each change, and whole to a new connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.link_stand_ins import run_until, settle

from sessiond.client.errors import CallTimeout, ConnectionLost
from sessiond.link.presence import MOST_LEAVES, Presence, until_next


class World:
    def __init__(self) -> None:
        self.there = {"mars": True, "moon": False}
        self.told: list[tuple[str, bool]] = []
        self.back: list[str] = []
        self.asked: list[str] = []
        self.is_daemon_away = self.is_daemon_busy = False
        self.presence = Presence(
            names=self.there,
            ping=self._ping,
            report=self._report,
            back=self.back.append,
            changed=list,
            interval_s=1e9,
        )

    async def _ping(self, peer: str, timeout_s: float) -> bool:
        self.asked.append(peer)
        return self.there[peer]

    async def _report(self, method: str, **params: Any) -> None:
        assert method == "machines.report"
        if self.is_daemon_away:
            raise ConnectionLost("gone")
        if self.is_daemon_busy:
            raise CallTimeout("no answer")
        self.told.append((params["machine"], params["present"]))

    async def call(self, method: str, **params: Any) -> None:
        """A connection to the daemon."""
        await self._report(method, **params)

    async def look(self) -> None:
        self.presence.look_now()
        await settle()


def with_world(body: Callable[[World], Awaitable[None]]) -> None:
    async def made() -> None:
        world = World()
        running = asyncio.create_task(world.presence.run())
        await settle()
        await body(world)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    run_until(made)


def test_each_change_is_told_once() -> None:
    async def body(world: World) -> None:
        assert world.told == [("mars", True), ("moon", False)] and world.back == ["mars"]
        await world.look()
        assert len(world.told) == 2
        world.there |= {"mars": False, "moon": True}
        await world.look()
        assert world.told[2:] == [("mars", False), ("moon", True)] and world.back == ["mars", "moon"]
        assert world.presence.present == {"mars": False, "moon": True}

    with_world(body)


def test_a_new_connection_to_the_daemon_is_told_of_all() -> None:
    async def body(world: World) -> None:
        world.told.clear()
        await world.presence.tell_all(world)
        assert world.told == [("mars", True), ("moon", False)]
        await world.look()
        assert len(world.told) == 2

    with_world(body)


def test_a_daemon_that_is_away_is_told_when_it_is_back() -> None:
    async def body(world: World) -> None:
        world.told.clear()
        world.is_daemon_away = True
        world.there["mars"] = False
        await world.look()
        assert not world.told and not world.presence.is_there("mars")
        world.is_daemon_away = False
        await world.presence.tell_all(world)
        assert world.told == [("mars", False), ("moon", False)]

    with_world(body)


def test_a_machine_that_shows_itself_is_asked_at_once_and_one_that_is_there_is_not() -> None:
    async def body(world: World) -> None:
        world.there["moon"] = True
        world.presence.note_sign("mars")
        await settle()
        assert not world.presence.is_there("moon")
        world.asked.clear()
        world.presence.note_sign("moon")
        await settle()
        assert world.presence.is_there("moon") and world.asked == ["moon"]
        world.asked.clear()
        await world.look()
        assert world.asked == ["mars", "moon"]

    with_world(body)


@given(wall_s=st.floats(0, 4e9), interval_s=st.floats(1, 3600))
def test_machines_look_when_the_clock_on_the_wall_has_a_whole_interval(wall_s: float, interval_s: float) -> None:
    wait_s = until_next(wall_s, interval_s)
    assert 0 < wait_s <= interval_s
    behind = (wall_s + wait_s) % interval_s
    assert min(behind, interval_s - behind) < 1e-3


def test_a_machine_that_comes_and_goes_without_end_is_told_of_so_often_and_then_as_it_is_found() -> None:
    async def body(world: World) -> None:
        world.told.clear()
        for number in range(MOST_LEAVES + 3):
            world.presence.note_leave("mars")
            await settle()
            assert world.presence.is_there("mars") is (number >= MOST_LEAVES)
            world.presence.note_sign("mars")
            await settle()
        assert world.told == [("mars", False), ("mars", True)] * MOST_LEAVES
        world.there["mars"] = False
        await world.look()
        assert not world.presence.is_there("mars")

    with_world(body)


def test_a_machine_that_says_that_it_leaves_is_away_at_once_until_it_is_seen_again() -> None:
    async def body(world: World) -> None:
        world.told.clear()
        world.presence.note_leave("mars")
        world.presence.note_leave("moon")
        await settle()
        assert world.told == [("mars", False)] and not world.presence.is_there("mars")
        await world.look()
        assert world.told == [("mars", False), ("mars", True)] and world.back == ["mars", "mars"]

    with_world(body)


def test_a_daemon_that_is_too_busy_to_be_told_is_told_at_the_next_look() -> None:
    async def body(world: World) -> None:
        world.is_daemon_busy = True
        world.there["moon"] = True
        await world.look()
        assert world.told == [("mars", True), ("moon", False)]
        world.is_daemon_busy = False
        await world.look()
        assert world.told[2:] == [("moon", True)]

    with_world(body)
