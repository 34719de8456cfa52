"""`questions.list`: the questions of agents that the caller may see, open and ended."""

from __future__ import annotations

from typing import Annotated

from sessiond.methods.params import AgentIdText, Params, Result, says
from sessiond.methods.question_view import QuestionSight, QuestionView, reads_questions, view_question
from sessiond.methods.services import Context
from sessiond.model.keys import agent_of
from sessiond.questions.listing import list_questions
from sessiond.rpc.method import Method
from sessiond.sessions import resolve


class QuestionsListParams(Params, frozen=True, kw_only=True):
    session_key: Annotated[
        str | None, says("Only questions of this session: its key, an alias such as `main`, or its id.")
    ] = None
    agent_id: Annotated[AgentIdText | None, says("Only questions of sessions of this agent.")] = None
    open: Annotated[bool | None, says("Only open ones, or only ended ones.", default="both")] = None


class QuestionsListResult(Result, frozen=True, kw_only=True):
    questions: Annotated[
        list[QuestionView], says("The questions, oldest first: all open ones, and the newest that have ended.")
    ]


async def handle(ctx: Context, params: QuestionsListParams) -> QuestionsListResult:
    services, caller = ctx.services, ctx.caller
    catalog, sight = services.store.catalog, services.sight_of(caller)
    only = services.find(caller, params.session_key).key if params.session_key is not None else None

    def wants(key: str) -> bool:
        if only is not None and key != only:
            return False
        if params.agent_id is not None and agent_of(key) != params.agent_id:
            return False
        return resolve.reaches(catalog, sight, key)

    async with services.reads(caller):
        found = await list_questions(services.store, services.questions, wants, is_open=params.open)
    await ctx.reserve(sum(len(one.question.detail or "") + 4096 for one in found))
    shown = QuestionSight(reads_questions(caller), services.patterns() if services.masks(caller) else None)
    return QuestionsListResult(questions=[view_question(one.key, one.question, one.answer, shown) for one in found])


METHOD = Method(
    "questions.list",
    "list",
    QuestionsListParams,
    QuestionsListResult,
    handle,
    "List the questions of agents.",
)
