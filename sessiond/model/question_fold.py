"""The part of the fold that concerns questions: entry x record -> entry. Pure. Source: store.md, "The fold"."""

from __future__ import annotations

from msgspec.structs import replace

from sessiond.model.entry import MAX_CLOSED_QUESTIONS, MAX_QUESTION_REFS, Entry, QuestionRef
from sessiond.model.question import read_answer, read_question


def fold_question(entry: Entry, data: bytes | None, offset: int) -> Entry:
    """The entry after a question. One whose id the entry has already, or one too many, is as if it were not there."""
    asked = read_question(data)
    if asked is None or is_full(entry) or any(ref.id == asked.id for ref in entry.questions):
        return entry
    ref = QuestionRef(
        id=asked.id,
        offset=offset,
        asked_at=asked.asked_at,
        title=asked.title,
        run_id=asked.run_id,
        expires_at=asked.expires_at,
    )
    return replace(entry, questions=(*entry.questions, ref))


def fold_answer(entry: Entry, data: bytes | None, offset: int) -> Entry:
    """The entry after the end of a question. The first one counts."""
    answer = read_answer(data)
    if answer is None:
        return entry
    refs = [
        replace(ref, closed=offset) if ref.id == answer.question_id and ref.closed is None else ref
        for ref in entry.questions
    ]
    return replace(entry, questions=_drop_oldest(refs))


def is_full(entry: Entry) -> bool:
    """Whether the entry has as many open questions as one may have."""
    return len(entry.questions) >= MAX_QUESTION_REFS and len(entry.open_questions) >= MAX_QUESTION_REFS


def _drop_oldest(refs: list[QuestionRef]) -> tuple[QuestionRef, ...]:
    ends = sorted(ref.closed for ref in refs if ref.closed is not None)
    last_kept = ends[-MAX_CLOSED_QUESTIONS] if len(ends) > MAX_CLOSED_QUESTIONS else 0
    return tuple(ref for ref in refs if ref.closed is None or ref.closed >= last_kept)
