"""`chat.abort` (`sessions.abort`): end the live run of a session and the queued ones, or one of them. Never blocked."""

from __future__ import annotations

from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


class ChatAbortParams(Params, frozen=True, kw_only=True):
    session_key: str
    run_id: str | None = None


class ChatAbortResult(Result, frozen=True, kw_only=True):
    aborted: bool
    run_ids: list[str]


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
