"""`sessions.steer`: interrupt the live run and send. The new message is on disk before anything is interrupted."""

from __future__ import annotations

from sessiond.methods.chat_send import ChatSendParams, request_of
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.policy import send as send_policy
from sessiond.rpc.method import Method


class SessionsSteerParams(Params, frozen=True, kw_only=True):
    key: str
    message: str
    idempotency_key: str | None = None
    timeout_seconds: float | None = None
    thinking: str | None = None
    model: str | None = None


class SessionsSteerResult(Result, frozen=True, kw_only=True):
    run_id: str
    status: str
    interrupted: list[str]


async def handle(ctx: Context, params: SessionsSteerParams) -> SessionsSteerResult:
    services = ctx.services
    session = services.find(ctx.caller, params.key, field="$.key", action="send")
    send_policy.require(services.config.session.send_policy, session.key, session.entry)
    sent = ChatSendParams(
        session_key=params.key,
        message=params.message,
        idempotency_key=params.idempotency_key,
        timeout_seconds=params.timeout_seconds,
        thinking=params.thinking,
        model=params.model,
    )
    request = request_of(ctx, sent)
    if request.idempotency_key is not None and request.payload is not None:
        known = services.supervisor.known(session, request.idempotency_key, request.payload)
        if known is not None:
            return SessionsSteerResult(run_id=known, status="accepted", interrupted=[])
    live = services.supervisor.current(session.key)
    # First of all that waits, and durable, before the live run is touched: it cannot be lost or overtaken.
    run = await services.supervisor.accept(session, request, first=True)
    interrupted = [] if live is None else await services.supervisor.stop(session, live.run_id)
    return SessionsSteerResult(run_id=run.run_id, status="accepted", interrupted=interrupted)


METHOD = Method(
    "sessions.steer",
    "send",
    SessionsSteerParams,
    SessionsSteerResult,
    handle,
    "Interrupt the live run of a session and send it a message.",
)
