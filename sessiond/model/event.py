"""What happened, as the bus carries it: frozen facts, encoded once for all. Source: protocol.md, "Events".

`spawned_by` is the session's spawner: who may see a session depends on it, also when the session is gone.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sessiond.model.entry import Entry

Phase = Literal["message", "start", "end", "error", "create", "patch", "reset", "delete", "archive"]
ResyncReason = Literal["lagged", "rewritten", "reset"]


class MessageEvent(msgspec.Struct, frozen=True, gc=False):
    """A message record was appended, or is replayed. `cursor` is behind it; it stands between `before` and `after`."""

    key: str
    session_id: str
    message_id: str | None
    seq: int
    cursor: str
    message: bytes
    before: int
    after: int
    spawned_by: str | None = None


class ChangedEvent(msgspec.Struct, frozen=True):
    """A session's entry changed. `entry` is None after a delete.

    Who is told of it has been told of the `seq` messages up to `after`.
    """

    key: str
    session_id: str
    phase: Phase
    reason: str | None
    entry: Entry | None
    after: int = 0
    seq: int = 0
    spawned_by: str | None = None


class LiveEvent(msgspec.Struct, frozen=True):
    """`session.tool` or `session.delta`: live, never stored. `fields` are its params besides the session key.

    `before` is the end of the text that came before a delta: a secret may be cut in two by where a program stopped to
    write. `size` is about how many bytes the fields are.
    """

    key: str
    method: Literal["session.tool", "session.delta"]
    fields: dict[str, Any]
    spawned_by: str | None = None
    before: str = ""
    size: int = 0


class ResyncEvent(msgspec.Struct, frozen=True):
    """Read again from `cursor`; the daemon sends every record from there on."""

    key: str
    session_id: str
    reason: ResyncReason
    cursor: str
    spawned_by: str | None = None


Event = MessageEvent | ChangedEvent | LiveEvent | ResyncEvent

# What an event costs beside what it says.
_FRAME_BYTES = 400


def weight_of(event: Event) -> int:
    """About how many bytes an event is while it waits to be written."""
    match event:
        case MessageEvent():
            return len(event.message) + _FRAME_BYTES
        case LiveEvent():
            return event.size + _FRAME_BYTES
        case _:
            return 1000
