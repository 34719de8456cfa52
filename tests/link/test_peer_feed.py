"""What one machine gets: a transcript that cannot be read keeps no other one waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from support.jumping_loop import run_jumping
from support.link_stand_ins import StandInDaemon, refusal

from sessiond.client.wire import Event
from sessiond.link.own_sessions import OwnSessions
from sessiond.link.peer_feed import PeerFeed
from sessiond.link.peer_places import PeerPlaces
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

        async def read_heads(wanted: Any) -> Any:
            raise AssertionError(wanted)

        places, courier = SentPlaces(tmp_path), Ranges()
        sessions = OwnSessions(StandInDaemon(), lambda session: marks(session))  # noqa: PLW0108 - made below
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
        marks = feed.mark
        running = asyncio.create_task(feed.run())

        def tell(session: str) -> None:
            row = {"sessionId": session, "source": "sessiond"}
            sessions.note_event(Event("sessions.changed", {"sessionKey": f"agent:ops:{session}", "row": row}))

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
