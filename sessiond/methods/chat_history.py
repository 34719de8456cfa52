"""`chat.history`: the same as sessions_history, with tool results by default."""

from __future__ import annotations

from typing import Annotated

from sessiond.methods import sessions_history
from sessiond.methods.params import says
from sessiond.methods.services import Context
from sessiond.methods.sessions_history import SessionsHistoryParams, SessionsHistoryResult
from sessiond.rpc.method import Method


class ChatHistoryParams(SessionsHistoryParams, frozen=True):
    include_tools: Annotated[bool, says("Whether to include tool results.")] = True


async def handle(ctx: Context, params: ChatHistoryParams) -> SessionsHistoryResult:
    return await sessions_history.handle(ctx, params)


METHOD = Method(
    "chat.history",
    "read",
    ChatHistoryParams,
    SessionsHistoryResult,
    handle,
    "The newest messages of a session with tool results.",
)
