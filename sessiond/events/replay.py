"""Bring a subscriber up from where it is to now, from the file, and keep it going. One pump a subscription.

A cursor, a lagging reader, a file that was rewritten and a session that was reset are the same thing here: read on from
a place. Knows the store and the subscription. Does not know connections or codecs.
"""

from __future__ import annotations

import msgspec

from sessiond.errors import StorageError
from sessiond.events.bus import Place, Subscription
from sessiond.model.event import ChangedEvent, MessageEvent, ResyncEvent
from sessiond.store import transcript
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore

# A page of a replay: enough to be quick, little enough that a reader in between is not kept waiting.
PAGE_MESSAGES = 256
PAGE_BYTES = 512 * 1024


async def pump(subscription: Subscription, store: SessionStore) -> None:
    """Write what the subscription could not write at once. Runs until cancelled; sleeps while there is nothing."""
    while True:
        while subscription.queue or subscription.behind:
            await subscription.sink.room()
            if subscription.queue:
                event = subscription.take()
                # Asked again: rights may have gone while it was waiting.
                if subscription.wants(event):
                    subscription.sink.write(event)
            elif subscription.behind:
                await _catch_up(subscription, store, next(iter(subscription.behind)))
        await subscription.wake.wait()
        # No await since the last look at the queue, so nothing can be missed between.
        subscription.wake = type(subscription.wake)()


async def _catch_up(subscription: Subscription, store: SessionStore, key: str) -> None:
    place = subscription.behind[key]
    session = store.catalog.by_key.get(key)
    if session is None:
        subscription.behind.pop(key, None)
        return
    if place.session_id != session.session_id:
        place = Place(session.session_id, 0, 0, "reset")
    told = place.reason
    if told is not None:
        cursor = store.cursor(session, place.offset, place.seq)
        place = msgspec.structs.replace(place, reason=None)
        subscription.behind[key] = place
        resync = ResyncEvent(key, session.session_id, told, cursor)
        if subscription.wants(resync):
            subscription.sink.write(resync)
    await _read_on(subscription, store, session, place)
    if told is not None and subscription.everything:
        subscription.offer(_state(session))


async def _read_on(subscription: Subscription, store: SessionStore, session: Session, place: Place) -> None:
    key = session.key
    while True:
        try:
            page = await store.read(session, _read_page, place.offset, session.entry.file.folded_to, store.record_limit)
        except StorageError:
            # The file was moved or removed while it was read; the feed knows what became of the session.
            if subscription.behind.get(key) is place:
                subscription.behind.pop(key, None)
            return
        for line in page:
            if subscription.behind.get(key) is not place:
                return  # it was told to read from elsewhere, or not at all
            record = line.record
            seq = place.seq + (record is not None and record.message is not None)
            if record is not None and record.message is not None:
                event = message_event(store, session, line, seq)
                if subscription.wants(event):
                    await subscription.sink.room()
                    if subscription.behind.get(key) is not place:
                        return
                    subscription.sink.write(event)
            place = Place(place.session_id, line.end, seq)
            subscription.behind[key] = place
        if subscription.behind.get(key) is not place:
            return
        if not page or place.offset >= session.entry.file.folded_to:
            # No await between this look and the removal: the next event of this session is offered live.
            subscription.behind.pop(key, None)
            return


def _read_page(fd: int, offset: int, stop: int, record_limit: int) -> list[transcript.Line]:
    page: list[transcript.Line] = []
    for line in transcript.read_lines(fd, offset, record_limit, stop=stop):
        page.append(line)
        if len(page) >= PAGE_MESSAGES or line.end - offset >= PAGE_BYTES:
            break
    return page


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
    )


def _state(session: Session) -> ChangedEvent:
    return ChangedEvent(session.key, session.session_id, "patch", "resync", session.entry, session.entry.file.folded_to)
