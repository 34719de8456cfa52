"""The sink of a stream of server-sent events, with the subscription and the pump that write to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import trio
from support.followed_store import sees_all
from support.live_events import changed_event
from trio.testing import wait_all_tasks_blocked

from sessiond.daemon.http_sessions import SseSink
from sessiond.events import replay
from sessiond.events.bus import EventBus
from sessiond.events.subscription import Subscription
from sessiond.model.event import Event


class Kept(SseSink):
    """Keeps what the stream would send."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None), cast(Any, None), tools=True)
        self.sent: list[Event] = []

    async def _send(self, event: Event) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(event)


async def test_events_that_come_whenever_the_pump_is_about_to_write_are_sent_once_and_in_order(tmp_path: Path) -> None:
    sink, bus = Kept(), EventBus()
    following = Subscription(sink, limit=1_000)
    bus.follow(following, None, sees_all)
    events = [changed_event(seq) for seq in range(300)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sink.run)
        # Nothing lags, so no store is read.
        nursery.start_soon(replay.pump, following, cast(Any, None))
        for number, event in enumerate(events):
            bus.publish(event)
            # Trio runs tasks that are ready in any order.
            for _ in range(number % 7):
                await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sink.sent == events
