"""`sessions_send`: send a message to another session and wait for its answer. A timeout does not end the run."""

from __future__ import annotations

from typing import Annotated, Literal

import trio

from sessiond.conversations.send import NewMessage
from sessiond.conversations.wait_cycle import waits_on_sender
from sessiond.delivery.outbox import DeliveryStatus
from sessiond.errors import InvalidParams
from sessiond.methods.params import IdempotencyKey, MessageText, Params, Result, clamp_to, says
from sessiond.methods.send_target import find_elsewhere, find_for_machine, require_target
from sessiond.methods.services import Context
from sessiond.ranges import SEND_WAIT_S
from sessiond.rpc.method import Method
from sessiond.runs.run import RunView, view
from sessiond.sessions import resolve
from sessiond.store.catalog import Session


class SessionsSendParams(Params, frozen=True, kw_only=True):
    session_key: Annotated[
        str | None,
        says(
            "The target session: a key, an alias or a session id; on another machine `<machine>/<session>`. Give this"
            " or `label`."
        ),
    ] = None
    label: Annotated[str | None, says("The label of the session, instead of `sessionKey`.")] = None
    agent_id: Annotated[
        str | None, says("The agent whose sessions are searched for `label`.", default="all agents'")
    ] = None
    message: MessageText
    timeout_seconds: Annotated[
        float, clamp_to(SEND_WAIT_S, "How many seconds to wait for the reply; 0: do not wait.", refuses_less=True)
    ] = SEND_WAIT_S.default
    idempotency_key: IdempotencyKey = None


class SendDelivery(Result, frozen=True, kw_only=True):
    """The status of the announcement at the end of the conversation."""

    status: Annotated[DeliveryStatus, says("The status of the delivery to the channel.")]
    mode: Annotated[str, says("How the outcome is delivered: `announce`.")]


class SessionsSendResult(Result, frozen=True, kw_only=True):
    run_id: Annotated[str, says("The run of the message.")]
    status: Annotated[
        Literal["accepted", "ok", "timeout", "error"],
        says("`accepted`: the call did not wait. `timeout`: the wait is over, the run goes on."),
    ]
    reason: Annotated[
        str | None,
        says(
            "Why the call did not wait. `inbox`: a program reads them; `ancestor_busy`: the run waits for the caller."
        ),
    ] = None
    reply: Annotated[str | None, says("The reply, with status `ok`.")] = None
    error: Annotated[str | None, says("What went wrong, in a sentence, with status `error` or `timeout`.")] = None
    session_key: Annotated[str, says("The canonical key of the session.")]
    delivery: Annotated[SendDelivery | None, says("The delivery of the announcement that ends the conversation.")] = (
        None
    )


async def handle(ctx: Context, params: SessionsSendParams) -> SessionsSendResult:
    services = ctx.services
    target = await _target(ctx, params)
    timeout_s = params.timeout_seconds
    source = services.source(ctx.caller, ctx.params_meta)
    # Checked before the message is queued, which would count as waiting for the sender itself.
    busy = waits_on_sender(services.supervisor, source, target)
    sent = await services.sends.send(
        target,
        NewMessage(
            text=params.message,
            tool=METHOD.name,
            source=source,
            idempotency_key=params.idempotency_key,
            payload={"method": METHOD.name, "message": params.message},
        ),
        on_queued=ctx.release_next,
    )
    # An earlier message with the same idempotency key may stand in an older transcript.
    target = services.supervisor.registry.session_of(sent.run_id) or sent.session
    if sent.kept:
        return SessionsSendResult(run_id=sent.run_id, status="accepted", reason="inbox", session_key=target.key)
    if not timeout_s or busy:
        return SessionsSendResult(
            run_id=sent.run_id,
            status="accepted",
            reason="ancestor_busy" if busy and timeout_s else None,
            session_key=target.key,
            delivery=await _delivery(ctx, target, sent.run_id),
        )
    ended = await _wait(ctx, sent.run_id, timeout_s)
    return await _result(ctx, target, sent.run_id, ended, timeout_s)


async def _target(ctx: Context, params: SessionsSendParams) -> Session:
    services = ctx.services
    if params.session_key is not None and params.label is not None:
        raise InvalidParams("Provide either sessionKey or label (not both).", field="$.label")
    if params.session_key is not None:
        elsewhere = await find_elsewhere(ctx, params.session_key)
        if elsewhere is not None:
            return elsewhere
        if ctx.caller.is_machine:
            found = await find_for_machine(ctx, params.session_key)
        else:
            found = services.find_addressee(ctx.caller, params.session_key)
        if found.archived:
            raise resolve.no_such_session(params.session_key)
        return await require_target(ctx, found)
    if params.label is None:
        raise InvalidParams("Either sessionKey or label is required.", field="$.sessionKey")
    sight = services.sight_of(ctx.caller, "address")
    found = resolve.find_by_label(services.store.catalog, sight, params.label.strip(), agent_id=params.agent_id)
    return await require_target(ctx, found)


async def _wait(ctx: Context, run_id: str, timeout_s: float) -> RunView | None:
    """How the run ended; None if the time was over first. After a lost connection the client can call `agent.wait`."""
    services = ctx.services
    registry = services.supervisor.registry
    run = registry.get(run_id)
    if run is None:
        return await registry.find(run_id)
    with trio.move_on_after(timeout_s), services.park_run(ctx, run_id), run.note_listener(ctx.caller.session_key):
        await run.done.wait()
    return view(run) if run.done.is_set() else None


async def _result(
    ctx: Context, target: Session, run_id: str, ended: RunView | None, timeout_s: float
) -> SessionsSendResult:
    if ended is None or ended.ended_at is None:
        error = f"no answer within {timeout_s:g} s; the run goes on, and agent.wait tells its end"
        return SessionsSendResult(run_id=run_id, status="timeout", error=error, session_key=target.key)
    if ended.status != "ok":
        # An error may quote the program's stderr, which may contain secrets.
        error = ctx.services.masked_text(ctx.caller, ended.error) or "agent error"
        return SessionsSendResult(run_id=run_id, status="error", error=error, session_key=target.key)
    return SessionsSendResult(
        run_id=run_id,
        status="ok",
        reply=ctx.services.masked_text(ctx.caller, ended.reply),
        session_key=target.key,
        delivery=await _delivery(ctx, target, run_id),
    )


async def _delivery(ctx: Context, target: Session, run_id: str) -> SendDelivery:
    services = ctx.services
    run = services.supervisor.registry.get(run_id)
    status: DeliveryStatus
    if run is not None and not run.ended:
        # At this moment the announcement cannot be done yet, except for a call repeated with its idempotency key.
        status = "pending"
    elif run is not None and run.done.is_set() and run.delivery is not None:
        status = run.delivery
    else:
        status = await services.announcing.status(target, run_id)
    return SendDelivery(status=status, mode="announce")


METHOD = Method(
    "sessions_send",
    "send",
    SessionsSendParams,
    SessionsSendResult,
    handle,
    "Send a message to another session, and wait for its reply.",
    ordered=True,
)
