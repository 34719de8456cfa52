"""The beginnings and ends of sessions: made on the first message, reset, deleted; one change of a key at a time.

Knows the store and the feed. Does not know runs: whoever resets or deletes hands in what stops them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import structlog
import trio

from sessiond.errors import StorageError
from sessiond.events.feed import TranscriptFeed
from sessiond.model.entry import Entry
from sessiond.model.keys import agent_of
from sessiond.model.record import ENTRY
from sessiond.sessions.resolve import no_such_session
from sessiond.store.catalog import Catalog, Session
from sessiond.store.store import Custom, Part, SessionStore

log = structlog.get_logger("sessiond.sessions")

Stop = Callable[[Session], Awaitable[object]]

# What a session keeps over a reset: the settings somebody chose, where its answers go, and where it comes from. What
# was said, counted and spent is the old transcript's. Source: compatibility.md, "The store". A
# child that forgot its spawner would leave its tree, and a sandboxed one its sandbox.
_KEPT = {
    "thinking_level": "thinkingLevel",
    "verbose_level": "verboseLevel",
    "model_override": "modelOverride",
    "context_tokens": "contextTokens",
    "send_policy": "sendPolicy",
    "label": "label",
    "display_name": "displayName",
    "subject": "subject",
    "channel": "channel",
    "group_id": "groupId",
    "chat_type": "chatType",
    "last_channel": "lastChannel",
    "last_to": "lastTo",
    "last_account_id": "lastAccountId",
    "delivery_context": "deliveryContext",
    "spawned_by": "spawnedBy",
    "spawn_depth": "spawnDepth",
    "sandboxed": "sandboxed",
    "spawn": "spawn",
}


class SessionChanges:
    """Makes the session of a key once, however many ask for it, and lets one at a time change what a key stands for.

    `on_put_away(session)` is told of a session whose transcript went to the archive.
    """

    def __init__(self, store: SessionStore, on_put_away: Callable[[Session], None]) -> None:
        self.store, self.on_put_away = store, on_put_away
        self._under_way: dict[str, trio.Lock] = {}

    async def ensure(self, key: str, agent_id: str, *, cwd: str, parts: Sequence[Part] = ()) -> tuple[Session, bool]:
        """The session of the key, and whether it was made just now (with `parts` after its header)."""
        found = self.store.catalog.by_key.get(key)
        if found is not None and found.leaving is None:
            return found, False
        async with self.alone(key):
            await self.store.standing.wait_until_known(key)
            found = self.store.catalog.by_key.get(key)
            if found is not None:
                return found, False
            session, _ = await self.store.create(key, agent_id, parts, cwd=cwd)
            return session, True

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """While this lasts nobody else makes, resets or deletes the session of `key`."""
        lock = self._under_way.setdefault(key, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            # Released to one who waits it is locked again already, and theirs to take away.
            if not lock.locked() and self._under_way.get(key) is lock:
                del self._under_way[key]


async def current_session(catalog: Catalog, session: Session) -> Session:
    """The session that now stands for the key of `session`: itself, or the one that a reset put in its place.

    Waits while a reset or a delete is under way. Whoever has something for a key asks here, and does not await
    between this and handing it to the store: so it goes to the old session or to the new one. NotFound where the key
    stands for nothing any more.
    """
    while session.leaving is not None or session.archived:
        if session.leaving is not None:
            await session.leaving.wait()
            continue
        heir = catalog.by_key.get(session.key)
        if heir is None:
            raise no_such_session(session.key)
        session = heir
    return session


async def reset(
    births: SessionChanges,
    feed: TranscriptFeed,
    session: Session,
    stop: Stop,
    *,
    due: Callable[[Session], bool] | None = None,
) -> tuple[Session, bool]:
    """A new session for the key, and whether the old transcript went to the archive. Its runs are aborted first.

    The new transcript is there before the old one moves: whenever this is cut off, the key has one session with its
    settings, and an older transcript counts as its history. With `due`, asked once nobody else can change the key,
    a session that is not due stays as it is.
    """
    store = births.store
    async with births.alone(session.key):
        old = store.catalog.by_key.get(session.key)
        if old is None:
            raise no_such_session(session.key)
        if due is not None and not due(old):
            return old, False
        with _mark_leaving(old):
            await stop(old)
            # From here on to the end: a caller who goes away leaves no half of it.
            with trio.CancelScope(shield=True):
                new = await _successor(store, old)
                # Nobody has had a chance yet to write to the new session: followers learn of it before its messages.
                feed.session_replaced(new)
                archived = await _put_away(store, new.key)
    births.on_put_away(old)
    return new, archived


async def delete(births: SessionChanges, feed: TranscriptFeed, session: Session, stop: Stop) -> bool:
    """Take the key's session away; whether a transcript went to the archive. Its runs are aborted first."""
    store = births.store
    async with births.alone(session.key):
        live = store.catalog.by_key.get(session.key)
        if live is None:
            raise no_such_session(session.key)
        with _mark_leaving(live):
            await stop(live)
            with trio.CancelScope(shield=True):
                # Else the newest of them would be the key's session again.
                await _put_away(store, live.key)
                # Told while the catalog still knows the session: who may see it depends on its lineage.
                archived = await store.archive(live, on_leave=lambda: feed.publish(live, "delete", None, deleted=True))
                feed.changed.set()
    births.on_put_away(live)
    return archived


@contextmanager
def _mark_leaving(session: Session) -> Iterator[None]:
    over = session.leaving = trio.Event()
    try:
        yield
    finally:
        session.leaving = None
        over.set()


async def _successor(store: SessionStore, old: Session) -> Session:
    entry = old.entry
    data = settings_kept_by_reset(entry)
    new, _ = await store.create(
        old.key,
        agent_of(old.key),
        [Custom(ENTRY, data)] if data else [],
        cwd=entry.cwd or "",
        spawned_by=entry.spawned_by,
        # The newest header has the key, also where the clock went back.
        after_ms=entry.created_at,
        announce=False,
    )
    return new


async def _put_away(store: SessionStore, key: str) -> bool:
    """Archive the older transcripts of a key; whether all of them were moved."""
    done = False
    for older in store.catalog.superseded_sessions(key):
        try:
            done = await store.archive(older)
        except StorageError as error:
            # It counts as archived already, where it lies; the next reset or delete of the key tries again.
            log.warning("transcript not moved to the archive", session_key=key, reason=error.message)
            done = False
    return done


def settings_kept_by_reset(entry: Entry) -> dict[str, Any]:
    """The data of the entry record with which a session begins after a reset."""
    data = {wire: value for name, wire in _KEPT.items() if (value := getattr(entry, name)) is not None}
    if entry.model_override is not None:
        data["model"] = entry.model_override
    return data
