"""A store with its feed in the test's own process: real files, the real watcher, readers in memory.

For tests of the road from a file to a subscriber, without connections.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trio
import trio.testing
from support.commit_tasks import with_commits
from support.patience import PATIENCE_S
from support.supervised_runs import ignore_call

from sessiond.events import replay
from sessiond.events.bus import EventBus
from sessiond.events.feed import TranscriptFeed
from sessiond.events.subscription import FollowPlace, Subscription
from sessiond.events.watch import Kind, open_watcher
from sessiond.events.watch_backend import WatchEvent
from sessiond.model.event import ChangedEvent, Event, LiveEvent, MessageEvent, ResyncEvent
from sessiond.model.keys import KeyRules, agent_of
from sessiond.sessions import lifecycle
from sessiond.store.catalog import Session
from sessiond.store.loading import load_sessions
from sessiond.store.store import Message, SessionStore, open_store

LIMIT = 8 * 1024 * 1024


def sees_all(key: str, spawned_by: str | None, transcript: bool) -> bool:
    return True


def sees_changes(key: str, spawned_by: str | None, transcript: bool) -> bool:
    """The events of a caller who may list and not read."""
    return not transcript


class Reader:
    """A sink in memory. With `room_for` it takes that many events more and then none; `events` is what it took."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.left: float = float("inf")
        self._changed = trio.Event()

    def stop(self, room_for: int = 0) -> None:
        self.left = room_for

    def go_on(self) -> None:
        self.left = float("inf")
        self._changed.set()

    def ready(self) -> bool:
        return self.left > 0

    def write(self, event: Event) -> None:
        self.left -= 1
        self.events.append(event)
        self._changed.set()

    async def room(self) -> None:
        while self.left <= 0:
            await self._wait()
        await trio.lowlevel.checkpoint()

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Return when `condition` holds, looking again after each event."""
        with trio.move_on_after(PATIENCE_S):
            while not condition():
                await self._wait()
            return
        raise AssertionError(f"waited in vain after {[summarise(event) for event in self.events]}")

    async def wait_for_text(self, text: str) -> None:
        """Return when a message with this text has come."""
        await self.wait_until(
            lambda: any(isinstance(event, MessageEvent) and text_of(event) == text for event in self.events)
        )

    async def _wait(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    @property
    def texts(self) -> list[str]:
        """The messages that came, in order."""
        return [text_of(event) for event in self.events if isinstance(event, MessageEvent)]

    @property
    def summaries(self) -> list[str]:
        """Everything that came, in short."""
        return [summarise(event) for event in self.events]


def text_of(event: MessageEvent) -> str:
    text: str = json.loads(event.message)["content"]
    return text


def summarise(event: Event) -> str:
    """An event in short: `hello`, `changed:message`, `resync:lagged`, `live:session.delta`."""
    match event:
        case MessageEvent():
            return text_of(event)
        case ChangedEvent():
            return f"changed:{event.phase}"
        case ResyncEvent():
            return f"resync:{event.reason}"
        case LiveEvent():
            return f"live:{event.method}"


class MissingEventsWatcher:
    """A watcher that reports only that it missed events."""

    backend = "inotify"

    def __init__(self) -> None:
        self.send, self._receive = trio.open_memory_channel[list[WatchEvent]](10)
        self.added: list[str] = []

    def add(self, path: str) -> None:
        if not os.path.isdir(path):
            raise FileNotFoundError(path)
        self.added.append(path)

    def __aiter__(self) -> MissingEventsWatcher:
        return self

    async def __anext__(self) -> list[WatchEvent]:
        return await self._receive.receive()


class FollowedStore:
    """A store with its feed and bus."""

    def __init__(self, store: SessionStore, bus: EventBus, feed: TranscriptFeed, nursery: trio.Nursery) -> None:
        self.store, self.bus, self.feed = store, bus, feed
        self.session_changes = lifecycle.SessionChanges(store, ignore_call)
        self._nursery = nursery
        self._scopes: dict[Subscription, trio.CancelScope] = {}

    def session(self, key: str) -> Session:
        return self.store.catalog.by_key[key]

    def file(self, key: str) -> Path:
        return self.store.path / self.session(key).path

    def folder(self, agent_id: str = "main") -> Path:
        return self.store.path / "agents" / agent_id / "sessions"

    async def create(self, key: str, *texts: str) -> Session:
        """A new session with these messages, created through the store."""
        session, _ = await self.store.create(key, agent_of(key), [Message(message(text)) for text in texts])
        return session

    async def say(self, key: str, *texts: str) -> None:
        """Append through the store, in one write."""
        await self.store.append(self.session(key), [Message(message(text)) for text in texts])

    async def say_to(self, session: Session, *texts: str) -> None:
        """Append through the store to this session, even if its key belongs to another now."""
        await self.store.append(session, [Message(message(text)) for text in texts])

    def write(self, key: str, *texts: str) -> None:
        """Append as another program with the open file would; nothing if the file is being moved."""
        with suppress(FileNotFoundError):
            append(self.file(key), b"".join(map(line, texts)), create=False)

    async def reset(self, key: str) -> None:
        await lifecycle.reset(self.session_changes, self.feed, self.session(key), _stop)

    async def delete(self, key: str) -> None:
        await lifecycle.delete(self.session_changes, self.feed, self.session(key), _stop)

    def newest_position(self, key: str) -> FollowPlace:
        """The place behind the session's newest record."""
        session = self.session(key)
        return FollowPlace(session.session_id, session.entry.file.folded_to, session.entry.message_count)

    def first_position(self, key: str) -> FollowPlace:
        """The place before the session's first record."""
        return FollowPlace(self.session(key).session_id, 0, 0)

    def follow(
        self, *keys: str | None, place: FollowPlace | None = None, limit: int = 1024, sees: Any = sees_all
    ) -> tuple[Subscription, Reader]:
        """A subscription to these keys (None: everything), from `place` on where it is given, and its reader."""
        reader = Reader()
        subscription = Subscription(reader, limit=limit)
        for key in keys:
            self.bus.follow(subscription, key, sees)
            if place is not None and key is not None:
                subscription.start_lag(key, place)
        self._nursery.start_soon(self._pump, subscription)
        return subscription, reader

    async def _pump(self, subscription: Subscription) -> None:
        with trio.CancelScope() as scope:
            self._scopes[subscription] = scope
            await replay.pump(subscription, self.store)

    async def wait_until_caught_up(self, subscription: Subscription) -> None:
        """Return when the subscriber is behind in no session."""
        with trio.fail_after(PATIENCE_S):
            while subscription.behind:
                await trio.testing.wait_all_tasks_blocked(0.005)

    def leave(self, subscription: Subscription) -> None:
        """End the subscription, as when its connection closes."""
        self.bus.forget(subscription)
        if subscription in self._scopes:
            self._scopes.pop(subscription).cancel()


