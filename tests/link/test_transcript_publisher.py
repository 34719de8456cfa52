"""What the publisher asks of its daemon, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.link_stand_ins import settle
from support.patience import PATIENCE_S

from sessiond.config.link import ExportRule, PeerConfig
from sessiond.link.envelope import PeerMessage
from sessiond.link.failures import BusError
from sessiond.link.ranges import MAX_ROWS, Promise, RowsFields
from sessiond.link.sent_places import SentPlaces
from sessiond.link.shares import SharesFile
from sessiond.link.transcript_publisher import TranscriptPublisher
from sessiond.methods.sessions_heads import MAX_HEADS

PEERS = {"mars": PeerConfig(name="mars", key="k" * 20, export=(ExportRule(agents=("ops",)),))}

LINE = b'{"type":"session"}\n'


def publisher_of(daemon: LateDaemon, courier: Any, places: SentPlaces, store: Path) -> TranscriptPublisher:
    return TranscriptPublisher(
        daemon,
        courier,
        places,
        SharesFile(store),
        PEERS,
        agents={"ops"},
        byte_door=daemon,
        drop=lambda _: None,
        wall_ms=lambda: 1,
    )


class LateDaemon:
    """A daemon without sessions, which is there as soon as `arrive` is called."""

    def __init__(self) -> None:
        self.lists = 0
        self.is_awaited, self.has_listed = asyncio.Event(), asyncio.Event()
        self._there = asyncio.Event()

    def arrive(self) -> None:
        self._there.set()

    async def current_link(self) -> object:
        self.is_awaited.set()
        await self._there.wait()
        return None

    async def call(self, method: str, params: dict[str, Any] | None = None, /, **more: Any) -> Any:
        await self.current_link()
        assert method == "sessions_list", (method, params, more)
        self.lists += 1
        self.has_listed.set()
        return {"sessions": [], "hasMore": False}


class HeadsDaemon(LateDaemon):
    """It has so many short sessions; `asked` is how many heads each call wanted. Any other reading is an error."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.asked: list[int] = []
        self.arrive()

    async def call(self, method: str, params: dict[str, Any] | None = None, /, **more: Any) -> Any:
        assert params is not None
        if method == "sessions_list":
            self.lists += 1
            begin = int(params.get("cursor", "0"))
            end = min(begin + params["limit"], self.count)
            rows = [self._row(number) for number in range(begin, end)]
            return {"sessions": rows, "hasMore": end < self.count, "nextCursor": str(end)}
        assert method == "sessions.heads", method
        self.asked.append(len(params["sessions"]))
        await asyncio.sleep(0)
        head = {"status": "ok", "size": len(LINE), "cursor": "c", "data": LINE}
        return msgspec.json.decode(msgspec.json.encode({"heads": [head] * len(params["sessions"])}), type=more["form"])

    def _row(self, number: int) -> dict[str, Any]:
        cursor = f"{len(LINE)}-1-x"
        return {"key": f"agent:ops:{number}", "sessionId": f"s{number}", "source": "sessiond", "cursor": cursor}


class KeepingCourier:
    """Keeps the messages of rows; the next `refusals` of them do not arrive. `is_full` when all rows are there."""

    def __init__(self, count: int, refusals: int = 0) -> None:
        self.count, self.refusals = count, refusals
        self.sent: list[tuple[RowsFields, bytes]] = []
        self.is_full = asyncio.Event()
        self.while_sending: Callable[[], Awaitable[None]] | None = None

    async def send(
        self, peer: str, kind: Any, identity: str, fields: Any = None, payload: bytes = b"", **more: Any
    ) -> bool:
        assert (peer, kind, identity) == ("mars", "row", "rows")
        await asyncio.sleep(0)
        if self.refusals:
            self.refusals -= 1
            raise BusError("timeout", "no answer")
        if self.while_sending is not None:
            await self.while_sending()
        self.sent.append((fields, payload))
        if len(self.sessions) >= self.count:
            self.is_full.set()
        return True

    @property
    def sessions(self) -> set[str]:
        return {row.session for fields, _ in self.sent for row in fields.rows}


class DeafCourier:
    async def send(self, *given: Any, **more: Any) -> bool:
        raise AssertionError(given)


@pytest.mark.parametrize("refusals", [0, 2])
def test_the_heads_of_many_sessions_take_a_question_for_each_message_of_rows(tmp_path: Path, refusals: int) -> None:
    assert MAX_ROWS <= MAX_HEADS
    count = 2 * MAX_ROWS + 1
    daemon = HeadsDaemon(count)

    async def start() -> KeepingCourier:
        courier, places = KeepingCourier(count, refusals), SentPlaces(tmp_path)
        publisher = publisher_of(daemon, courier, places, tmp_path)
        publisher.greet()
        running = asyncio.create_task(publisher.run())
        await asyncio.wait_for(courier.is_full.wait(), PATIENCE_S)
        running.cancel()
        await asyncio.wait([running])
        places.close()
        return courier

    courier = asyncio.run(start())
    assert courier.sessions == {f"s{number}" for number in range(count)}
    assert [len(fields.rows) for fields, _ in courier.sent] == [MAX_ROWS, MAX_ROWS, 1]
    assert all(payload == LINE * len(fields.rows) for fields, payload in courier.sent)
    counters = [fields.counter for fields, _ in courier.sent]
    assert counters == sorted(set(counters))
    if not refusals:
        assert daemon.asked == [MAX_ROWS, MAX_ROWS, 1]


def test_who_asks_for_all_rows_while_they_are_being_sent_is_told_to_ask_later(tmp_path: Path) -> None:
    count = 2 * MAX_ROWS
    daemon, replies = HeadsDaemon(count), list[object]()
    asked = PeerMessage("mars", "lap", "req", "rows:1", b'{"heads":true}', b"", False)

    async def start() -> KeepingCourier:
        courier, places = KeepingCourier(count), SentPlaces(tmp_path)
        publisher = publisher_of(daemon, courier, places, tmp_path)

        async def ask() -> None:
            replies.append(await publisher.answer_rows(asked))

        courier.while_sending = ask
        publisher.greet()
        running = asyncio.create_task(publisher.run())
        await asyncio.wait_for(courier.is_full.wait(), PATIENCE_S)
        courier.while_sending = None
        assert len(courier.sent) == 2
        async with asyncio.timeout(PATIENCE_S):
            while await publisher.answer_rows(asked) == (Promise(busy=True), b""):
                await settle()
            while len(courier.sent) < 4:
                await settle()
        running.cancel()
        await asyncio.wait([running])
        places.close()
        return courier

    courier = asyncio.run(start())
    assert replies == [(Promise(busy=True), b"")] * 2
    assert [len(fields.rows) for fields, _ in courier.sent] == [MAX_ROWS] * 4


def test_at_the_start_the_list_is_read_once(tmp_path: Path) -> None:
    daemon = LateDaemon()

    async def start() -> None:
        places = SentPlaces(tmp_path)
        publisher = publisher_of(daemon, DeafCourier(), places, tmp_path)
        running = asyncio.create_task(publisher.run())
        await asyncio.wait_for(daemon.is_awaited.wait(), PATIENCE_S)
        publisher.greet()  # as for each connection, before others use it
        daemon.arrive()
        await asyncio.wait_for(daemon.has_listed.wait(), PATIENCE_S)
        for _ in range(100):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        places.close()

    asyncio.run(start())
    assert daemon.lists == 1
