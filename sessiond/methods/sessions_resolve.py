"""`sessions.resolve`: the canonical key for a key, an alias, a session id or a label."""

from __future__ import annotations

from typing import Annotated

from sessiond.errors import InvalidParams
from sessiond.methods.params import Params, Result, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.sessions import resolve


class SessionsResolveParams(Params, frozen=True, kw_only=True):
    key: Annotated[
        str | None, says("A key or an alias such as `main`. Give one of `key`, `sessionId` and `label`.")
    ] = None
    session_id: Annotated[str | None, says("A session id, instead of `key`.")] = None
    label: Annotated[str | None, says("A label, instead of `key`.")] = None
    agent_id: Annotated[
        str | None, says("The agent whose sessions are searched for `label`.", default="all agents'")
    ] = None


class SessionsResolveResult(Result, frozen=True, kw_only=True):
    key: Annotated[str, says("The canonical key of the session.")]
    session_id: Annotated[str, says("The id of its transcript.")]


def handle(ctx: Context, params: SessionsResolveParams) -> SessionsResolveResult:
    services = ctx.services
    given = [name for name in ("key", "session_id", "label") if getattr(params, name) is not None]
    if len(given) != 1:
        raise InvalidParams("Give exactly one of `$.key`, `$.sessionId` and `$.label`.", field="$.key")
    if params.label is not None:
        sight = services.sight_of(ctx.caller)
        session = resolve.find_by_label(services.store.catalog, sight, params.label, agent_id=params.agent_id)
    else:
        text = params.key if params.key is not None else params.session_id
        assert text is not None
        session = services.find(ctx.caller, text, field="$.key" if params.key is not None else "$.sessionId")
    return SessionsResolveResult(key=session.key, session_id=session.session_id)


METHOD = Method(
    "sessions.resolve", "list", SessionsResolveParams, SessionsResolveResult, handle, "Find a session's key and id."
)
