"""One subscriber: what it follows, how far it got, and what happens when it does not read.

A subscription never slows anyone. It writes at once where its sink has room, keeps a bounded queue where it has none,
and when that overflows it drops the queue and remembers only how far it got in each session; the pump reads on from the
files (`replay.pump`). Knows keys and events. Does not know connections, codecs or files.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec
import trio

from sessiond.events.delayed_retry import LOOK_AGAIN_S
from sessiond.events.omission import join, omit_content
from sessiond.model.event import ChangedEvent, Event, LiveEvent, MessageEvent, ResyncReason, weight_of

# Together with the 1,024 events of limits.maxQueuedEvents: what one stopped subscriber may cost.
MAX_QUEUED_BYTES = 4 * 1024 * 1024

# `sees(key, spawned_by, transcript)`: whether the session's events may go to whoever asked for them, as of now;
# `transcript` for what is said in it. `spawned_by` serves where the session is no longer there to be asked.
Sees = Callable[[str, str | None, bool], bool]


class EventSink(Protocol):
    """Where a subscription writes: a connection, or one SSE response."""

    def ready(self) -> bool:
        """Whether a write goes out without waiting."""

    def write(self, event: Event) -> None:
        """Write an event now. Called where `ready` said yes, or after `room`."""

    async def room(self) -> None:
        """Return when there is room for one more event."""


class FollowPlace(msgspec.Struct, frozen=True, gc=False):
    """How far a subscriber got in one session. `reason` is told in a `session.resync` first, None where none is due."""

    session_id: str
    offset: int
    seq: int
    reason: ResyncReason | None = None


class Lag:
    """A session in which a subscriber is behind. `place` moves as the file is read.

    `change` is the newest change meanwhile, told at the end: each holds the whole row. `held` says that the file could
    not be read just now.
    """

    __slots__ = ("change", "held", "place")

    def __init__(self, place: FollowPlace, change: ChangedEvent | None = None) -> None:
        self.place = place
        self.change = change
        self.held = False


class Subscription:
    """What one connection follows: sessions by key, or with `everything` all of them; and who asked for each."""

    def __init__(self, sink: EventSink, *, limit: int) -> None:
        self.sink = sink
        self.keys: dict[str, Sees] = {}
        self.everything: Sees | None = None
        self.queue: deque[Event] = deque()
        self.behind: dict[str, Lag] = {}
        # From which place on the subscriber has had every message of a session.
        self._since: dict[str, FollowPlace] = {}
        self._limit = limit
        self._queued_bytes = 0
        self._wake = trio.Event()

    def wants(self, event: Event) -> bool:
        """Whether this subscriber gets the event, as of now."""
        if isinstance(event, ChangedEvent):
            return self.everything is not None and self.everything(event.key, event.spawned_by, False)
        return self.reads(event.key, event.spawned_by)

    def reads(self, key: str, spawned_by: str | None) -> bool:
        """Whether this subscriber gets what is said in the session, as of now."""
        sees = self.keys.get(key)
        if sees is not None and sees(key, spawned_by, True):
            return True
        return self.everything is not None and self.everything(key, spawned_by, True)

    def offer(self, event: Event) -> None:
        """Give the subscriber an event: written, queued, or left to the replay. Never waits."""
        lag = self.behind.get(event.key) if self.behind else None
        if lag is not None:
            # What stands in a file is replayed from there, in its order; what is only live is lost to one who lags.
            if isinstance(event, ChangedEvent) and self.wants(event):
                lag.change = event
            lag.held = False
            self._wake.set()
            return
        if not self.wants(event):
            return
        if isinstance(event, MessageEvent) and event.key not in self._since:
            self._since[event.key] = FollowPlace(event.session_id, event.before, event.seq - 1)
        if not self.queue and self.sink.ready():
            self.sink.write(event)
            return
        if isinstance(event, LiveEvent) and self._queued_bytes + weight_of(event) > MAX_QUEUED_BYTES:
            event = omit_content(event)
            joined = join(self.queue[-1], event) if self.queue else None
            if joined is not None:
                self.queue[-1] = joined
                return
        self.queue.append(event)
        self._queued_bytes += weight_of(event)
        if len(self.queue) > self._limit or self._queued_bytes > MAX_QUEUED_BYTES:
            self._overflow()
        self._wake.set()

    def take(self) -> Event:
        """The oldest queued event."""
        event = self.queue.popleft()
        self._queued_bytes -= weight_of(event)
        return event

    def has_had(self, key: str, place: FollowPlace) -> bool:
        """Whether every message behind `place` was given to this subscriber, or will be."""
        since = self._since.get(key)
        if since is None or place.reason is not None or since.session_id != place.session_id:
            return False
        # Counted in messages: other records lie between.
        return since.seq <= place.seq

    def fall_back(self, key: str, place: FollowPlace) -> None:
        """Let the pump bring this session up from `place` on. What was queued of it is read again with the rest."""
        lag = self.behind.get(key)
        change = lag.change if lag is not None else None
        kept: deque[Event] = deque()
        for event in self.queue:
            if event.key != key:
                kept.append(event)
            elif isinstance(event, ChangedEvent):
                change = event
        self.queue = kept
        self._queued_bytes = sum(map(weight_of, kept))
        self.behind[key] = Lag(place, change)
        self._since[key] = place
        self._wake.set()

    def begin(self, key: str, place: FollowPlace) -> None:
        """The key's transcript is another one from now on: let the pump read on from `place`, behind what waits.

        `place` is where those stand who have had everything so far: in the old transcript, or at the start of the new.
        """
        lag = self.behind.get(key)
        if lag is not None and _is_made_by_news_of(lag.place, place):
            self.behind[key] = Lag(msgspec.structs.replace(place, reason="lagged"), lag.change)
            self._since[key] = place
            return
        if lag is not None:
            return  # the pump finds the other session when it gets there
        if place.offset == 0 and self.knew(key):
            place = msgspec.structs.replace(place, reason="reset")
        self.behind[key] = Lag(place)
        self._since.setdefault(key, place)
        self._wake.set()

    def rewrite(self, key: str, place: FollowPlace, *, live: bool) -> None:
        """The file of a session was written anew. Where it is not the `live` one, only who is in it cares."""
        lag = self.behind.get(key)
        if live if lag is None else lag.place.session_id == place.session_id:
            self.fall_back(key, place)

    def go_over(self, key: str, place: FollowPlace) -> None:
        """One session of the key was read to its end: read on in the next one."""
        self.behind[key].place = place
        self._since[key] = place

    def wake(self, key: str) -> None:
        """There is more to read in a session of the key: let the pump look again if it waits for that."""
        lag = self.behind.get(key)
        if lag is not None:
            lag.held = False
            self._wake.set()

    def knew(self, key: str) -> bool:
        """Whether the subscriber followed the key, or was told of its messages, before."""
        return key in self.keys or key in self._since

    def next_lagging(self) -> str | None:
        """A session to read on in, each in its turn; None where there is none."""
        for key, lag in self.behind.items():
            if not lag.held:
                self.behind[key] = self.behind.pop(key)
                return key
        return None

    def end_lag(self, key: str) -> None:
        """The session has been read to its end: from here on its events are offered live."""
        lag = self.behind.pop(key)
        change, place = lag.change, lag.place
        if change is not None and change.session_id == place.session_id and change.after < place.offset:
            # The news that a session begins says that nothing of it was had; by now everything was.
            change = msgspec.structs.replace(change, after=place.offset, seq=place.seq)
        if change is not None:
            self.offer(change)

    def forget(self, key: str) -> None:
        """The key is followed no longer."""
        if not (self.everything or key in self.keys):
            self.behind.pop(key, None)
            self._since.pop(key, None)

    def forget_others(self) -> None:
        """Only the keys in `keys` are followed from now on."""
        for key in [*self.behind, *self._since]:
            self.forget(key)

    async def idle(self) -> None:
        """Sleep until there is something to do."""
        # What could not be read, for want of descriptors perhaps, is tried again.
        with trio.move_on_after(LOOK_AGAIN_S if self.behind else math.inf):
            await self._wake.wait()
        # Nothing is awaited between this and the next look at the queue, so nothing can be missed.
        self._wake = trio.Event()
        for lag in self.behind.values():
            lag.held = False

    def _overflow(self) -> None:
        told: set[str] = set()
        for event in self.queue:
            key, lag = event.key, self.behind.get(event.key)
            # What was queued comes before any place to read on from.
            if key not in told and (lag is None or isinstance(event, MessageEvent)):
                place = _place_before(event, "lagged")
                if place is None:
                    continue
                told.add(key)
                lag = self.behind[key] = Lag(place, lag.change if lag is not None else None)
            if lag is not None and isinstance(event, ChangedEvent):
                lag.change = event
        # Whose session is read again is told that it lagged; of the others the runs say what was missed.
        missed: dict[object, LiveEvent] = {}
        for event in self.queue:
            if isinstance(event, LiveEvent) and event.method == "session.delta":
                run, short = (event.key, event.fields.get("runId")), omit_content(event)
                missed[run] = join(missed.get(run), short) or short
        self.queue = deque(event for event in missed.values() if event.key not in self.behind)
        self._queued_bytes = sum(map(weight_of, self.queue))
        if len(self.queue) > self._limit:
            self.queue.clear()
            self._queued_bytes = 0


def _place_before(event: Event, reason: ResyncReason | None) -> FollowPlace | None:
    """Where one stands in the file who has had everything before this event; None for what is in no file."""
    match event:
        case MessageEvent():
            return FollowPlace(event.session_id, event.before, event.seq - 1, reason)
        case ChangedEvent():
            return FollowPlace(event.session_id, event.after, event.seq, reason)
        case _:
            return None


def _is_made_by_news_of(lagged: FollowPlace, place: FollowPlace) -> bool:
    """Whether a queue overflowed with the very event that told of the new session: the old one was left out."""
    is_new = lagged.offset == 0 and lagged.session_id != place.session_id
    return is_new and lagged.reason == "lagged" and place.offset > 0
