"""Publish and subscribe: who gets which event, and what happens to one who does not read.

A subscription never slows anyone. It writes at once where its sink has room, keeps a bounded queue where it has none,
and when that overflows it drops the queue and remembers only how far it got in each session; the pump reads on from the
files (`replay.pump`). Knows keys and events. Does not know connections, codecs or files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec
import trio

from sessiond.model.event import ChangedEvent, Event, MessageEvent, ResyncReason

# Together with the 1,024 events of limits.maxQueuedEvents: what one stopped subscriber may cost.
MAX_QUEUED_BYTES = 4 * 1024 * 1024


class Sink(Protocol):
    """Where a subscription writes: a connection, or one SSE response."""

    def ready(self) -> bool:
        """Whether a write goes out without waiting."""

    def write(self, event: Event) -> None:
        """Write an event now. Called where `ready` said yes, or after `room`."""

    async def room(self) -> None:
        """Return when there is room for one more event."""


class Place(msgspec.Struct, frozen=True, gc=False):
    """How far a subscriber got in one session. `reason` is told in a `session.resync` first, None where none is due."""

    session_id: str
    offset: int
    seq: int
    reason: ResyncReason | None = None


class Subscription:
    """What one connection follows. `messages` says whether transcript events may go with lifecycle events."""

    def __init__(self, sink: Sink, *, may_see: Callable[[str], bool], limit: int) -> None:
        self.sink = sink
        self.keys: set[str] = set()
        self.everything = False
        self.messages = True
        self.queue: deque[Event] = deque()
        self.behind: dict[str, Place] = {}
        self.wake = trio.Event()
        self._may_see = may_see
        self._limit = limit
        self._queued_bytes = 0

    def wants(self, event: Event) -> bool:
        """Whether this subscriber gets the event, as of now."""
        if not self._may_see(event.key):
            return False
        if isinstance(event, ChangedEvent):
            return self.everything
        return event.key in self.keys or (self.everything and self.messages)

    def offer(self, event: Event) -> None:
        """Give the subscriber an event: written, queued, or left to the replay. Never waits."""
        if not self.wants(event):
            return
        # What stands in a file is replayed from there, in its order; what is only live is lost to one who lags.
        if event.key in self.behind and not (isinstance(event, ChangedEvent) and event.entry is None):
            return
        if not self.queue and self.sink.ready():
            self.sink.write(event)
            return
        self.queue.append(event)
        self._queued_bytes += _size(event)
        if len(self.queue) > self._limit or self._queued_bytes > MAX_QUEUED_BYTES:
            self._overflow()
        self.wake.set()

    def take(self) -> Event:
        """The oldest queued event."""
        event = self.queue.popleft()
        self._queued_bytes -= _size(event)
        return event

    def fall_back(self, key: str, place: Place) -> None:
        """Let the pump bring this session up from `place` on."""
        if any(event.key == key for event in self.queue):
            kept = [event for event in self.queue if event.key != key]
            self.queue = deque(kept)
            self._queued_bytes = sum(map(_size, kept))
        self.behind[key] = place
        self.wake.set()

    def _overflow(self) -> None:
        for event in self.queue:
            match event:
                case MessageEvent():
                    place = Place(event.session_id, event.before, event.seq - 1, "lagged")
                    self.behind.setdefault(event.key, place)
                case ChangedEvent(entry=entry) if entry is not None:
                    place = Place(event.session_id, event.after, entry.message_count, "lagged")
                    self.behind.setdefault(event.key, place)
                case _:
                    pass
        self.queue.clear()
        self._queued_bytes = 0


def _size(event: Event) -> int:
    return len(event.message) + 400 if isinstance(event, MessageEvent) else 1000


class EventBus:
    """All subscriptions. Publishing is synchronous: when it returns, everyone has it, has it queued, or will read it."""

    def __init__(self) -> None:
        self._everything: set[Subscription] = set()
        self._by_key: dict[str, set[Subscription]] = {}

    def __len__(self) -> int:
        return len(self._everything.union(*self._by_key.values())) if self._by_key else len(self._everything)

    def interested(self, key: str) -> bool:
        """Whether anyone follows this session: no event need be made where nobody does."""
        return bool(self._everything) or key in self._by_key

    @property
    def watched(self) -> bool:
        """Whether anyone follows everything."""
        return bool(self._everything)

    def follow(self, subscription: Subscription, key: str | None) -> None:
        """Follow one session, or with None everything."""
        if key is None:
            subscription.everything = True
            self._everything.add(subscription)
        else:
            subscription.keys.add(key)
            self._by_key.setdefault(key, set()).add(subscription)

    def unfollow(self, subscription: Subscription, key: str | None) -> None:
        """The opposite of `follow`; not following is no error."""
        if key is None:
            subscription.everything = False
            self._everything.discard(subscription)
        else:
            subscription.keys.discard(key)
            followers = self._by_key.get(key)
            if followers is not None:
                followers.discard(subscription)
                if not followers:
                    del self._by_key[key]
        if key is not None and not subscription.everything:
            subscription.behind.pop(key, None)

    def forget(self, subscription: Subscription) -> None:
        """Drop everything the subscription follows, when its connection ends."""
        for key in [*subscription.keys, None]:
            self.unfollow(subscription, key)

    def publish(self, event: Event) -> None:
        """Offer an event to all who follow its session."""
        for subscription in tuple(self._everything):
            subscription.offer(event)
        for subscription in tuple(self._by_key.get(event.key, ())):
            # Who follows both gets each event once.
            if subscription not in self._everything:
                subscription.offer(event)

    def fall_back(self, key: str, place: Place) -> None:
        """Let everyone who follows the session read it again from `place`."""
        for subscription in self._everything | self._by_key.get(key, set()):
            subscription.fall_back(key, place)
