"""Events without a file, and subscribers of them."""

from __future__ import annotations

from typing import Any

from support.followed_store import Reader, sees_all

from sessiond.events.bus import EventBus
from sessiond.events.subscription import Subscription
from sessiond.model.entry import Entry
from sessiond.model.event import ChangedEvent, MessageEvent

KEY, OTHER = "agent:main:a", "agent:main:b"


def message_event(seq: int, key: str = KEY, session_id: str = "s", text: bytes | None = None) -> MessageEvent:
    body = text if text is not None else b'{"role":"user","content":"%d"}' % seq
    return MessageEvent(key, session_id, f"m{seq}", seq, f"c{seq}", body, 100 * seq, 100 * seq + 100, seq - 1)


def changed_event(seq: int, key: str = KEY, *, deleted: bool = False) -> ChangedEvent:
    entry = None if deleted else Entry(session_id="s", message_count=seq)
    return ChangedEvent(key, "s", "delete" if deleted else "message", None, entry, 100 * seq + 100, seq)


def follower(bus: EventBus, *keys: str | None, limit: int = 4, sees: Any = sees_all) -> tuple[Subscription, Reader]:
    reader = Reader()
    subscription = Subscription(reader, limit=limit)
    for key in keys:
        bus.follow(subscription, key, sees)
    return subscription, reader
