"""QuestionDesk: who waits for an answer. A question and its end are records of a transcript; memory has only who waits.

An answer is on disk before anybody is told: what was granted is on record, and a grant on record whose asker died does
nothing, because the process that asked is gone. Knows the store. Does not know callers, runs or connections.
Source: runs.md, "Questions".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import structlog
import trio
from msgspec.structs import replace

from sessiond.clock import Clock, Ids
from sessiond.errors import Conflict, InvalidParams, NotFound, Stopping, StorageError, quote
from sessiond.model.entry import QuestionRef
from sessiond.model.keys import agent_of
from sessiond.model.question import (
    Question,
    QuestionAnswer,
    QuestionDraft,
    Road,
    answer_fields,
    clean_draft,
    record_data,
)
from sessiond.model.record import ANSWER, QUESTION
from sessiond.questions.crowding import Crowding
from sessiond.questions.stored import read_stored
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, SessionStore

log = structlog.get_logger("sessiond.questions")

# The pause before an end is written that is missing in a transcript.
_RETRY_S = 1.0

ASKER_GONE = "whoever asked it went away"
RUN_OVER = "the run that asked it is over"
DAEMON_STOPS = "the daemon stops"
DAEMON_ENDED = "the daemon ended while it was open"
NOBODY_WAITS = "nobody waits for its answer any more"


class OpenQuestion:
    """A question somebody waits for. `answer` is set once its end is settled, which one task at a time may do. Numbers
    grow in the order in which questions are asked.
    """

    __slots__ = ("answer", "closing", "decided", "number", "question", "session")

    def __init__(self, session: Session, question: Question, number: int) -> None:
        self.session, self.question, self.number = session, question, number
        self.answer: QuestionAnswer | None = None
        self.decided = trio.Event()
        self.closing = trio.Lock()

    @property
    def key(self) -> str:
        """The key of the session that asks."""
        return asking_key(self.session)

    @property
    def asker(self) -> str:
        """Who is held to the limits: the agent, or the other program's session."""
        return self.session.entry.attends or f"agent {agent_of(self.session.key)}"


