"""Create, reset and delete sessions, one change of a key at a time.

Knows the store and the feed. Does not know runs: callers of reset and delete pass in a function that stops them.
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

# The entry fields that a reset keeps, with their wire names: chosen settings, delivery targets, and lineage, without
# which a child would leave its tree and its sandbox. Messages, counts and costs stay with the old transcript.
# Source: compatibility.md, "The store".
_KEPT = {
    "thinking_level": "thinkingLevel",
    "verbose_level": "verboseLevel",
    "model_override": "modelOverride",
    "context_tokens": "contextTokens",
    "send_policy": "sendPolicy",
    "notify": "notify",
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
    "continues": "continues",
    "target": "target",
    "keeps_cwd": "keepsCwd",
}


def _do_nothing() -> None:
    pass


class SessionChanges:
    """Serializes the changes of a key: creating, resetting and deleting its session.

    `on_put_away(session)` is called with a session whose transcript was moved to the archive.
    """

    def __init__(self, store: SessionStore, on_put_away: Callable[[Session], None]) -> None:
        self.store, self.on_put_away = store, on_put_away
        self._under_way: dict[str, trio.Lock] = {}

    async def ensure(self, key: str, agent_id: str, *, cwd: str, parts: Sequence[Part] = ()) -> tuple[Session, bool]:
        """The session of the key, and whether it was created by this call (with `parts` after its header)."""
        found = self.store.catalog.by_key.get(key)
        if found is not None and found.leaving is None:
            return found, False
        async with self.exclusive(key):
            await self.store.presence.wait_until_known(key)
            found = self.store.catalog.by_key.get(key)
            if found is not None:
                return found, False
            session, _ = await self.store.create(key, agent_id, parts, cwd=cwd)
            return session, True

    @asynccontextmanager
    async def exclusive(self, key: str) -> AsyncIterator[None]:
        """While the context lasts, no other task creates, resets or deletes the session of `key`."""
        lock = self._under_way.setdefault(key, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            # If another task waited for the lock it holds it now, and removes it later.
            if not lock.locked() and self._under_way.get(key) is lock:
                del self._under_way[key]


async def current_session(catalog: Catalog, session: Session) -> Session:
    """The session that now has the key of `session`: itself, or the one that replaced it in a reset.

    Waits while a reset or a delete is under way. Call this before an append for a key, and do not await between it and
    the append: then the append goes either to the old session or to the new one. NotFound if the key has no session any
    more.
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
    session_changes: SessionChanges,
    feed: TranscriptFeed,
    session: Session,
    stop: Stop,
    *,
    due: Callable[[Session], bool] | None = None,
    on_marked: Callable[[], None] = _do_nothing,
) -> tuple[Session, bool]:
    """A new session for the key, and whether the old transcript was archived. Its runs are aborted first.

    The new transcript is created before the old one is moved: whenever a crash interrupts this, the key has one session
    with its settings. `due` is called once no other task can change the key; if it returns False, nothing is changed.
    `on_marked` is called when messages that are sent from then on wait for the new session.
    """
    store = session_changes.store
    async with session_changes.exclusive(session.key):
        old = store.catalog.by_key.get(session.key)
        if old is None:
            raise no_such_session(session.key)
        if due is not None and not due(old):
            return old, False
        with _mark_leaving(old):
            on_marked()
            await stop(old)
            # Its followers read it to its end before the new one.
            await store.committer.wait_written(old)
            # Shielded: a reset that has begun is completed even if the caller disconnects.
            with trio.CancelScope(shield=True):
                new = await _successor(store, old)
                # There was no await since its creation, so nothing was written to it yet: followers learn of the new
                # session before its first message.
                feed.session_replaced(new)
                archived = await _put_away(store, new.key)
    session_changes.on_put_away(old)
    return new, archived


async def delete(
    session_changes: SessionChanges,
    feed: TranscriptFeed,
    session: Session,
    stop: Stop,
    *,
    on_marked: Callable[[], None] = _do_nothing,
) -> bool:
    """Delete the key's session; whether its transcript was archived. Its runs are aborted first.

    `on_marked` is called when messages that are sent from then on wait for the end of this.
    """
    store = session_changes.store
    async with session_changes.exclusive(session.key):
        live = store.catalog.by_key.get(session.key)
        if live is None:
            raise no_such_session(session.key)
        with _mark_leaving(live):
            on_marked()
            await stop(live)
            await store.committer.wait_written(live)
            with trio.CancelScope(shield=True):
                # Archive the older transcripts first, or the newest of them would become the key's session again.
                await _put_away(store, live.key)
                # The event is published while the catalog still has the session, whose lineage decides who may see it.
                archived = await store.archive(live, on_leave=lambda: feed.publish(live, "delete", None, deleted=True))
                feed.changed.set()
    session_changes.on_put_away(live)
    return archived


@contextmanager
def _mark_leaving(session: Session) -> Iterator[None]:
    over = session.activity.leaving = trio.Event()
    try:
        yield
    finally:
        session.activity.leaving = None
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
        # The transcript with the newest header has the key; make sure of that even if the clock was set back.
        after_ms=entry.created_at,
        announce=False,
    )
    return new


async def _put_away(store: SessionStore, key: str) -> bool:
    """Archive the older transcripts of a key; whether the last of them was moved."""
    done = False
    for older in store.catalog.superseded_sessions(key):
        try:
            done = await store.archive(older)
        except StorageError as error:
            # It counts as archived although it was not moved; the next reset or delete of the key tries again.
            log.warning("transcript not moved to the archive", session_key=key, reason=error.message)
            done = False
    return done


def settings_kept_by_reset(entry: Entry) -> dict[str, Any]:
    """The data of the entry record that a reset puts into the new transcript."""
    data = {wire: value for name, wire in _KEPT.items() if (value := getattr(entry, name)) is not None}
    if entry.model_override is not None:
        data["model"] = entry.model_override
    return data
