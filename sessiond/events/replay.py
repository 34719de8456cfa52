"""Bring a subscriber up from where it is to now, from the file, and keep it going. One pump a subscription.

A cursor, a lagging reader, a file that was rewritten and a session that was reset are the same thing here: read on from
a place. Knows the store and the subscription. Does not know connections or codecs.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import trio
from msgspec.structs import replace

from sessiond.errors import StorageError
from sessiond.events.subscription import Lag, Place, Subscription
from sessiond.model.event import MessageEvent, ResyncEvent
from sessiond.store import transcript
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore
from sessiond.store.tail import Tail

# A page of a replay: enough to be quick, little enough that what happens meanwhile is not kept waiting.
PAGE_LINES = 256
PAGE_BYTES = 256 * 1024


async def pump(subscription: Subscription, store: SessionStore) -> None:
    """Write what the subscription could not write at once. Runs until cancelled; sleeps while there is nothing."""
    while True:
        await subscription.sink.room()
        if subscription.queue:
            event = subscription.take()
            # Asked again: rights may have gone while it was waiting.
            if subscription.wants(event):
                subscription.sink.write(event)
        elif (key := subscription.lagging()) is not None:
            await _read_on(subscription, store, key)
        else:
            await subscription.idle()


async def _read_on(subscription: Subscription, store: SessionStore, key: str) -> None:
    """One page of a session in which the subscriber is behind."""
    lag = subscription.behind[key]
    session = _session_at(store, key, lag.place)
    if session is None:
        _go_over(subscription, store, key, lag, None)
    elif not subscription.reads(key, session.entry.spawned_by):
        # Told of changes only, or of nothing any more: there is nothing to read for it.
        subscription.caught_up(key)
    else:
        if lag.place.reason is not None:
            cursor = store.cursor(session, lag.place.offset, lag.place.seq)
            subscription.sink.write(ResyncEvent(key, session.session_id, lag.place.reason, cursor))
            lag.place = replace(lag.place, reason=None)
        await _write_page(subscription, store, session, lag)
        # No await between this look and the end of the lag: the next event of this session is offered live.
        if subscription.behind.get(key) is lag and lag.place.offset >= session.entry.file.folded_to:
            _go_over(subscription, store, key, lag, session)


def _session_at(store: SessionStore, key: str, place: Place) -> Session | None:
    """The session in which a place is: the key's own, or the one that was the key's before it. Never another key's."""
    live = store.catalog.by_key.get(key)
    if live is not None and live.session_id == place.session_id:
        return live
    older = store.catalog.by_id.get(place.session_id)
    return older if older is not None and older.key == key else None


def _go_over(subscription: Subscription, store: SessionStore, key: str, lag: Lag, done: Session | None) -> None:
    """There is no more to read in one session of the key: go over to the next one, if there is one."""
    live = store.catalog.by_key.get(key)
    following = live
    if done is not None and live is not done:
        # The key may have been reset more than once in the meantime.
        newer = (other for other in store.catalog.by_id.values() if other.key == key and _age(other) > _age(done))
        following = min(newer, key=_age, default=live)
    if following is None or following is done:
        subscription.caught_up(key)
    else:
        lag.place = Place(following.session_id, 0, 0, "reset")


def _age(session: Session) -> tuple[int, str]:
    return session.entry.created_at, session.session_id


class _Page(NamedTuple):
    lines: list[transcript.Line]
    end: int


async def _write_page(subscription: Subscription, store: SessionStore, session: Session, lag: Lag) -> None:
    key, facts, begin = session.key, session.entry.file, lag.place.offset
    if begin >= facts.folded_to:
        return
    try:
        page: _Page | None = await store.read(
            session, _read_page, facts.inode, begin, facts.folded_to, store.record_limit
        )
    except StorageError:
        page = None
    if subscription.behind.get(key) is not lag:
        return  # it was told to read from elsewhere, or not at all
    if page is None or page.end == begin:
        # Moved, removed or written anew, and the feed has not said so yet; or there is no descriptor to be had.
        lag.held = True
        return
    for line in page.lines:
        if line.record is not None and line.record.message is not None:
            event = message_event(store, session, line, lag.place.seq + 1)
            if subscription.wants(event):
                await subscription.sink.room()
                if subscription.behind.get(key) is not lag:
                    return
                subscription.sink.write(event)
            lag.place = Place(session.session_id, line.end, event.seq)
    lag.place = Place(session.session_id, page.end, lag.place.seq)
    await trio.lowlevel.checkpoint()


def _read_page(fd: int, inode: int, offset: int, stop: int, record_limit: int) -> _Page | None:
    """Some of the lines between two places; None where the file is another one than the feed has read."""
    if os.fstat(fd).st_ino != inode or not transcript.boundary(fd, offset):
        return None
    lines: list[transcript.Line] = []
    tail = Tail(offset, record_limit)
    for line in transcript.read_tail(fd, tail, stop=stop):
        lines.append(line)
        if len(lines) >= PAGE_LINES or line.end - offset >= PAGE_BYTES:
            return _Page(lines, line.end)
    return _Page(lines, tail.whole)


def message_event(store: SessionStore, session: Session, line: transcript.Line, seq: int) -> MessageEvent:
    """The event of one message line."""
    record = line.record
    assert record is not None and record.message is not None
    return MessageEvent(
        key=session.key,
        session_id=session.session_id,
        message_id=record.id,
        seq=seq,
        cursor=store.cursor(session, line.end, seq),
        message=record.message,
        before=line.offset,
        after=line.end,
        spawned_by=session.entry.spawned_by,
    )