class QuestionDesk:
    """All open questions of the daemon. Run `run` in the background nursery. `on_asked` is called with each that is on
    disk.
    """

    def __init__(
        self, store: SessionStore, clock: Clock, ids: Ids, *, on_asked: Callable[[OpenQuestion], None]
    ) -> None:
        self._store, self._clock, self._ids, self._on_asked = store, clock, ids, on_asked
        self._open: dict[str, OpenQuestion] = {}
        self._numbers = itertools.count()
        # Ended, but the disk has refused the end; by their ids.
        self._unwritten: dict[str, OpenQuestion] = {}
        # Transcripts that another program put into the store with questions that stand open.
        self._found: dict[Session, None] = {}
        self._has_left = trio.Event()
        self._crowding = Crowding()
        self._stopping = False

    async def run(self) -> None:
        """Write the ends that are missing in transcripts, until cancelled; then the next start of the daemon does."""
        while True:
            await self._has_left.wait()
            self._has_left = trio.Event()
            # By then the disk may take what it refused, and a file that is being put back is complete.
            await trio.sleep(_RETRY_S)
            for question_id, closed in list(self._unwritten.items()):
                if closed.answer is None or await self._write_end(closed, closed.answer):
                    self._unwritten.pop(question_id, None)
            found, self._found = self._found, {}
            for session in found:
                await self._withdraw_found(session)
            if self._unwritten or self._found:
                self._has_left.set()

    def note_found(self, session: Session) -> None:
        """Another program may have written to the transcript: what is open in it and that nobody waits for is
        withdrawn soon.
        """
        if self._left_open(session):
            self._found[session] = None
            self._has_left.set()

    async def _withdraw_found(self, session: Session) -> None:
        for ref in self._left_open(session):
            try:
                await self.withdraw_left(session, ref, NOBODY_WAITS)
            except StorageError:
                self._found[session] = None
                return

    def _left_open(self, session: Session) -> list[QuestionRef]:
        # Of copies the one that has the key is shown.
        if not self._store.catalog.is_current(session):
            return []
        return [
            ref for ref in session.entry.open_questions if ref.id not in self._open and ref.id not in self._unwritten
        ]

    def _note_copies(self, asked: OpenQuestion) -> None:
        """A question is over: transcripts into which another program has copied it do not wait for it, either."""
        for session, ref in list(self._find_refs(asked.question.id)):
            if ref.closed is None and session is not asked.session:
                self.note_found(session)

    async def ask(
        self,
        session: Session,
        draft: QuestionDraft,
        *,
        run_id: str | None = None,
        timeout_s: float | None = None,
        on_open: Callable[[str], None] = lambda _: None,
    ) -> QuestionAnswer:
        """Ask, and wait for the end of the question, which is on disk then. `on_open` gets its id when it is asked.

        Questions stand in the transcript in the order of these calls. A cancelled wait withdraws one. Conflict where
        too many are open already, Overloaded where they come too fast; StorageError where it cannot be stored,
        and then nothing was asked.
        """
        if self._stopping:
            raise Stopping("sessiond is stopping, and nobody can answer any more; ask again when it is back")
        asked = OpenQuestion(session, self._compose(draft, run_id, timeout_s), next(self._numbers))
        self._admit(asked)
        # Before it is on disk, so that it can be answered as soon as anybody reads of it.
        self._open[asked.question.id] = asked
        try:
            # What is on disk has been asked, so a write that has begun is not left.
            with trio.CancelScope(shield=True):
                await self._store.append(session, [Custom(QUESTION, record_data(asked.question))])
                self._on_asked(asked)
            on_open(asked.question.id)
            with trio.move_on_after(math.inf if timeout_s is None else timeout_s):
                await asked.decided.wait()
            await self._close(asked, QuestionAnswer(question_id=asked.question.id, outcome="expired", at=0))
            assert asked.answer is not None
            return asked.answer
        except trio.Cancelled:
            await self._withdraw(asked, ASKER_GONE)
            raise
        finally:
            del self._open[asked.question.id]
            self._note_copies(asked)

    async def answer(self, question_id: str, option_id: str, note: str | None, *, by: str, road: Road) -> Question:
        """Answer a question; on disk when this returns, and then whoever waits is told. The first one wins.

        Conflict, with `data.answer`, where it has ended already; InvalidParams for an option that it does not have;
        StorageError where it cannot be stored, and then the question stays open.
        """
        asked = self._open.get(question_id)
        if asked is None:
            await self._refuse_closed(question_id)
            raise no_such_question(question_id)
        if asked.answer is None and asked.question.option(option_id) is None:
            raise _no_such_option(asked.question, option_id)
        answer = QuestionAnswer(
            question_id=question_id, outcome="answered", option_id=option_id, note=note, by=by, road=road, at=0
        )
        if not await self._close(asked, answer):
            assert asked.answer is not None
            raise already_closed(asked.answer)
        return asked.question

    async def withdraw(self, question_id: str, reason: str) -> None:
        """Withdraw a question if it is open: whoever waits for its answer is told so."""
        asked = self._open.get(question_id)
        if asked is not None:
            await self._withdraw(asked, reason)

    async def withdraw_of_run(self, run_id: str) -> None:
        """Withdraw all questions of a run, which is over."""
        for asked in [one for one in self._open.values() if one.question.run_id == run_id]:
            await self._withdraw(asked, RUN_OVER)

    async def stop(self) -> None:
        """Withdraw every question, and refuse further ones: the daemon stops, and no answer can come any more."""
        self._stopping = True
        async with trio.open_nursery() as nursery:
            for asked in self.open_questions():
                nursery.start_soon(self._withdraw, asked, DAEMON_STOPS)

    async def withdraw_left(self, session: Session, ref: QuestionRef, reason: str) -> QuestionAnswer:
        """Write that a question is withdrawn that stands open in a transcript and that nobody waits for."""
        left = QuestionAnswer(question_id=ref.id, outcome="withdrawn", at=self._clock.wall_ms(), reason=reason)
        with trio.CancelScope(shield=True):
            await self._store.append(session, [Custom(ANSWER, record_data(left))])
        return left

    def open_questions(self) -> list[OpenQuestion]:
        """The questions that somebody waits for, in the order in which they were asked."""
        return [asked for asked in self._open.values() if asked.answer is None]

    def is_open(self, question_id: str) -> bool:
        """Whether somebody waits for the answer."""
        asked = self._open.get(question_id)
        return asked is not None and asked.answer is None

    def find_unwritten_end(self, question_id: str) -> QuestionAnswer | None:
        """How a question ended whose end the disk does not take yet; None for every other one."""
        closed = self._unwritten.get(question_id)
        return closed.answer if closed is not None else None

    def find_session(self, question_id: str) -> Session | None:
        """The session in which the question was asked; None where there is no such question."""
        asked = self._open.get(question_id)
        if asked is not None:
            return asked.session
        return next((session for session, _ in self._find_refs(question_id)), None)

    def _find_refs(self, question_id: str) -> Iterator[tuple[Session, QuestionRef]]:
        for session in self._store.catalog.asking_sessions():
            for ref in session.entry.questions:
                if ref.id == question_id:
                    yield session, ref

    async def _refuse_closed(self, question_id: str) -> None:
        """Conflict for a question that has ended; one that stands open with nobody waiting is withdrawn first."""
        unwritten = self.find_unwritten_end(question_id)
        if unwritten is not None:
            raise already_closed(unwritten)
        for session, ref in self._find_refs(question_id):
            if ref.closed is None:
                raise already_closed(await self.withdraw_left(session, ref, NOBODY_WAITS))
            stored = await read_stored(self._store, session, [ref])
            if stored and stored[0].answer is not None:
                raise already_closed(stored[0].answer)

    def _admit(self, asked: OpenQuestion) -> None:
        others = self.open_questions()
        self._crowding.admit(
            asked.asker,
            self._clock.monotonic(),
            open_in_session=sum(one.session is asked.session for one in others),
            open_of_asker=sum(one.asker == asked.asker for one in others),
        )

    def _compose(self, draft: QuestionDraft, run_id: str | None, timeout_s: float | None) -> Question:
        shown, now = clean_draft(draft), self._clock.wall_ms()
        return Question(
            id=self._ids.record(),
            run_id=run_id,
            title=shown.title,
            detail=shown.detail,
            options=shown.options,
            asked_at=now,
            expires_at=now + math.ceil(timeout_s * 1000) if timeout_s is not None else None,
            tool_call_id=shown.tool_call_id,
            kind=shown.kind,
        )

    async def _close(self, asked: OpenQuestion, answer: QuestionAnswer) -> bool:
        """Give the question this end unless it has one; whether it got it. StorageError: it stays open."""
        with trio.CancelScope(shield=True):
            async with asked.closing:
                if asked.answer is None:
                    await self._settle(asked, replace(answer, at=self._clock.wall_ms()))
                    return True
        return False

    async def _settle(self, asked: OpenQuestion, answer: QuestionAnswer) -> None:
        if answer.outcome == "answered":
            await self._store.append(asked.session, [Custom(ANSWER, record_data(answer))])
        elif not await self._write_end(asked, answer):
            # Nothing is granted, so who waits is told; the record follows.
            self._unwritten[asked.question.id] = asked
            self._has_left.set()
        asked.answer = answer
        asked.decided.set()

    async def _withdraw(self, asked: OpenQuestion, reason: str) -> None:
        answer = QuestionAnswer(question_id=asked.question.id, outcome="withdrawn", at=0, reason=reason)
        await self._close(asked, answer)

    async def _write_end(self, asked: OpenQuestion, answer: QuestionAnswer) -> bool:
        """Whether the end is on disk, or its transcript gone."""
        try:
            await self._store.append(asked.session, [Custom(ANSWER, record_data(answer))])
        except StorageError as error:
            if not self._store.catalog.has(asked.session):
                return True
            log.warning("the end of a question is not on disk yet", session_key=asked.key, reason=error.message)
            return False
        return True


def asking_key(session: Session) -> str:
    """The key under which a session asks: its own, or that of the other program's session for which it stands."""
    return session.entry.attends or session.key


def no_such_question(question_id: str) -> NotFound:
    """The error for a missing or hidden question."""
    return NotFound(
        f"no question {quote(question_id[:80])}; `questions.list` shows the questions there are",
        code="question_not_found",
    )


def already_closed(answer: QuestionAnswer) -> Conflict:
    """The error for a second answer: it says how the question ended."""
    fields = answer_fields(answer)
    if answer.outcome == "answered":
        sentence = f"it was answered already, by {answer.by} over {answer.road}: {quote(answer.option_id or '')}"
    else:
        sentence = f"it has {_ENDS[answer.outcome]} meanwhile{f': {answer.reason}' if answer.reason else ''}"
    return Conflict(sentence, code="question_closed", answer=fields)


_ENDS = {"expired": "expired", "withdrawn": "been withdrawn", "policy": "been answered by a rule"}


def _no_such_option(question: Question, option_id: str) -> InvalidParams:
    known = ", ".join(quote(option.id) for option in question.options)
    return InvalidParams(
        f"`$.optionId`: the question has no option {quote(option_id[:80])}; it has {known}.", field="$.optionId"
    )
