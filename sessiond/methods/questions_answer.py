"""`questions.answer`: answer a question of an agent. The first answer wins."""

from __future__ import annotations

from typing import Annotated

from sessiond.errors import Conflict, InvalidParams
from sessiond.methods.params import Params, Result, check_by, says
from sessiond.methods.question_view import QuestionSight
from sessiond.methods.services import Context
from sessiond.model.question import MAX_NOTE_BYTES, QuestionStatus, Road, clean_text
from sessiond.policy import answering
from sessiond.questions.desk import asking_key, no_such_question
from sessiond.questions.listing import find_elsewhere
from sessiond.rpc.method import Method
from sessiond.sessions import resolve
from sessiond.store.refusals import require_own

# How our own programs introduce themselves, and the road that this is.
_ROADS: dict[str, Road] = {"sessiond-cli": "cli", "sessiond-acp": "acp", "sessiond-hook": "hook"}


def check_note(text: str, field: str) -> None:
    """InvalidParams for a note that is too long."""
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_NOTE_BYTES:
        raise InvalidParams(f"`{field}` has {size} bytes, the limit is {MAX_NOTE_BYTES}.", field=field)


class QuestionsAnswerParams(Params, frozen=True, kw_only=True):
    id: Annotated[str, says("The id of the question.")]
    option_id: Annotated[str, says("The id of one of its options.")]
    note: Annotated[
        Annotated[str, check_by(check_note, f"at most {MAX_NOTE_BYTES} bytes")] | None,
        says("What is said to the agent with it."),
    ] = None


class QuestionsAnswerResult(Result, frozen=True, kw_only=True):
    id: Annotated[str, says("The id of the question.")]
    option_id: Annotated[str, says("The option that was chosen.")]
    status: Annotated[QuestionStatus, says("Always `answered`.")]


async def handle(ctx: Context, params: QuestionsAnswerParams) -> QuestionsAnswerResult:
    services, caller = ctx.services, ctx.caller
    catalog, rules = services.store.catalog, services.visibility_rules
    session = services.questions.find_session(params.id) or find_elsewhere(services.store, params.id)
    asking = asking_key(session) if session is not None else resolve.NOBODYS_KEY
    # Also for a missing one, which takes as long as a hidden one then.
    is_visible = resolve.may_name(catalog, services.sight_of(caller), None, asking)
    if session is None or not is_visible:
        raise no_such_question(params.id)
    require_own(session)
    answering.check_answer(caller, asking, rules, lambda key: resolve.spawner_of(catalog, key))
    by = answering.name_of(caller, rules)
    note = clean_text(params.note) if params.note else None
    try:
        await services.questions.answer(params.id, params.option_id, note or None, by=by, road=_road_of(ctx))
    except Conflict as error:
        if services.masks(caller):
            _mask_note(error, QuestionSight(True, services.patterns()))
        raise
    return QuestionsAnswerResult(id=params.id, option_id=params.option_id, status="answered")


def _mask_note(error: Conflict, sight: QuestionSight) -> None:
    answer = error.data.get("answer", {})
    if "note" in answer:
        error.data["answer"] = {**answer, "note": sight.mask(answer["note"])}


def _road_of(ctx: Context) -> Road:
    """Over which road the request came. What a client says of itself is for people only; nothing depends on it."""
    if ctx.caller.is_page:
        return "page"
    name = ctx.peer.client_name if ctx.peer is not None else ""
    if name.startswith("mcp:"):
        return "mcp"
    return _ROADS.get(name) or (ctx.peer.road if ctx.peer is not None else "http")


METHOD = Method(
    "questions.answer",
    "answer",
    QuestionsAnswerParams,
    QuestionsAnswerResult,
    handle,
    "Answer a question of an agent.",
)
