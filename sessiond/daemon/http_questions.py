"""The HTTP routes of questions: the list, and an answer. They call the handlers of the methods.

Knows no sockets. Source: protocol.md, "HTTP".
"""

from __future__ import annotations

from functools import partial

import msgspec

from sessiond.daemon.http_sessions import context_of, read_flag, require_json, require_scope
from sessiond.errors import InvalidParams
from sessiond.methods import questions_answer, questions_list
from sessiond.methods.questions_answer import QuestionsAnswerParams
from sessiond.methods.questions_list import QuestionsListParams
from sessiond.methods.services import Services
from sessiond.rpc.bounds import ParamsDecoder
from sessiond.transports.exchange import Answer, HttpRequest, json_response
from sessiond.transports.routes import Router

_LIST = ParamsDecoder(QuestionsListParams)
_ANSWER = ParamsDecoder(QuestionsAnswerParams)


class _Body(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    option_id: str
    note: str | None = None


def add_question_routes(router: Router, services: Services) -> None:
    """`GET /questions`, `POST /questions/{id}/answer`."""
    router.add("GET", "/questions", partial(_list, services), query=("sessionKey", "agentId", "open"))
    router.add("POST", "/questions/{id}/answer", partial(_answer, services))


async def _list(services: Services, request: HttpRequest) -> Answer:
    require_scope(request.caller, "list")
    await services.loaded.wait()
    query = request.query
    wanted: dict[str, object] = {name: query[name] for name in ("sessionKey", "agentId") if name in query}
    if "open" in query:
        wanted["open"] = read_flag(query, "open", absent=True)
    params = _LIST.convert(wanted)
    return json_response(await questions_list.handle(context_of(services, request), params))


async def _answer(services: Services, request: HttpRequest) -> Answer:
    require_scope(request.caller, "answer")
    require_json(request)
    await services.loaded.wait()
    try:
        body = msgspec.json.decode(request.body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidParams('The body is {"optionId": "...", "note": "..."}; the note may be left out.') from None
    params = _ANSWER.convert({"id": request.params["id"], "optionId": body.option_id, "note": body.note})
    return json_response(await questions_answer.handle(context_of(services, request), params))
