"""`sessions.delete`: abort the runs of a session and move its transcript to the archive."""

from __future__ import annotations

from typing import Annotated

from sessiond.errors import Forbidden
from sessiond.methods.params import Params, Result, SessionName, says
from sessiond.methods.services import Context
from sessiond.model.keys import kind_of
from sessiond.rpc.method import Method
from sessiond.sessions import lifecycle


class SessionsDeleteParams(Params, frozen=True, kw_only=True):
    key: SessionName


class SessionsDeleteResult(Result, frozen=True, kw_only=True):
    key: Annotated[str, says("The canonical key that the session had.")]
    deleted: Annotated[bool, says("Always true.")]
    archived: Annotated[bool, says("Whether its transcript is in the archive.")]


async def handle(ctx: Context, params: SessionsDeleteParams) -> SessionsDeleteResult:
    services = ctx.services
    session = services.find_live(ctx.caller, params.key)
    if kind_of(session.key, services.rules) == "main":
        raise Forbidden(
            f"{session.key} is its agent's main session and cannot be deleted; `sessions.reset` begins it anew",
            code="main_session",
        )
    archived = await lifecycle.delete(
        services.session_changes, services.feed, session, services.supervisor.stop, on_marked=ctx.release_next
    )
    return SessionsDeleteResult(key=session.key, deleted=True, archived=archived)


METHOD = Method(
    "sessions.delete",
    "admin",
    SessionsDeleteParams,
    SessionsDeleteResult,
    handle,
    "Delete a session; its transcript is archived.",
    ordered=True,
)
