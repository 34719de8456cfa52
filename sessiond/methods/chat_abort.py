"""`chat.abort` (`sessions.abort`): abort all runs of a session, or one of them. No send policy prevents it."""

from __future__ import annotations

from typing import Annotated

from sessiond.methods.params import Params, Result, SessionName, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


class ChatAbortParams(Params, frozen=True, kw_only=True):
    session_key: SessionName
    run_id: Annotated[str | None, says("The run to abort.", default="the current one and all queued ones")] = None


class ChatAbortResult(Result, frozen=True, kw_only=True):
    aborted: Annotated[bool, says("Whether a run was aborted.")]
    run_ids: Annotated[list[str], says("The runs that were aborted.")]


async def handle(ctx: Context, params: ChatAbortParams) -> ChatAbortResult:
    session = ctx.services.find(ctx.caller, params.session_key, action="send")
    run_ids = await ctx.services.supervisor.stop(session, params.run_id)
    return ChatAbortResult(aborted=bool(run_ids), run_ids=run_ids)


METHOD = Method(
    "chat.abort",
    "send",
    ChatAbortParams,
    ChatAbortResult,
    handle,
    "Abort the runs of a session, or one of them.",
    aliases=("sessions.abort",),
)
