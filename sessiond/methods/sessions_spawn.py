"""`sessions_spawn`: a sub-agent with a task and files; accepted at once, announced when it ends."""

from __future__ import annotations

from typing import Literal

import msgspec

from sessiond.attachments.decode import Attachment
from sessiond.attachments.materialize import Receipt
from sessiond.errors import Conflict, InvalidParams, LimitExceeded
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.model.keys import agent_of, main_key
from sessiond.policy.spawn import SpawnRequest
from sessiond.rpc.method import Method
from sessiond.store.catalog import Session
from sessiond.subagents.spawn import SpawnOrder


class AttachAs(Params, frozen=True, kw_only=True):
    mount_path: str


class SessionsSpawnParams(Params, frozen=True, kw_only=True):
    task: str
    label: str | None = None
    runtime: Literal["subagent", "acp"] = "subagent"
    agent_id: str | None = None
    model: str | None = None
    thinking: str | None = None
    run_timeout_seconds: float | None = None
    thread: bool = False
    mode: Literal["run", "session"] | None = None
    cleanup: Literal["delete", "keep"] | None = None
    sandbox: Literal["inherit", "require"] = "inherit"
    attachments: list[Attachment] = []
    attach_as: AttachAs | None = None
    idempotency_key: str | None = None


class SessionsSpawnResult(Result, frozen=True, kw_only=True):
    status: Literal["accepted"]
    run_id: str
    child_session_key: str
    mode: str
    attachments: Receipt | None = None


async def handle(ctx: Context, params: SessionsSpawnParams) -> SessionsSpawnResult:
    services = ctx.services
    if not params.task.strip():
        raise InvalidParams("`$.task` is empty: say what is to be done.", field="$.task")
    if params.run_timeout_seconds is not None and params.run_timeout_seconds < 0:
        raise InvalidParams("`$.runTimeoutSeconds` is below 0; 0 is no limit.", field="$.runTimeoutSeconds")
    if params.idempotency_key is not None and not 1 <= len(params.idempotency_key) <= 256:
        raise InvalidParams("`$.idempotencyKey` has 1 to 256 characters.", field="$.idempotencyKey")
    requester = await _requester(ctx)
    asked = msgspec.to_builtins(params)
    del asked["idempotencyKey"]
    wanted = SpawnOrder(
        task=params.task,
        request=SpawnRequest(
            agent_id=params.agent_id,
            runtime=params.runtime,
            mode=params.mode,
            thread=params.thread,
            cleanup=params.cleanup,
            sandbox=params.sandbox,
            model=params.model,
            thinking=params.thinking,
        ),
        asked=asked,
        label=params.label,
        run_timeout_s=params.run_timeout_seconds,
        attachments=params.attachments,
        mount_path=params.attach_as.mount_path if params.attach_as is not None else None,
        idempotency_key=params.idempotency_key,
    )
    if len(params.task.encode()) > services.store.record_limit // 2:
        raise LimitExceeded(
            f"`$.task` is longer than {services.store.record_limit // 2} bytes (half of limits.maxRecordBytes);"
            " attach long texts as files",
            limit="limits.maxRecordBytes",
            value=services.store.record_limit,
        )
    if ctx.caller.run_id is not None and services.acting_run(ctx.caller) is None:
        raise Conflict("the run that asks for this sub-agent is over; nothing was spawned")
    made = await services.spawner.spawn(
        requester, wanted, sandboxed=ctx.caller.sandboxed, sees=services.sees(ctx.caller)
    )
    return SessionsSpawnResult(
        status="accepted",
        run_id=made.run_id,
        child_session_key=made.child_key,
        mode=made.mode,
        attachments=made.receipt,
    )


async def _requester(ctx: Context) -> Session:
    """The caller's session; the owner counts as the default agent's main session.

    Source: protocol.md, "Who creates a session".
    """
    services, caller = ctx.services, ctx.caller
    key = caller.session_key or main_key(caller.agent_id or services.config.default_agent(), services.rules)
    agent_id = agent_of(key)
    session, _ = await services.births.ensure(key, agent_id, cwd=str(services.workspace(agent_id)))
    return session


METHOD = Method(
    "sessions_spawn",
    "spawn",
    SessionsSpawnParams,
    SessionsSpawnResult,
    handle,
    "Start a sub-agent on a task, with files; its outcome is announced to the session that asked.",
)
