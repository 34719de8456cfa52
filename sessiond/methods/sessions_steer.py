"""`sessions.steer`: pass a message to the agent during its run; if it cannot take it, interrupt the run."""

from __future__ import annotations

from typing import Annotated

from sessiond.methods.chat_send import ChatSendParams, message_of
from sessiond.methods.params import (
    IdempotencyKey,
    MessageText,
    Params,
    Result,
    RunSeconds,
    SessionName,
    ThinkingLevel,
    says,
)
from sessiond.methods.send_target import find_elsewhere, require_target
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


class SessionsSteerParams(Params, frozen=True, kw_only=True):
    key: SessionName
    message: MessageText
    idempotency_key: IdempotencyKey = None
    timeout_seconds: RunSeconds = None
    thinking: Annotated[ThinkingLevel | None, says("The thinking level of this run.")] = None
    model: Annotated[str | None, says("The model of this run.", default="the session's")] = None


class SessionsSteerResult(Result, frozen=True, kw_only=True):
    run_id: Annotated[str, says("The run of the message: the current one if its agent accepted it, else a new one.")]
    status: Annotated[str, says("Always `accepted`.")]
    interrupted: Annotated[list[str], says("The runs that were interrupted for it.")]


async def handle(ctx: Context, params: SessionsSteerParams) -> SessionsSteerResult:
    services = ctx.services
    session = await find_elsewhere(ctx, params.key, field="$.key")
    if session is None:
        found = services.find_addressee(ctx.caller, params.key, field="$.key", action="send")
        session = await require_target(ctx, found)
    sent = ChatSendParams(
        session_key=params.key,
        message=params.message,
        idempotency_key=params.idempotency_key,
        timeout_seconds=params.timeout_seconds,
        thinking=params.thinking,
        model=params.model,
    )
    message = message_of(ctx, session, sent, METHOD.name, steers=True)
    steered = await services.sends.send(session, message, on_queued=ctx.release_next)
    return SessionsSteerResult(run_id=steered.run_id, status="accepted", interrupted=list(steered.interrupted))


METHOD = Method(
    "sessions.steer",
    "send",
    SessionsSteerParams,
    SessionsSteerResult,
    handle,
    "Send a message to a session during its run, or interrupt the run for it.",
    ordered=True,
)
