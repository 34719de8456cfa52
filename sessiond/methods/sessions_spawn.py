"""`sessions_spawn`: start a sub-agent with a task and files. Returns at once; the result is announced at its end."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sessiond.attachments.decode import Attachment
from sessiond.attachments.materialize import Receipt
from sessiond.errors import Conflict, LimitExceeded
from sessiond.methods.params import IdempotencyKey, Line, Params, Result, says
from sessiond.methods.services import Context
from sessiond.model.keys import AGENT_ID, agent_of, main_key
from sessiond.policy.spawn import SpawnRequest
from sessiond.ranges import THINKING_LEVELS
from sessiond.rpc.method import Method
from sessiond.store.catalog import Session
from sessiond.subagents.spawn import SpawnOrder


class AttachAs(Params, frozen=True, kw_only=True):
    """Where the child finds its files."""

    mount_path: Annotated[str, says("The path under which the task refers to them.")]


class SessionsSpawnParams(Params, frozen=True, kw_only=True):
    task: Annotated[
        str,
        Meta(pattern=r"\S", extra={"expected": "text that is not blank"}),
        says("The task.", takes="not blank; at most half of `limits.maxRecordBytes`"),
    ]
    label: Annotated[Line | None, says("A label for the child's session.")] = None
    runtime: Annotated[
        Literal["subagent", "acp"], says('`acp`: the child has to be of an agent with the runtime type "acp".')
    ] = "subagent"
    resume_session_id: Annotated[
        Line | None, says("With `acp`: the session of the agent program that the child goes on with, by its id there.")
    ] = None
    agent_id: Annotated[
        str | None,
        says(
            "The child's agent; on another machine `<machine>/<agent>`.",
            default="the caller's; with `acp`, `acp.defaultAgent`",
            takes=f"`{AGENT_ID.pattern}`",
        ),
    ] = None
    model: Annotated[str | None, says("The child's model.", default="`subagents.model`, else the agent's")] = None
    thinking: Annotated[
        Annotated[str, Meta(extra_json_schema={"enum": list(THINKING_LEVELS)})] | None,
        says("The thinking level of the child.", default="`subagents.thinking`"),
    ] = None
    run_timeout_seconds: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        says("The time limit of the child's run in seconds; 0: no limit.", default="`subagents.runTimeoutSeconds`"),
    ] = None
    thread: Annotated[bool, says("Whether to bind the child to a thread of the caller's channel.")] = False
    mode: Annotated[
        Literal["run", "session"] | None,
        says(
            "`session`: the child is kept for further messages; requires `thread`.",
            default='"run"; "session" with `thread`',
        ),
    ] = None
    cleanup: Annotated[
        Literal["delete", "keep"] | None,
        says("Whether to keep or delete the child's session at its end.", default='"keep"'),
    ] = None
    sandbox: Annotated[
        Literal["inherit", "require"], says("`require`: refuse if the child would not be sandboxed.")
    ] = "inherit"
    attachments: Annotated[list[Attachment], says("Files for the child.")] = []
    attach_as: Annotated[AttachAs | None, says("Where the child finds the files.")] = None
    idempotency_key: IdempotencyKey = None


class SessionsSpawnResult(Result, frozen=True, kw_only=True):
    status: Annotated[Literal["accepted"], says("Always `accepted`: the call does not wait for the run.")]
    run_id: Annotated[str, says("The child's run, for agent.wait.")]
    child_session_key: Annotated[str, says("The canonical key of the child's session.")]
    mode: Annotated[str, says("`run`, or `session` if the child is kept for further messages.")]
    attachments: Annotated[Receipt | None, says("The files as they were written.")] = None


async def handle(ctx: Context, params: SessionsSpawnParams) -> SessionsSpawnResult:
    services = ctx.services
    requester = await _requester(ctx)
    asked = msgspec.to_builtins(params)
    del asked["idempotencyKey"]
    if params.resume_session_id is None:
        # It would change the hash of requests that were made before there was this parameter.
        del asked["resumeSessionId"]
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
            resume_session_id=params.resume_session_id,
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
        requester,
        wanted,
        sandboxed=ctx.caller.sandboxed,
        sees=services.sees(ctx.caller),
        machine=services.source(ctx.caller, ctx.params_meta).machine,
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
    session, _ = await services.session_changes.ensure(key, agent_id, cwd=str(services.workspace(agent_id)))
    return session


METHOD = Method(
    "sessions_spawn",
    "spawn",
    SessionsSpawnParams,
    SessionsSpawnResult,
    handle,
    "Start a sub-agent on a task, with files; its result is announced to the requesting session.",
)
