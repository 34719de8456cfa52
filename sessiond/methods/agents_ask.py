"""`agents.ask`: a question of a run to a person; answered when the person, or the time, has decided."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sessiond.errors import InvalidParams, NotFound, quote
from sessiond.methods.params import Params, Result, check_by, check_text, says
from sessiond.methods.services import Context
from sessiond.model.question import (
    MAX_DETAIL_BYTES,
    MAX_OPTIONS,
    MAX_TIMEOUT_S,
    MAX_TITLE_CHARS,
    Outcome,
    QuestionAnswer,
    QuestionDraft,
    QuestionOption,
    clean_line,
    is_option_id,
)
from sessiond.rpc.method import Method
from sessiond.runs.run import Run


def check_title(text: str, field: str) -> None:
    """InvalidParams for a title that is blank or too long."""
    check_text(text, field)
    if len(text) > MAX_TITLE_CHARS:
        raise InvalidParams(
            f"`{field}` has {len(text)} characters, the limit is {MAX_TITLE_CHARS}; `$.detail` takes more.", field=field
        )
    if not clean_line(text, MAX_TITLE_CHARS):
        raise InvalidParams(f"`{field}` has no character that can be shown.", field=field)


def check_detail(text: str, field: str) -> None:
    """InvalidParams for a detail that is too long."""
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_DETAIL_BYTES:
        raise InvalidParams(f"`{field}` has {size} bytes, the limit is {MAX_DETAIL_BYTES}.", field=field)


class AgentsAskParams(Params, frozen=True, kw_only=True):
    run_id: Annotated[str, says("The run that asks: this connection executes it, or its token is the caller's.")]
    title: Annotated[
        str,
        check_by(check_title, f"not blank, at most {MAX_TITLE_CHARS} characters", maxLength=MAX_TITLE_CHARS),
        says("What is asked, on one line."),
    ]
    detail: Annotated[
        Annotated[str, check_by(check_detail, f"at most {MAX_DETAIL_BYTES} bytes")] | None,
        says("More of it, on several lines."),
    ] = None
    options: Annotated[
        list[QuestionOption],
        Meta(min_length=1, max_length=MAX_OPTIONS),
        says("The ways to answer: `{id, label, kind}`, where `kind` says what the option means."),
    ]
    timeout_seconds: Annotated[
        Annotated[float, Meta(ge=1, le=MAX_TIMEOUT_S)] | None,
        says("After so many seconds the question expires.", default="as long as the caller waits"),
    ] = None


class AgentsAskResult(Result, frozen=True, kw_only=True):
    question_id: Annotated[str, says("The id of the question.")]
    outcome: Annotated[
        Outcome,
        says(
            "`answered`; in every other case nothing is granted: `expired`, `withdrawn`, or `policy` without an option."
        ),
    ]
    option_id: Annotated[str | None, says("The option that was chosen.")] = None
    note: Annotated[str | None, says("What was said with it.")] = None
    answered_by: Annotated[str | None, says("Who answered: `owner`, or the key of a session.")] = None


async def handle(ctx: Context, params: AgentsAskParams) -> AgentsAskResult:
    _check_options(params.options)
    draft = QuestionDraft(title=params.title, detail=params.detail, options=tuple(params.options))
    asking = ctx.services.supervisor.questions
    run = _asking_run(ctx, params.run_id)
    # This one has its place in the transcript when it first waits, so the next one comes after it.
    ctx.release_next()
    answer = await asking.ask(run, draft, params.timeout_seconds)
    return result_of(answer)


def result_of(answer: QuestionAnswer) -> AgentsAskResult:
    """What whoever asked is told of the end of its question."""
    return AgentsAskResult(
        question_id=answer.question_id,
        outcome=answer.outcome,
        option_id=answer.option_id,
        note=answer.note,
        answered_by=answer.by,
    )


def _asking_run(ctx: Context, run_id: str) -> Run:
    """The run, if the caller lives it. NotFound for every other one."""
    services = ctx.services
    connection = services.connections.get(ctx.peer) if ctx.peer is not None else None
    lives = ctx.caller.run_id == run_id or (
        connection is not None and services.attached.turn(run_id, connection) is not None
    )
    run = services.supervisor.registry.live.get(run_id) if lives else None
    if run is None or run.scope is None or run.ended:
        raise NotFound(f"this connection lives no run {quote(run_id[:120])} just now", code="run_not_found")
    return run


def _check_options(options: list[QuestionOption]) -> None:
    seen: set[str] = set()
    for place, option in enumerate(options):
        field = f"$.options[{place}].id"
        if not is_option_id(option.id):
            raise InvalidParams(f"`{field}` is too long: at most 200 bytes in UTF-8.", field=field)
        if option.id in seen:
            raise InvalidParams(f"`{field}`: {quote(option.id)} is the id of another option too.", field=field)
        seen.add(option.id)


METHOD = Method(
    "agents.ask",
    None,
    AgentsAskParams,
    AgentsAskResult,
    handle,
    "Ask a person in the name of a run, and wait for the answer.",
    ordered=True,
)
