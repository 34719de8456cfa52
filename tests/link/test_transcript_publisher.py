"""What the publisher asks of its daemon, and how often."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S

from sessiond.config.link import ExportRule, PeerConfig
from sessiond.link.sent_places import SentPlaces
from sessiond.link.shares import SharesFile
from sessiond.link.transcript_publisher import TranscriptPublisher

PEERS = {"mars": PeerConfig(name="mars", key="k" * 20, export=(ExportRule(agents=("ops",)),))}


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


class DeafCourier:
    async def send(self, *given: Any, **more: Any) -> bool:
        raise AssertionError(given)


def test_at_the_start_the_list_is_read_once(tmp_path: Path) -> None:
    daemon = LateDaemon()

    async def start() -> None:
        places = SentPlaces(tmp_path)
        publisher = TranscriptPublisher(
            daemon, DeafCourier(), places, SharesFile(tmp_path), PEERS, drop=lambda _: None, wall_ms=lambda: 1
        )
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
