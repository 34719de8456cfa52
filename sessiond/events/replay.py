"""Replay transcripts to a subscriber from its place up to now, then write its queue. One pump per subscription.

A cursor, a slow reader, a rewritten file and a reset session are all handled the same way: read on from a place. Knows
the store and the subscription. Does not know connections or codecs.
"""

from __future__ import annotations

import os

import trio
from msgspec.structs import replace

from sessiond.errors import StorageError
from sessiond.events.replay_page import ReplayPage, read_page
from sessiond.events.subscription import FollowPlace, Lag, Subscription
from sessiond.model.event import MessageEvent, ResyncEvent
from sessiond.store import transcript
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore


async def pump(subscription: Subscription, store: SessionStore) -> None:
    """Write what the subscription could not write at once. Runs until cancelled; sleeps while there is no work."""
    while True:
        await subscription.sink.room()
        if subscription.queue:
            event = subscription.take()
            # Checked again, because permissions may have changed while the event was queued.
            if subscription.wants(event):
                subscription.sink.write(event)
        elif (key := subscription.next_lagging()) is not None:
            await _replay_page(subscription, store, key)
        else:
            await subscription.wait_work()


def place_of(store: SessionStore, session: Session, cursor: str, field: str = "$.cursor") -> FollowPlace:
    """The place of a cursor of the key of `session`. It may be from an earlier session of the key, before a reset.

    InvalidParams where it is a cursor of no session of this key.
    """
    found, position = store.locate(session, cursor, field)
    if position is None:
        return FollowPlace(found.session_id, 0, 0, "rewritten")
    return FollowPlace(found.session_id, position.offset, position.seq)


async def _replay_page(subscription: Subscription, store: SessionStore, key: str) -> None:
    """Write one page of a session in which the subscriber lags."""
    lag = subscription.behind[key]
    session = _session_at(store, key, lag.place)
    if session is None:
        _continue_in_next(subscription, store, key, None)
    elif not subscription.reads(key, session.entry.spawned_by):
        # It gets no messages of this session (only changes, or nothing any more), so there is nothing to replay.
        subscription.end_lag(key)
    else:
        if lag.place.reason is not None:
            cursor = store.cursor(session, lag.place.offset, lag.place.seq)
            subscription.sink.write(ResyncEvent(key, session.session_id, lag.place.reason, cursor))
            lag.place = replace(lag.place, reason=None)
        await _write_page(subscription, store, session, lag)
        if _is_at_end(subscription, key, lag, session):
            await _finish_session(subscription, store, session, lag)


def _is_at_end(subscription: Subscription, key: str, lag: Lag, session: Session) -> bool:
    return subscription.behind.get(key) is lag and lag.place.offset >= session.entry.file.folded_to


async def _finish_session(subscription: Subscription, store: SessionStore, session: Session, lag: Lag) -> None:
    """The subscriber has had all that was read of the session: follow it live, or go on with the key's next session."""
    key = session.key
    if store.catalog.by_key.get(key) is session:
        # There was no await since the check for the end, so the next event of this session is offered live.
        subscription.end_lag(key)
        return
    lag.waits_for_file = True  # until the file was moved or written; the feed then wakes the subscription
    if session.in_flight or (session.leaving is not None and not session.folder.archived):
        return
    try:
        size: int | None = await store.read(session, _size_of)
    except StorageError:
        size = None  # gone, or no free descriptor
        if not _is_file_gone(session):
            return
    if size is not None and size != session.entry.file.bytes:
        store.read_new(session)  # another program appended right before or after the file was archived
    if _is_at_end(subscription, key, lag, session) and size in (None, session.entry.file.bytes):
        lag.waits_for_file = False
        _continue_in_next(subscription, store, key, session)


def _session_at(store: SessionStore, key: str, place: FollowPlace) -> Session | None:
    """The session of a place: the current one of the key or an earlier one, never one of another key."""
    live = store.catalog.by_key.get(key)
    if live is not None and live.session_id == place.session_id:
        return live
    return next((older for older in store.catalog.older(key) if older.session_id == place.session_id), None)


def _continue_in_next(subscription: Subscription, store: SessionStore, key: str, done: Session | None) -> None:
    """One session of the key was read to its end: read on in the key's next session, if there is one."""
    following = store.catalog.by_key.get(key)
    if done is not None and following is not done:
        # The key may have been reset more than once meanwhile, so the next session need not be the current one.
        older = store.catalog.older(key)
        after = older[older.index(done) + 1 :] if done in older else []
        following = next(iter(after), following)
    if following is None or following is done:
        subscription.end_lag(key)
    else:
        subscription.continue_in(key, FollowPlace(following.session_id, 0, 0, "reset"))


async def _write_page(subscription: Subscription, store: SessionStore, session: Session, lag: Lag) -> None:
    key, facts, begin = session.key, session.entry.file, lag.place.offset
    if begin >= facts.folded_to:
        return
    lag.waits_for_file = True
    try:
        page: ReplayPage | None = await store.read(
            session, read_page, facts, lag.place, store.record_limit, session.dialect
        )
    except StorageError:
        page = None
    if subscription.behind.get(key) is not lag:
        return  # meanwhile its place changed, or it stopped following
    if page is not None and page.is_cut:
        lag.place, lag.waits_for_file = FollowPlace(session.session_id, 0, 0, "rewritten"), False
        return
    if page is None or (page.end == begin and not page.lines):
        # The file was moved, removed or rewritten, which the feed has not seen yet; or there is no free descriptor.
        store.read_new(session)
        return
    lag.waits_for_file = False
    for item in page.lines:
        if item.is_message:
            event = message_event(store, session, item.line, item.total, item.check, part_of=item.part_of)
            if subscription.wants(event):
                await subscription.sink.room()
                if subscription.behind.get(key) is not lag:
                    return
                subscription.sink.write(event)
            lag.place = FollowPlace(session.session_id, item.line.end, item.total)
    lag.place = FollowPlace(session.session_id, page.end, lag.place.seq)
    await trio.lowlevel.checkpoint()


def _size_of(fd: int) -> int:
    return os.fstat(fd).st_size


def _is_file_gone(session: Session) -> bool:
    try:
        session.folder.status_of(session.file_name)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def message_event(
    store: SessionStore,
    session: Session,
    line: transcript.Line,
    count: int,
    check: int | None = None,
    *,
    part_of: int = 0,
) -> MessageEvent:
    """The event of one message line, up to whose end there are `count` messages. `check` is `transcript.checksum`
    there, computed where it is None. `part_of` is the message's number if the line is a later part of it.
    """
    record = line.record
    assert record is not None and record.message is not None
    return MessageEvent(
        key=session.key,
        session_id=session.session_id,
        message_id=record.shown_id,
        seq=part_of or count,
        cursor=store.cursor(session, line.end, count, check),
        message=record.message,
        begin_offset=line.offset,
        end_offset=line.end,
        messages_before=count if part_of else count - 1,
        spawned_by=session.entry.spawned_by,
        timestamp_ms=record.timestamp_ms,
    )
