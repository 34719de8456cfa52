"""The `sessions.changed` event of a record, for the session rows that subscribers show. Pure."""

from __future__ import annotations

import msgspec

from sessiond.events.subscription import FollowPlace
from sessiond.model import lax
from sessiond.model.event import ChangedEvent, Phase, QuestionAsked, QuestionClosed
from sessiond.model.question import read_answer, read_question
from sessiond.model.record import ANSWER, ENTRY, FINAL, HOOK, QUESTION, RUN, Record
from sessiond.store.catalog import Session
from sessiond.store.folded_steps import FoldedLine


class _RunNews(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    status: str = ""
    request: object = None


def end_place_of(session: Session) -> FollowPlace:
    """The place of a follower that has had everything read of the session so far."""
    return FollowPlace(session.session_id, session.entry.file.folded_to, session.entry.message_count)


def changed_event(session: Session, step: FoldedLine, phase: Phase, reason: str | None) -> ChangedEvent:
    """The event for one folded line, with the entry as it was after that line."""
    return ChangedEvent(
        key=session.key,
        session_id=session.session_id,
        phase=phase,
        reason=reason,
        entry=step.entry,
        end_offset=step.line.end,
        seq=step.seq,
        spawned_by=step.entry.spawned_by,
    )


def change_of(record: Record) -> tuple[Phase, str | None] | None:
    """The phase and reason of `sessions.changed` for a record, None where it changes no row."""
    if record.message is not None:
        return "message", None
    if record.custom_type == ENTRY or record.type in ("model_change", "thinking_level_change", "session_info"):
        return "patch", None
    if record.custom_type == QUESTION:
        return ("patch", "question") if read_question(record.data) is not None else None
    if record.custom_type == ANSWER:
        return ("patch", "answer") if read_answer(record.data) is not None else None
    if record.custom_type == HOOK:
        return "patch", "hook"
    if record.custom_type != RUN:
        return None
    data = lax.decode_fitting(record.data, _RunNews) or _RunNews()
    match data.status:
        case "running":
            return "start", None
        case "error" | "timeout":
            return "error", data.status
        case status if status in FINAL:
            return "end", status
        case "accepted" if isinstance(data.request, dict) and "message" in data.request:
            # The message is in this record only if the run has to wait; else it is in the next record.
            return "patch", "queued"
        case _:
            return None


def question_event(session: Session, record: Record) -> QuestionAsked | QuestionClosed | None:
    """The event of a record about a question, None for any other record."""
    entry = session.entry
    key = entry.attends or session.key
    if record.custom_type == QUESTION:
        asked = read_question(record.data)
        return QuestionAsked(key, asked, entry.spawned_by) if asked is not None else None
    if record.custom_type == ANSWER:
        answer = read_answer(record.data)
        return QuestionClosed(key, answer, entry.spawned_by) if answer is not None else None
    return None
