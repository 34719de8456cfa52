"""What one machine gets, when: what is wrong with one session keeps no other waiting, and nothing waits in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.jumping_loop import run_jumping
from support.link_stand_ins import StandInDaemon, refusal

from sessiond.client.wire import Event
from sessiond.link.failures import BusError
from sessiond.link.own_sessions import OwnSessions
from sessiond.link.peer_feed import PeerFeed, Reading
from sessiond.link.peer_places import PeerPlaces
from sessiond.link.range_sender import RangeSender
from sessiond.link.ranges import CopyRequest
from sessiond.link.sent_places import SentPlaces
from sessiond.link.transcript_bytes import FoundBytes


class Ranges:
    """Which sessions ranges were sent of."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[str] = asyncio.Queue()

    async def send(self, peer: str, kind: Any, identity: str, *given: Any, **more: Any) -> bool:
        self.sent.put_nowait(identity)
        return True


def make_feed(places: SentPlaces, courier: RangeSender, read: Reading) -> tuple[PeerFeed, Callable[[str], None]]:
    """A feed, and what tells it of a session that has changed."""

    async def read_heads(wanted: Any) -> Any:
        raise AssertionError(wanted)

    sessions = OwnSessions(StandInDaemon(), lambda session: feed.mark(session))  # noqa: PLW0108 - made below
    feed = PeerFeed(
        "mars",
        sessions,
        PeerPlaces("mars", places, lambda: 1, lambda: 0),
        courier=courier,
        read=read,
        read_heads=read_heads,
        exports=lambda facts: True,
        wall_ms=lambda: 1,
    )

    def tell(session: str) -> None:
        row = {"sessionId": session, "source": "sessiond"}
        sessions.note_event(Event("sessions.changed", {"sessionKey": f"agent:ops:{session}", "row": row}))

    return feed, tell


def test_a_transcript_that_cannot_be_read_keeps_no_other_waiting_and_is_read_later(tmp_path: Path) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        tries: asyncio.Queue[float] = asyncio.Queue()
        is_readable = False

        async def read(session: str, cursor: str | None, at: int | None, most: int) -> FoundBytes:
            if session == "bad" and not is_readable:
                tries.put_nowait(loop.time())
                raise refusal("storage", "the transcript of agent:ops:bad cannot be read")
            return FoundBytes(0, 3, "cursor", b"abc")

        places, courier = SentPlaces(tmp_path), Ranges()
        feed, tell = make_feed(places, courier, read)
        running = asyncio.create_task(feed.run())

        tell("bad")
        feed.take_request(CopyRequest(session="bad"))
        for _ in range(20):
            await tries.get()
        tell("good")
        feed.take_request(CopyRequest(session="good"))
        began = loop.time()
        assert await courier.sent.get() == "good"
        assert loop.time() - began < 1
        is_readable = True
        while await courier.sent.get() != "bad":
            pass
        assert loop.time() - began < 60
        running.cancel()
        places.close()

    run_jumping(body)


def test_a_server_that_comes_back_during_an_attempt_is_tried_again_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        tries: asyncio.Queue[float] = asyncio.Queue()
        is_coming = False

        async def read(session: str, cursor: str | None, at: int | None, most: int) -> FoundBytes:
            return FoundBytes(0, 3, "cursor", b"abc")

        class LosingServer:
            async def send(self, *given: Any, **more: Any) -> bool:
                nonlocal is_coming
                tries.put_nowait(loop.time())
                await asyncio.sleep(0)
                if is_coming:
                    is_coming = False
                    feed.retry_now()
                raise BusError("timeout", "it was sent on the connection before")

        places = SentPlaces(tmp_path)
        feed, tell = make_feed(places, LosingServer(), read)
        running = asyncio.create_task(feed.run())
        tell("s")
        for _ in range(12):
            began = await tries.get()
        is_coming = True  # during this attempt
        assert await tries.get() - began < 1
        running.cancel()
        places.close()

    run_jumping(body)
