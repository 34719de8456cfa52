"""One subscriber: what it follows, how far it got in each session, and what happens when it does not read.

A subscription never blocks a publisher. It writes at once where its sink has room, and else queues. When the queue
overflows, it drops it and remembers only the place in each session, from which the pump replays the files
(`replay.pump`). Knows keys and events. Does not know connections, codecs or files.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
import trio

from sessiond.events.delayed_retry import RETRY_S
from sessiond.events.omission import join_omitted, omit_content
from sessiond.model.event import (
    TEXT_METHODS,
    UNREPLAYED_EVENTS,
    ChangedEvent,
    Event,
    LiveEvent,
    MessageEvent,
    ResyncReason,
    approximate_bytes,
)

# Together with limits.maxQueuedEvents (1,024) the bound of the memory that a subscriber which does not read may cost.
MAX_QUEUED_BYTES = 4 * 1024 * 1024

# `sees(key, spawned_by, transcript)`: whether the subscriber may get the session's events now; with `transcript` its
# messages, else only changes of its row. `spawned_by` is used for a session that is no longer in the catalog.
Sees = Callable[[str, str | None, bool], bool]


class EventSink(Protocol):
    """Where a subscription writes: a connection, or an SSE response."""

    def ready(self) -> bool:
        """Whether an event can be written without waiting."""

    def write(self, event: Event) -> None:
        """Write an event now. Called only after `ready` returned True, or after `room`."""

    async def room(self) -> None:
        """Wait until there is room for one more event."""


LiveSoFar = Callable[[str], Iterable[LiveEvent]]


class FollowPlace(msgspec.Struct, frozen=True, gc=False):
    """How far a subscriber got in one session. With a `reason` a `session.resync` is sent before the replay goes on."""

    session_id: str
    offset: int
    seq: int
    reason: ResyncReason | None = None


class Lag:
    """A session in which a subscriber is behind. `place` advances as the file is read.

    `change` is the newest change meanwhile, sent at the end; older ones are dropped, since each has the whole row.
    `waits_for_file` says that the file could not be read just now.
    """

    __slots__ = ("change", "place", "waits_for_file")

    def __init__(self, place: FollowPlace, change: ChangedEvent | None = None) -> None:
        self.place = place
        self.change = change
        self.waits_for_file = False


class Subscription:
    """What one connection follows: the sessions of `keys`, or with `everything` all, each with its permission check.

    `live_so_far` gives what a subscriber that has read a session to its end has missed of what is in no file.
    """

    def __init__(self, sink: EventSink, *, limit: int, live_so_far: LiveSoFar | None = None) -> None:
        self.sink = sink
        self._live_so_far = live_so_far
        self.keys: dict[str, Sees] = {}
        self.everything: Sees | None = None
        self.queue: deque[Event] = deque()
        self.behind: dict[str, Lag] = {}
        # By key: the place from which on the subscriber has had every message of a session.
        self._received_since: dict[str, FollowPlace] = {}
        self._limit = limit
        self._queued_bytes = 0
        self._wake = trio.Event()

    def wants(self, event: Event) -> bool:
        """Whether this subscriber gets the event, as of now."""
        if isinstance(event, ChangedEvent):
            return self.everything is not None and self.everything(event.key, event.spawned_by, False)
        if isinstance(event, UNREPLAYED_EVENTS):
            each = (self.keys.get(event.key), self.everything)
            return any(sees is not None and sees(event.key, event.spawned_by, False) for sees in each)
        return self.reads(event.key, event.spawned_by)

    def reads(self, key: str, spawned_by: str | None) -> bool:
        """Whether this subscriber gets the messages of the session, as of now."""
        sees = self.keys.get(key)
        if sees is not None and sees(key, spawned_by, True):
            return True
        return self.everything is not None and self.everything(key, spawned_by, True)

    def offer(self, event: Event) -> None:
        """Write the event, queue it, or leave it to the replay. Never waits."""
        lag = self.behind.get(event.key) if self.behind else None
        if lag is not None and not isinstance(event, UNREPLAYED_EVENTS):
            # Messages are replayed from the file, in their order; live events are dropped while the subscriber lags.
            if isinstance(event, ChangedEvent) and self.wants(event):
                lag.change = event
            lag.waits_for_file = False
            self._wake.set()
            return
        if not self.wants(event):
            return
        if isinstance(event, MessageEvent) and event.key not in self._received_since:
            self._received_since[event.key] = FollowPlace(event.session_id, event.begin_offset, event.messages_before)
        if not self.queue and self.sink.ready():
            self.sink.write(event)
            return
        if isinstance(event, LiveEvent) and self._queued_bytes + approximate_bytes(event) > MAX_QUEUED_BYTES:
            event = omit_content(event)
            joined = join_omitted(self.queue[-1], event) if self.queue else None
            if joined is not None:
                self.queue[-1] = joined
                return
        self.queue.append(event)
        self._queued_bytes += approximate_bytes(event)
        if len(self.queue) > self._limit or self._queued_bytes > MAX_QUEUED_BYTES:
            self._drop_queue()
        self._wake.set()

    def take(self) -> Event:
        """The oldest queued event."""
        event = self.queue.popleft()
        self._queued_bytes -= approximate_bytes(event)
        return event

    def has_had(self, key: str, place: FollowPlace) -> bool:
        """Whether this subscriber has had, or will get, every message behind `place`."""
        since = self._received_since.get(key)
        if since is None or place.reason is not None or since.session_id != place.session_id:
            return False
        # Compared by message number, not by offset: other records may lie in between.
        return since.seq <= place.seq

    def start_lag(self, key: str, place: FollowPlace) -> None:
        """Let the pump replay this session from `place` on; its queued messages are dropped and read from the file."""
        lag = self.behind.get(key)
        change = lag.change if lag is not None else None
        kept: deque[Event] = deque()
        for event in self.queue:
            if event.key != key or isinstance(event, UNREPLAYED_EVENTS):
                kept.append(event)
            elif isinstance(event, ChangedEvent):
                change = event
        self.queue = kept
        self._queued_bytes = sum(map(approximate_bytes, kept))
        self.behind[key] = Lag(place, change)
        self._received_since[key] = place
        self._wake.set()

    def switch_session(self, key: str, place: FollowPlace) -> None:
        """Another session has the key now: let the pump read on from `place`, after what is queued.

        `place` is that of a subscriber without a lag: in the old transcript, or at the start of the new one.
        """
        lag = self.behind.get(key)
        if lag is not None and _overflowed_with_news_of(lag.place, place):
            self.behind[key] = Lag(msgspec.structs.replace(place, reason="lagged"), lag.change)
            self._received_since[key] = place
            return
        if lag is not None:
            return  # the pump goes on with the other session when it has read this one to its end
        if place.offset == 0 and self.has_known(key):
            place = msgspec.structs.replace(place, reason="reset")
        self.behind[key] = Lag(place)
        self._received_since.setdefault(key, place)
        self._wake.set()

    def reread(self, key: str, place: FollowPlace, *, live: bool) -> None:
        """The file of a session was rewritten: read it again from `place`.

        `live` says that it is the current session of the key; another one concerns only subscribers that replay it.
        """
        lag = self.behind.get(key)
        if live if lag is None else lag.place.session_id == place.session_id:
            self.start_lag(key, place)

    def continue_in(self, key: str, place: FollowPlace) -> None:
        """One session of the key was read to its end: read on at `place`, in the next one."""
        self.behind[key].place = place
        self._received_since[key] = place

    def wake(self, key: str) -> None:
        """There is more to read in a session of the key: let the pump look again if it waits for the file."""
        lag = self.behind.get(key)
        if lag is not None:
            lag.waits_for_file = False
            self._wake.set()

    def has_known(self, key: str) -> bool:
        """Whether the subscriber follows the key, or got messages of it before."""
        return key in self.keys or key in self._received_since

    def next_lagging(self) -> str | None:
        """The key of a lagging session whose file can be read, round robin; None where there is none."""
        for key, lag in self.behind.items():
            if not lag.waits_for_file:
                self.behind[key] = self.behind.pop(key)
                return key
        return None

    def end_lag(self, key: str) -> None:
        """The session has been read to its end: from here on its events are offered live."""
        lag = self.behind.pop(key)
        change, place = lag.change, lag.place
        if change is not None and change.session_id == place.session_id and change.end_offset < place.offset:
            # The event that announces a new session says that nothing of it was sent yet; by now everything was.
            change = msgspec.structs.replace(change, end_offset=place.offset, seq=place.seq)
        if change is not None:
            self.offer(change)
        for event in self._live_so_far(key) if self._live_so_far is not None else ():
            self.offer(event)

    def forget(self, key: str) -> None:
        """Drop the lag and the place of the key, unless it is still followed."""
        if not (self.everything or key in self.keys):
            self.behind.pop(key, None)
            self._received_since.pop(key, None)

    def forget_unfollowed(self) -> None:
        """Drop the state of all keys that are not in `keys`: `everything` is followed no longer."""
        for key in [*self.behind, *self._received_since]:
            self.forget(key)

    async def wait_work(self) -> None:
        """Sleep until there may be something to do."""
        # Files that could not be read, perhaps for lack of descriptors, are tried again.
        with trio.move_on_after(RETRY_S if self.behind else math.inf):
            await self._wake.wait()
        # There is no await between this and the pump's next look at the queue, so no wake-up is lost.
        self._wake = trio.Event()
        for lag in self.behind.values():
            lag.waits_for_file = False

    def _drop_queue(self) -> None:
        lagging: set[str] = set()
        for event in self.queue:
            key, lag = event.key, self.behind.get(event.key)
            # The oldest queued message decides the place, since the queue precedes any lag.
            if key not in lagging and (lag is None or isinstance(event, MessageEvent)):
                place = _place_before(event, "lagged")
                if place is None:
                    continue
                lagging.add(key)
                lag = self.behind[key] = Lag(place, lag.change if lag is not None else None)
            if lag is not None and isinstance(event, ChangedEvent):
                lag.change = event
        # Sessions that are replayed get a `session.resync`. For the others one event per run counts what was omitted.
        missed: dict[object, LiveEvent] = {}
        for event in self.queue:
            if isinstance(event, LiveEvent) and event.method in TEXT_METHODS:
                run, short = (event.key, event.method, event.fields.get("runId")), omit_content(event)
                missed[run] = join_omitted(missed.get(run), short) or short
        asked = [event for event in self.queue if isinstance(event, UNREPLAYED_EVENTS)]
        self.queue = deque([*asked, *(event for event in missed.values() if event.key not in self.behind)])
        self._queued_bytes = sum(map(approximate_bytes, self.queue))
        if self._queued_bytes > MAX_QUEUED_BYTES or len(self.queue) > self._limit:
            self.queue.clear()
            self._queued_bytes = 0


def _place_before(event: Event, reason: ResyncReason | None) -> FollowPlace | None:
    """The place right before this event; None for live events, which are in no file."""
    match event:
        case MessageEvent():
            return FollowPlace(event.session_id, event.begin_offset, event.messages_before, reason)
        case ChangedEvent():
            return FollowPlace(event.session_id, event.end_offset, event.seq, reason)
        case _:
            return None


def _overflowed_with_news_of(lagged: FollowPlace, place: FollowPlace) -> bool:
    """Whether the queue overflowed with the event that announced the new session, so that the old one was skipped."""
    is_new = lagged.offset == 0 and lagged.session_id != place.session_id
    return is_new and lagged.reason == "lagged" and place.offset > 0
