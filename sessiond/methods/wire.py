"""Events on the wire: their names, params and frames. Knows events and rows; knows no subscription.

An event is encoded once for all connections that get the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from sessiond.clock import iso_ms
from sessiond.methods.question_view import QuestionSight, as_fields, view_answer, view_question
from sessiond.model.event import (
    TEXT_METHODS,
    ChangedEvent,
    Event,
    LiveEvent,
    MachineChanged,
    MessageEvent,
    QuestionAsked,
    QuestionClosed,
    ResyncEvent,
)
from sessiond.model.lax import decode_any, decoder_of
from sessiond.model.row import Row, row_of, with_texts
from sessiond.policy.redact import Patterns, mask_message
from sessiond.policy.secrets import mask_next, mask_secrets, mask_title
from sessiond.policy.visibility import Sight
from sessiond.sessions.listing import away_since, hidden_links, show_attended, without_links
from sessiond.store.store import SessionStore


class _UsageOnly(msgspec.Struct, frozen=True, gc=False):
    usage: msgspec.Raw = msgspec.Raw()


_decode_usage = decoder_of(_UsageOnly).decode


class EventWire(Protocol):
    """What the frame depends on: the codec, the agent whose main session is shown as `main`, whether the caller may
    read messages, and questions, and secrets only masked, and which sessions it may see.
    """

    @property
    def codec(self) -> str: ...
    @property
    def agent_id(self) -> str | None: ...
    @property
    def masks(self) -> bool: ...
    @property
    def reads(self) -> bool: ...
    @property
    def reads_questions(self) -> bool: ...
    @property
    def sight(self) -> Sight: ...
    def encode_notification(self, method: str, params: Any) -> bytes: ...


class Encoder:
    """Caches the frames of the newest event, by codec and by the agent whose main session is shown as `main`."""

    def __init__(self, store: SessionStore, patterns: Callable[[], Patterns]) -> None:
        self._store, self._patterns = store, patterns
        self._event: Event | None = None
        self._frames: dict[tuple[str, str | None, bool, bool, bool, tuple[str, ...]], bytes] = {}

    def frame(self, event: Event, wire: EventWire) -> bytes:
        """The frame of the event for this connection."""
        if event is not self._event:
            self._event = event
            self._frames.clear()
        agent = wire.agent_id if isinstance(event, ChangedEvent) else None
        hidden = hidden_links_in(self._store, event, wire.sight)
        which = (wire.codec, agent, wire.masks, wire.reads, wire.reads_questions, hidden)
        frame = self._frames.get(which)
        if frame is None:
            masks = self._patterns() if wire.masks else None
            described = describe_event(
                self._store,
                event,
                agent,
                masks,
                titled=wire.reads,
                with_questions=wire.reads_questions,
                hidden=hidden,
            )
            frame = wire.encode_notification(*described)
            self._frames[which] = frame
        return frame


def hidden_links_in(store: SessionStore, event: Event, sight: Sight) -> tuple[str, ...]:
    """The fields of the event's row that a caller with this sight may not see."""
    entry = event.entry if isinstance(event, ChangedEvent) else None
    return hidden_links(store, entry, sight) if entry is not None else ()


def describe_event(
    store: SessionStore,
    event: Event,
    agent: str | None,
    masks: Patterns | None,
    *,
    titled: bool = True,
    with_questions: bool = True,
    hidden: tuple[str, ...] = (),
) -> tuple[str, dict[str, Any]]:
    """The notification's method and params, secrets masked with `masks`.

    Without `titled` rows have no title, without `with_questions` questions have no texts. `hidden` are fields of a row
    that the caller may not see, from `hidden_links`.
    Source: protocol.md, "Events".
    """
    match event:
        case MessageEvent():
            return "session.message", message_params(event, masks)
        case ChangedEvent():
            params: dict[str, Any] = {"sessionKey": event.key, "phase": event.phase}
            if event.reason is not None:
                params["reason"] = event.reason
            if event.entry is not None:
                row = without_links(_row(store, event, agent), hidden)
                params["row"] = readable_row(row, masks, titled=titled)
            return "sessions.changed", params
        case LiveEvent():
            fields = event.fields if masks is None else _mask_fields(event, masks)
            return event.method, {"sessionKey": event.key, **fields}
        case QuestionAsked():
            asked = view_question(event.key, event.question, None, QuestionSight(with_questions, masks))
            return "question.asked", {"sessionKey": event.key, "question": as_fields(asked)}
        case QuestionClosed():
            answer = as_fields(view_answer(event.answer, QuestionSight(with_questions, masks)))
            return "question.answered", {"sessionKey": event.key, "id": event.answer.question_id, "answer": answer}
        case MachineChanged():
            away = {} if event.away_since is None else {"awaySince": event.away_since}
            return "machine.changed", {"machine": event.machine, **away}
        case ResyncEvent():
            return "session.resync", {"sessionKey": event.key, "reason": event.reason, "cursor": event.cursor}


def message_params(event: MessageEvent, masks: Patterns | None) -> dict[str, Any]:
    """The params of `session.message`, which SSE sends too."""
    message = event.message if masks is None else mask_message(event.message, masks)[0]
    params: dict[str, Any] = {
        "sessionKey": event.key,
        "sessionId": event.session_id,
        "messageId": event.message_id,
        "seq": event.seq,
        "cursor": event.cursor,
        "message": msgspec.Raw(message),
    }
    if event.timestamp_ms is not None:
        params["timestamp"] = iso_ms(event.timestamp_ms)
    if b'"usage"' in event.message:
        usage = _decode_usage(event.message).usage
        if bytes(usage):
            params["usage"] = usage
    return params


def _mask_fields(event: LiveEvent, masks: Patterns) -> dict[str, Any]:
    if event.method in TEXT_METHODS:
        return {**event.fields, "text": mask_next(event.previous_text, event.fields["text"], masks)}
    raw, changed = mask_message(msgspec.json.encode(event.fields), masks)
    masked: dict[str, Any] = decode_any(raw) if changed else event.fields
    return masked


def readable_row(row: Row, masks: Patterns | None, *, titled: bool) -> Row:
    """The row with its texts masked, where there are `masks`; without `titled` none that is made of messages."""
    if titled and masks is None:
        return row
    return with_texts(
        row,
        titles=(lambda title: mask_title(title, masks) if masks is not None else title) if titled else lambda _: None,
        names=lambda name: mask_secrets(name, masks)[0] if masks is not None else name,
    )


def _row(store: SessionStore, event: ChangedEvent, agent: str | None) -> Row:
    assert event.entry is not None
    session = store.catalog.by_key.get(event.key)
    if session is None or session.session_id != event.session_id:
        session = store.catalog.by_id.get(event.session_id)
    row = row_of(
        event.key,
        event.entry,
        path=str(store.path / session.path) if session is not None else "",
        rules=store.rules,
        caller_agent=agent,
        # Left empty: which children are visible depends on the caller, and the row is encoded once for all.
        children=[],
        archived=session.archived if session is not None else True,
        away_since=away_since(store, event.key),
    )
    return show_attended(store, session, row) if session is not None and session.folder.source is not None else row
