"""The questions of sessions: those that somebody waits for, and those that have ended, from their transcripts."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest

import msgspec

from sessiond.errors import StorageError
from sessiond.model.entry import QuestionRef
from sessiond.model.question import Question, QuestionAnswer
from sessiond.questions.desk import NOBODY_WAITS, QuestionDesk, asking_key
from sessiond.questions.stored import read_stored
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore

# Of those that have ended the newest are listed: a list of all sessions must not read all transcripts.
MAX_LISTED_CLOSED = 200
# As many of other machines, open and ended ones together.
MAX_LISTED_ELSEWHERE = 200


class ListedQuestion(msgspec.Struct, frozen=True):
    """A question of the session `key`; `answer` is None while it is open."""

    key: str
    question: Question
    answer: QuestionAnswer | None


async def list_questions(
    store: SessionStore, desk: QuestionDesk, wants: Callable[[str], bool], *, is_open: bool | None
) -> list[ListedQuestion]:
    """The questions of the sessions whose keys `wants` accepts, oldest first. `is_open` None: open and ended ones."""
    found: list[ListedQuestion] = []
    if is_open is not False:
        found += [ListedQuestion(one.key, one.question, None) for one in desk.open_questions() if wants(one.key)]
    if is_open is not True:
        found += await _list_closed(store, desk, wants)
    found += await _list_elsewhere(store, wants, is_open=is_open)
    # Of those asked in the same millisecond the order of their transcripts stays.
    return sorted(found, key=lambda one: one.question.asked_at)


async def _list_closed(store: SessionStore, desk: QuestionDesk, wants: Callable[[str], bool]) -> list[ListedQuestion]:
    sessions = [session for session in store.catalog.asking_sessions() if wants(asking_key(session))]
    refs = ((ref, session) for session in sessions for ref in session.entry.questions if not desk.is_open(ref.id))
    by_session: dict[Session, list[QuestionRef]] = {}
    for ref, session in nlargest(MAX_LISTED_CLOSED, refs, key=lambda one: (one[0].asked_at, one[0].id)):
        by_session.setdefault(session, []).append(ref)
    found: list[ListedQuestion] = []
    for session, wanted in by_session.items():
        key = asking_key(session)
        try:
            stored = await read_stored(store, session, sorted(wanted, key=lambda ref: ref.offset))
        except StorageError:
            continue  # it was removed meanwhile
        found += [
            ListedQuestion(key, one.question, one.answer or _find_end(desk, one.question))
            for one in stored
            if not desk.is_open(one.question.id)
        ]
    return found


def find_elsewhere(store: SessionStore, question_id: str) -> Session | None:
    """The session of another machine in which the question was asked."""
    asking = store.catalog.asking_elsewhere()
    return next((one for one in asking if any(ref.id == question_id for ref in one.entry.questions)), None)


async def _list_elsewhere(
    store: SessionStore, wants: Callable[[str], bool], *, is_open: bool | None
) -> list[ListedQuestion]:
    """The newest questions in sessions of other machines. Whether somebody waits for an answer is known only there."""
    sessions = [session for session in store.catalog.asking_elsewhere() if wants(session.key)]
    refs = ((ref, session) for session in sessions for ref in session.entry.questions)
    fitting = (one for one in refs if is_open is None or is_open is (one[0].closed is None))
    by_session: dict[Session, list[QuestionRef]] = {}
    for ref, session in nlargest(MAX_LISTED_ELSEWHERE, fitting, key=lambda one: (one[0].asked_at, one[0].id)):
        by_session.setdefault(session, []).append(ref)
    found: list[ListedQuestion] = []
    for session, wanted in by_session.items():
        try:
            stored = await read_stored(store, session, sorted(wanted, key=lambda ref: ref.offset))
        except StorageError:
            continue  # it was removed meanwhile
        found += [ListedQuestion(session.key, one.question, one.answer) for one in stored]
    return found


def _find_end(desk: QuestionDesk, question: Question) -> QuestionAnswer:
    """The end of a question that stands open in its transcript and that nobody waits for."""
    return desk.find_unwritten_end(question.id) or QuestionAnswer(
        question_id=question.id, outcome="withdrawn", at=question.asked_at, reason=NOBODY_WAITS
    )
