"""`hooks.ask`: a program in a terminal asks a person; answered when the person has decided."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from sessiond.errors import InvalidParams
from sessiond.methods.agents_ask import AgentsAskResult, result_of
from sessiond.methods.hooks_report import HookParams, hooked_key
from sessiond.methods.params import says
from sessiond.methods.services import Context
from sessiond.model.question import MAX_OPTIONS, MAX_TIMEOUT_S, QuestionOption, compose_draft
from sessiond.questions.terminal_decisions import ToolUse
from sessiond.rpc.method import Method


class HooksAskParams(HookParams, frozen=True, kw_only=True):
    title: Annotated[str, says("What is asked, on one line; cut where it is too long.")]
    detail: Annotated[str | None, says("More of it, on several lines; cut where it is too long.")] = None
    options: Annotated[
        list[QuestionOption],
        Meta(min_length=1, max_length=MAX_OPTIONS),
        says("The ways to answer: `{id, label, kind}`, where `kind` says what the option means."),
    ]
    tool_name: Annotated[str | None, says("The tool for whose call a permission is asked.")] = None
    tool_input: Annotated[
        dict[str, Any] | None, says("What that call is given; the question is withdrawn once it has a result.")
    ] = None
    tool_use_id: Annotated[
        Annotated[str, Meta(max_length=1024)] | None, says("The program's id of that call, if it says it.")
    ] = None
    timeout_seconds: Annotated[
        Annotated[float, Meta(ge=1, le=MAX_TIMEOUT_S)] | None,
        says("After so many seconds the question expires.", default="as long as the caller waits"),
    ] = None


async def handle(ctx: Context, params: HooksAskParams) -> AgentsAskResult:
    key = hooked_key(ctx, params, METHOD.name)
    if key is None:
        raise InvalidParams(
            "`$.transcriptPath` is not that of a session with this id, of a program that is followed here.",
            field="$.transcriptPath",
        )
    draft = compose_draft(params.title, params.options, detail=params.detail)
    if draft is None:
        raise InvalidParams("`$.title` has no character that can be shown.", field="$.title")
    use = None
    if params.tool_name is not None and params.tool_input is not None:
        use = ToolUse(params.tool_name, params.tool_input, params.tool_use_id)
    answer = await ctx.services.attending.ask(key, draft, params.timeout_seconds, use)
    return result_of(answer)


METHOD = Method(
    "hooks.ask",
    "admin",
    HooksAskParams,
    AgentsAskResult,
    handle,
    "Ask a person in the name of a session in a terminal, and wait for the answer.",
)
