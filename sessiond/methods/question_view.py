"""A question as a caller may see it: its shape on the wire, secrets masked, and without its texts where that is due."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from sessiond.methods.params import Result, says
from sessiond.model.caller import Caller
from sessiond.model.keys import agent_of, machine_of
from sessiond.model.question import Outcome, Question, QuestionAnswer, QuestionOption, QuestionStatus, Road
from sessiond.policy.redact import Patterns
from sessiond.policy.secrets import mask_secrets


class AnswerView(Result, frozen=True, kw_only=True):
    """How a question ended."""

    outcome: Annotated[
        Outcome,
        says(
            "`answered`, `expired` (its time was over), `withdrawn` (who asked went away) or `policy` (a rule of the"
            " configuration)."
        ),
    ]
    option_id: Annotated[str | None, says("The option that was chosen.")] = None
    note: Annotated[str | None, says("What was said with it.")] = None
    by: Annotated[str | None, says("Who answered: `owner`, or the key of a session.")] = None
    at: Annotated[int, says("When, in milliseconds since 1970.")]
    road: Annotated[Road | None, says("Over which road the answer came.")] = None
    reason: Annotated[str | None, says("Why it ended without an answer.")] = None


class QuestionView(Result, frozen=True, kw_only=True):
    """One question. Its texts need the scope `read` or `answer`."""

    id: Annotated[str, says("Its id.")]
    session_key: Annotated[str, says("The canonical key of the session that asks.")]
    agent_id: Annotated[str, says("Its agent; empty for a session of another program.")]
    run_id: Annotated[str | None, says("The run that asks.")] = None
    title: Annotated[str | None, says("What is asked, on one line.")] = None
    detail: Annotated[str | None, says("More of it, on several lines.")] = None
    options: Annotated[
        list[QuestionOption],
        says("The ways to answer, in the agent's own words; none of a question that is answered on another machine."),
    ]
    read_only: Annotated[bool, says("Whether it is asked on another machine, and answered only there.")] = False
    status: Annotated[QuestionStatus, says("`open`, or how it ended.")]
    asked_at: Annotated[int, says("When it was asked, in milliseconds since 1970.")]
    expires_at: Annotated[int | None, says("When it expires, in milliseconds since 1970.")] = None
    tool_call_id: Annotated[str | None, says("The tool call for which permission is asked.")] = None
    kind: Annotated[str | None, says("What the tool call does, as its agent says: `edit`, `execute`.")] = None
    answer: Annotated[AnswerView | None, says("How it ended, unless it is open.")] = None


class QuestionSight(msgspec.Struct, frozen=True):
    """How much of questions a caller may read. `patterns` are the configured ones, None where nothing is masked."""

    reads: bool
    patterns: Patterns | None

    def mask(self, text: str) -> str:
        """The text as the caller may read it."""
        return text if self.patterns is None else mask_secrets(text, self.patterns)[0]


def reads_questions(caller: Caller) -> bool:
    """Whether the caller may read the texts of questions: it may read what is said, or is there to answer."""
    return caller.has("read") or caller.has("answer")


def view_question(key: str, question: Question, answer: QuestionAnswer | None, sight: QuestionSight) -> QuestionView:
    """The question of the session `key`."""
    is_elsewhere = machine_of(key) is not None
    view = QuestionView(
        id=question.id,
        session_key=key,
        agent_id=agent_of(key),
        run_id=question.run_id,
        options=[],
        read_only=is_elsewhere,
        status=answer.outcome if answer is not None else "open",
        asked_at=question.asked_at,
        expires_at=question.expires_at,
        answer=view_answer(answer, sight) if answer is not None else None,
    )
    if not sight.reads:
        return view
    return replace(
        view,
        title=sight.mask(question.title),
        detail=sight.mask(question.detail) if question.detail else None,
        tool_call_id=question.tool_call_id,
        kind=question.kind,
        options=[replace(one, label=sight.mask(one.label)) for one in (() if is_elsewhere else question.options)],
    )


def view_answer(answer: QuestionAnswer, sight: QuestionSight) -> AnswerView:
    """The end of a question."""
    return AnswerView(
        outcome=answer.outcome,
        option_id=answer.option_id if sight.reads else None,
        note=sight.mask(answer.note) if answer.note and sight.reads else None,
        by=answer.by,
        at=answer.at,
        road=answer.road,
        reason=answer.reason,
    )


def as_fields(view: QuestionView | AnswerView) -> dict[str, Any]:
    """A view as the params of an event, or the data of an error, have it."""
    fields: dict[str, Any] = msgspec.to_builtins(view)
    return fields
