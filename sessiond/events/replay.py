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
from sessiond.events.subscription import FollowPlace, Lag, Subscription
from sessiond.model.entry import FileFacts
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
        elif (key := subscription.next_lagging()) is not None:
            await _read_on(subscription, store, key)
        else:
            await subscription.idle()


def place_of(store: SessionStore, session: Session, cursor: str, field: str = "$.cursor") -> FollowPlace:
    """Where to read on for one who shows this cursor of the key of `session`, perhaps from before a reset.

    InvalidParams where no session of the key ever gave it.
    """
    found, position = store.locate(session, cursor, field)
    if position is None:
        return FollowPlace(found.session_id, 0, 0, "rewritten")
    return FollowPlace(found.session_id, position.offset, position.seq)


async def _read_on(subscription: Subscription, store: SessionStore, key: str) -> None:
    """One page of a session in which the subscriber is behind."""
    lag = subscription.behind[key]
    session = _session_at(store, key, lag.place)
    if session is None:
        _go_over(subscription, store, key, None)
    elif not subscription.reads(key, session.entry.spawned_by):
        # Told of changes only, or of nothing any more: there is nothing to read for it.
        subscription.end_lag(key)
    else:
        if lag.place.reason is not None:
            cursor = store.cursor(session, lag.place.offset, lag.place.seq)
            subscription.sink.write(ResyncEvent(key, session.session_id, lag.place.reason, cursor))
            lag.place = replace(lag.place, reason=None)
        await _write_page(subscription, store, session, lag)
        if _is_at_end(subscription, key, lag, session):
            await _end(subscription, store, session, lag)


def _is_at_end(subscription: Subscription, key: str, lag: Lag, session: Session) -> bool:
    return subscription.behind.get(key) is lag and lag.place.offset >= session.entry.file.folded_to


async def _end(subscription: Subscription, store: SessionStore, session: Session, lag: Lag) -> None:
    """The subscriber has had what is known of the session: it follows live, or goes over to the next one of the key."""
    key = session.key
    if store.catalog.by_key.get(key) is session:
        # No await between the look at the end and this: the next event of this session is offered live.
        subscription.end_lag(key)
        return
    lag.held = True  # until whoever moves the file or writes to it is done, of which the feed tells
    if session.in_flight or (session.leaving is not None and not session.folder.archived):
        return
    try:
        size: int | None = await store.read(session, _size_of)
    except StorageError:
        size = None  # gone, or no descriptor: its readers have had what there was to read
        if not _is_gone(session):
            return
    if size is not None and size != session.entry.file.bytes:
        store.read_new(session)  # a stranger wrote to it right before it was moved, or right after
    if _is_at_end(subscription, key, lag, session) and size in (None, session.entry.file.bytes):
        lag.held = False
        _go_over(subscription, store, key, session)


def _session_at(store: SessionStore, key: str, place: FollowPlace) -> Session | None:
    """The session in which a place is: the key's own, or one that was the key's before it. Never another key's."""
    live = store.catalog.by_key.get(key)
    if live is not None and live.session_id == place.session_id:
        return live
    return next((older for older in store.catalog.older(key) if older.session_id == place.session_id), None)


def _go_over(subscription: Subscription, store: SessionStore, key: str, done: Session | None) -> None:
    """There is no more to read in one session of the key: go over to the next one, if there is one."""
    following = store.catalog.by_key.get(key)
    if done is not None and following is not done:
        # The key may have been reset more than once in the meantime.
        older = store.catalog.older(key)
        after = older[older.index(done) + 1 :] if done in older else []
        following = next(iter(after), following)
    if following is None or following is done:
        subscription.end_lag(key)
    else:
        subscription.go_over(key, FollowPlace(following.session_id, 0, 0, "reset"))


class _Page(NamedTuple):
    lines: list[tuple[transcript.Line, int]]
    end: int


async def _write_page(subscription: Subscription, store: SessionStore, session: Session, lag: Lag) -> None:
    key, facts, begin = session.key, session.entry.file, lag.place.offset
    if begin >= facts.folded_to:
        return
    lag.held = True
    try:
        page: _Page | None = await store.read(session, _read_page, facts, begin, store.record_limit)
    except StorageError:
        page = None
    if subscription.behind.get(key) is not lag:
        return  # it was told to read from elsewhere, or not at all
    if page is None or page.end == begin:
        # Moved, removed or written anew, and the feed has not said so yet; or there is no descriptor to be had.
        store.read_new(session)
        return
    lag.held = False
    for line, check in page.lines:
        if line.record is not None and line.record.message is not None:
            event = message_event(store, session, line, lag.place.seq + 1, check)
            if subscription.wants(event):
                await subscription.sink.room()
                if subscription.behind.get(key) is not lag:
                    return
                subscription.sink.write(event)
            lag.place = FollowPlace(session.session_id, line.end, event.seq)
    lag.place = FollowPlace(session.session_id, page.end, lag.place.seq)
    await trio.lowlevel.checkpoint()


def _read_page(fd: int, facts: FileFacts, offset: int, record_limit: int) -> _Page | None:
    """Some of the lines from a place on, each with the checksum behind it; None where the file is another one than the
    feed has read.
    """
    lines: list[tuple[transcript.Line, int]] = []
    tail = Tail(offset, record_limit)
    end = None
    for line in transcript.read_tail(fd, tail, stop=facts.folded_to):
        lines.append((line, transcript.checksum(fd, line.end)))
        if len(lines) >= PAGE_LINES or line.end - offset >= PAGE_BYTES:
            end = line.end
            break
    # Afterwards: what was read is what the feed has read, or it is not used.
    if os.fstat(fd).st_ino != facts.inode or transcript.checksum(fd, facts.folded_to) != facts.check:
        return None
    return _Page(lines, tail.whole if end is None else end) if transcript.boundary(fd, offset) else None


def _size_of(fd: int) -> int:
    return os.fstat(fd).st_size


def _is_gone(session: Session) -> bool:
    try:
        os.stat(session.file_name, dir_fd=session.folder.fd, follow_symlinks=False)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def message_event(
    store: SessionStore, session: Session, line: transcript.Line, seq: int, check: int | None = None
) -> MessageEvent:
    """The event of one message line; `check` is `transcript.checksum` behind it."""
    record = line.record
    assert record is not None and record.message is not None
    return MessageEvent(
        key=session.key,
        session_id=session.session_id,
        message_id=record.id,
        seq=seq,
        cursor=store.cursor(session, line.end, seq, check),
        message=record.message,
        before=line.offset,
        after=line.end,
        spawned_by=session.entry.spawned_by,
    )
