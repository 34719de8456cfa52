"""Follow a session only to hear that something has happened in it. Keeps no events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from sessiond.events.bus import EventBus
from sessiond.events.subscription import FollowPlace, Subscription
from sessiond.model.event import Event


class _EmptySink:
    """The sink of `WakeUp`, which never writes to it."""

    def ready(self) -> bool:
        return True

    def write(self, event: Event) -> None:
        pass

    async def room(self) -> None:
        await trio.lowlevel.checkpoint()


class WakeUp(Subscription):
    """Sets `event` whenever something happens in the session that it follows; whoever waits puts a new one in before
    it looks.
    """

    def __init__(self) -> None:
        super().__init__(_EmptySink(), limit=0)
        self.event = trio.Event()

    def offer(self, event: Event) -> None:  # noqa: ARG002
        self.event.set()

    def start_lag(self, key: str, place: FollowPlace) -> None:  # noqa: ARG002
        self.event.set()

    def switch_session(self, key: str, place: FollowPlace) -> None:  # noqa: ARG002
        self.event.set()

    def reread(self, key: str, place: FollowPlace, *, live: bool) -> None:  # noqa: ARG002
        self.event.set()


@contextmanager
def follow_quietly(bus: EventBus, key: str) -> Iterator[WakeUp]:
    """Follow the session of a key, whoever may see it."""
    wake_up = WakeUp()
    bus.follow(wake_up, key, lambda _key, _spawned_by, _transcript: True)
    try:
        yield wake_up
    finally:
        bus.forget(wake_up)
