"""`chat.send` (`sessions.send`, `agent`): send a message to a session, which starts a run of its agent."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from sessiond.attachments.decode import Attachment
from sessiond.conversations.send import NewMessage, SentMessage
from sessiond.methods.chat_commands import get_or_create_session, obey
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
from sessiond.policy import send as send_policy
from sessiond.policy.send import parse_command
from sessiond.rpc.method import Method
from sessiond.sessions import resolve
from sessiond.sessions.patch import check_model
from sessiond.store.catalog import Session


class ChatSendParams(Params, frozen=True, kw_only=True):
    session_key: SessionName
    message: MessageText
    idempotency_key: IdempotencyKey = None
    timeout_seconds: RunSeconds = None
    thinking: Annotated[ThinkingLevel | None, says("The thinking level of this run.")] = None
    model: Annotated[str | None, says("The model of this run.", default="the session's")] = None
    attachments: Annotated[list[Attachment], says("Files for the agent.")] = []
    deliver: Annotated[bool | None, says("Whether to deliver the reply to the session's channel too.")] = None


class ChatSendResult(Result, frozen=True, kw_only=True):
    run_id: Annotated[str | None, says("The run of the message; absent for a command.")] = None
    status: Annotated[
        Literal["accepted", "handled"],
        says("`handled`: the message was a command of the owner, which was carried out."),
    ]
    session_key: Annotated[
        str | None, says("The canonical key of the session that goes on with the other program's one that was named.")
    ] = None
    cursor: Annotated[str | None, says("A cursor: the place in the transcript after its newest record.")] = None
    reason: Annotated[
        Literal["inbox"] | None,
        says("`inbox`: no agent runs; the message is kept for the program that reads this session."),
    ] = None
    command: Annotated[str | None, says("The command that was carried out, such as `/stop`.")] = None
    reply: Annotated[str | None, says("The answer of the command.")] = None


async def handle(ctx: Context, params: ChatSendParams) -> ChatSendResult:
    command = parse_command(params.message) if ctx.caller.kind == "owner" else None
    if command is not None:
        reply = await obey(ctx, params.session_key, command)
        return ChatSendResult(status="handled", command=f"/{command.name}", reply=reply)
    elsewhere = await find_elsewhere(ctx, params.session_key, check=lambda: _model_of(ctx, params))
    if elsewhere is not None:
        return replace(await send(ctx, elsewhere, params), session_key=elsewhere.key)
    named = await _target(ctx, params)
    session = await require_target(ctx, named, check=lambda: _model_of(ctx, params))
    sent = await send(ctx, session, params)
    # The caller has named another program's session, and cannot know which of ours goes on with it.
    return sent if named.folder.source is None else replace(sent, session_key=session.key)


async def send(ctx: Context, session: Session, params: ChatSendParams) -> ChatSendResult:
    """Accept the message for a session that `require_target` has let through."""
    message = message_of(ctx, session, params, METHOD.name)
    sent = await ctx.services.sends.send(session, message, on_queued=ctx.release_next)
    return _accepted_result(ctx, sent)


def _accepted_result(ctx: Context, sent: SentMessage) -> ChatSendResult:
    session = sent.session
    facts = session.entry.file
    cursor = ctx.services.store.cursor(session, facts.folded_to, session.entry.message_count)
    # No agent runs: the program that reads this session gets the message from `sessions_inbox`.
    reason: Literal["inbox"] | None = "inbox" if sent.kept else None
    return ChatSendResult(run_id=sent.run_id, status="accepted", cursor=cursor, reason=reason)


async def _target(ctx: Context, params: ChatSendParams) -> Session:
    """The session; a message of the owner creates it if its agent is configured.

    Source: protocol.md, "Who creates a session".
    """
    services = ctx.services
    if ctx.caller.kind != "owner":
        return services.find_addressee(ctx.caller, params.session_key)
    key = resolve.key_of(services.store.catalog, ctx.caller, services.rules, params.session_key)
    found = services.store.catalog.by_key.get(key) if key is not None else None
    # For a session that is being deleted or reset, `get_or_create_session` waits until that is done.
    if key is None or (found is not None and found.leaving is None):
        return services.find_addressee(ctx.caller, params.session_key)
    send_policy.require_allowed(services.config.session.send_policy, key)
    _model_of(ctx, params)  # checked first: an invalid message must not create a session
    return await get_or_create_session(ctx, params.session_key)


def _model_of(ctx: Context, params: ChatSendParams) -> str | None:
    """The full name of the requested model. InvalidParams if there is no such model."""
    return check_model(ctx.services.config, params.model)["model"] if params.model is not None else None


def message_of(
    ctx: Context, session: Session, params: ChatSendParams, tool: str, *, steers: bool = False
) -> NewMessage:
    """The params as a message to the session, sent with the method `tool`. InvalidParams."""
    model = _model_of(ctx, params)
    payload = {}
    if params.idempotency_key is not None:
        payload = msgspec.to_builtins(params)
        # The same message with another time limit or another alias of the session is still a repetition.
        for name in ("timeoutSeconds", "idempotencyKey", "sessionKey"):
            del payload[name]
    return NewMessage(
        text=params.message,
        tool=tool,
        source=ctx.services.stranger(ctx.caller, session.key, ctx.params_meta),
        idempotency_key=params.idempotency_key,
        payload=payload,
        timeout_s=params.timeout_seconds,
        thinking=params.thinking,
        model=model,
        deliver=bool(params.deliver),
        files=params.attachments,
        steers=steers,
    )


METHOD = Method(
    "chat.send",
    "send",
    ChatSendParams,
    ChatSendResult,
    handle,
    "Send a message to a session and run its agent; the answer comes from agent.wait or as events.",
    aliases=("sessions.send", "agent"),
    ordered=True,
)
