"""The events on the bus: frozen structs, encoded once for all subscribers. Source: protocol.md, "Events".

`spawned_by` is the key of the session's spawner, on which its visibility depends, even after its deletion.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sessiond.model.entry import Entry
from sessiond.model.question import Question, QuestionAnswer

Phase = Literal["message", "start", "end", "error", "create", "patch", "reset", "delete", "archive"]
ResyncReason = Literal["lagged", "rewritten", "reset"]


class MessageEvent(msgspec.Struct, frozen=True, gc=False):
    """A message record was appended, or is replayed. `cursor` is the place behind it; the offsets are its line's.

    A message in several lines has an event for each, with what it has by then; `messages_before` is how many messages
    stand before the line. `timestamp_ms` is the time of the message, as in history.
    """

    key: str
    session_id: str
    message_id: str | None
    seq: int
    cursor: str
    message: bytes
    begin_offset: int
    end_offset: int
    messages_before: int
    spawned_by: str | None = None
    timestamp_ms: int | None = None


class ChangedEvent(msgspec.Struct, frozen=True):
    """A session's entry changed. `entry` is None after a delete.

    Subscribers that get it have had the `seq` messages up to `end_offset`.
    """

    key: str
    session_id: str
    phase: Phase
    reason: str | None
    entry: Entry | None
    end_offset: int = 0
    seq: int = 0
    spawned_by: str | None = None


# Those that carry a piece of a text.
TEXT_METHODS = ("session.delta", "session.thought")


class LiveEvent(msgspec.Struct, frozen=True):
    """`session.tool`, `session.delta` or `session.thought`: live, never stored.

    `fields` are its params besides the session key.

    `previous_text` is the end of the text before a delta, because a secret may be split between two deltas. `size` is
    the approximate size of the fields in bytes.
    """

    key: str
    method: Literal["session.tool", "session.delta", "session.thought"]
    fields: dict[str, Any]
    spawned_by: str | None = None
    previous_text: str = ""
    size: int = 0


class ResyncEvent(msgspec.Struct, frozen=True):
    """The subscriber has to read again from `cursor` on; the daemon sends every record from there on."""

    key: str
    session_id: str
    reason: ResyncReason
    cursor: str
    spawned_by: str | None = None


class QuestionAsked(msgspec.Struct, frozen=True):
    """A question was asked in a session. `key` is that of the session that asks."""

    key: str
    question: Question
    spawned_by: str | None = None


class QuestionClosed(msgspec.Struct, frozen=True):
    """A question was answered, has expired or was withdrawn."""

    key: str
    answer: QuestionAnswer
    spawned_by: str | None = None


class MachineChanged(msgspec.Struct, frozen=True):
    """Another machine is reached again, or not any more: one event, and not one of each of its sessions, whose rows say
    it from now on. `key` is how the keys of its sessions begin.
    """

    key: str
    machine: str
    away_since: int | None
    spawned_by: str | None = None


Event = MessageEvent | ChangedEvent | LiveEvent | ResyncEvent | QuestionAsked | QuestionClosed | MachineChanged
# They go to whoever may see that there is such a session, and a subscriber that is behind gets them too: they are in no
# replay of messages.
UNREPLAYED_EVENTS = (QuestionAsked, QuestionClosed, MachineChanged)

# The overhead of an event besides its content.
_FRAME_BYTES = 400


def approximate_bytes(event: Event) -> int:
    """The approximate size of a queued event in bytes."""
    match event:
        case MessageEvent():
            return len(event.message) + _FRAME_BYTES
        case LiveEvent():
            return event.size + _FRAME_BYTES
        case QuestionAsked(question=question):
            # Titles and labels are short, and there are few.
            return len(question.detail or "") + 10 * _FRAME_BYTES
        case _:
            return 1000
