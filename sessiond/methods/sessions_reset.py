"""`sessions.reset`: give a key a new, empty session; its runs are aborted, its transcript is archived."""

from __future__ import annotations

from typing import Annotated

from sessiond.methods.params import Params, Result, SessionName, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.sessions import lifecycle
from sessiond.store.catalog import Session


class SessionsResetParams(Params, frozen=True, kw_only=True):
    key: SessionName


class SessionsResetResult(Result, frozen=True, kw_only=True):
    key: Annotated[str, says("The canonical key of the session.")]
    session_id: Annotated[str, says("The id of its new transcript.")]
    archived: Annotated[bool, says("Whether the old transcript is in the archive.")]


async def handle(ctx: Context, params: SessionsResetParams) -> SessionsResetResult:
    session = ctx.services.find_live(ctx.caller, params.key)
    made, archived = await reset(ctx, session)
    return SessionsResetResult(key=made.key, session_id=made.session_id, archived=archived)


async def reset(ctx: Context, session: Session) -> tuple[Session, bool]:
    """The new session of the key, and whether the old transcript is in the archive."""
    services = ctx.services
    return await lifecycle.reset(
        services.session_changes,
        services.feed,
        session,
        services.supervisor.stop_for_reset,
        on_marked=ctx.release_next,
    )


METHOD = Method(
    "sessions.reset",
    "admin",
    SessionsResetParams,
    SessionsResetResult,
    handle,
    "Archive a session's transcript and start a new one.",
    ordered=True,
)