@asynccontextmanager
async def followed_store(
    folder: Path,
    *,
    watcher: Kind = "auto",
    watching: bool = True,
    before: Callable[[], None] | None = None,
    **options: Any,
) -> AsyncIterator[FollowedStore]:
    """The store `folder/store` with its feed. Without `watching` other programs' appends are not noticed.

    `before` is called when the store was read and the feed does not run yet; its folders are watched since before that.
    """
    settings: dict[str, Any] = {"durable": False, "record_limit": LIMIT, "rules": KeyRules()}
    async with (
        open_store(folder / "store", listener=lambda: feed, **with_commits(settings | options), loads=False) as store,
        open_watcher(watcher) as watched,
    ):
        bus = EventBus()
        feed = TranscriptFeed(store, bus, on_lost=ignore_call, on_found=ignore_call)
        if watching:
            feed.watch_early(watched)
        await load_sessions(store, None)
        if before is not None:
            before()
        async with trio.open_nursery() as nursery:
            if watching:
                nursery.start_soon(feed.run, watched)
            yield FollowedStore(store, bus, feed, nursery)
            nursery.cancel_scope.cancel()


def message(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def line(text: str, role: str = "user") -> bytes:
    """A message record as another program writes it."""
    record = {"type": "message", "id": text, "timestamp": "2026-01-02T03:04:05.000Z", "message": message(text, role)}
    return json.dumps(record).encode() + b"\n"


def header(session_id: str, key: str | None = None, created: str = "2026-01-02T03:04:05.000Z") -> bytes:
    """The first line of a transcript; without a key as pi writes it."""
    record = {"type": "session", "version": 3, "id": session_id, "timestamp": created, "cwd": "/"}
    if key is not None:
        record |= {"sessionKey": key, "agentId": agent_of(key)}
    return json.dumps(record).encode() + b"\n"


def append(path: Path, data: bytes, *, create: bool = True) -> None:
    """One write on an O_APPEND descriptor."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | (os.O_CREAT if create else 0), 0o600)
    try:
        assert os.write(fd, data) == len(data)
    finally:
        os.close(fd)


async def _stop(_session: Session) -> None:
    await trio.lowlevel.checkpoint()
