"""Questions as their transcripts have them. Knows the store; does not know who waits for an answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import QuestionRef
from sessiond.model.question import Question, QuestionAnswer, read_answer, read_question
from sessiond.model.record import ANSWER, QUESTION, Record
from sessiond.store import transcript
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore


class StoredQuestion(msgspec.Struct, frozen=True):
    """A question and its end; no end while it stands open."""

    question: Question
    answer: QuestionAnswer | None = None


async def read_stored(store: SessionStore, session: Session, refs: Sequence[QuestionRef]) -> list[StoredQuestion]:
    """The questions of these references, without those that are not there any more. StorageError."""
    if not refs:
        return []
    found: list[StoredQuestion] = await store.read(session, _read, refs, store.record_limit, session.dialect)
    return found


def _read(fd: int, refs: Sequence[QuestionRef], record_limit: int, dialect: TranscriptDialect) -> list[StoredQuestion]:
    found: list[StoredQuestion] = []
    for ref in refs:
        asked = _record_at(fd, ref.offset, record_limit, dialect)
        question = read_question(asked.data) if asked is not None and asked.custom_type == QUESTION else None
        if question is None or question.id != ref.id:
            continue
        end = _record_at(fd, ref.closed, record_limit, dialect) if ref.closed is not None else None
        answer = read_answer(end.data) if end is not None and end.custom_type == ANSWER else None
        found.append(StoredQuestion(question, answer if answer is not None and answer.question_id == ref.id else None))
    return found


def _record_at(fd: int, offset: int, record_limit: int, dialect: TranscriptDialect) -> Record | None:
    line = next(transcript.read_lines(fd, offset, record_limit, dialect=dialect), None)
    return line.record if line is not None and line.offset == offset else None
