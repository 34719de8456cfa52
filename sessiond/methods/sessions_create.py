"""`sessions.create`: create a session, with a given or a new key, and send its first message. The key may exist."""

from __future__ import annotations

from typing import Annotated, Any

from sessiond.conversations.working_folder import require_folder
from sessiond.errors import InvalidParams, NotFound, quote
from sessiond.methods import chat_send
from sessiond.methods.params import AgentIdText, Line, MessageText, Params, Result, check_by, check_folder, says
from sessiond.methods.send_target import require_target
from sessiond.methods.services import Context
from sessiond.model.keys import agent_of, is_foreign, is_inbox, rest_of
from sessiond.model.record import ENTRY
from sessiond.policy.spawn import is_sandboxed
from sessiond.rpc.method import Method
from sessiond.sessions import listing, resolve
from sessiond.sessions.patch import check_model, claimed_label
from sessiond.store.catalog import Session
from sessiond.store.store import Custom


class SessionsCreateParams(Params, frozen=True, kw_only=True):
    key: Annotated[str | None, says("The key of the session.", default="a new `agent:<agentId>:dashboard:<uuid>`")] = (
        None
    )
    agent_id: Annotated[
        AgentIdText | None,
        says("The agent of a session without `key`.", default="the caller's agent, else the default one"),
    ] = None
    label: Annotated[Line | None, says("A label, unique among the sessions of the agent.")] = None
    model: Annotated[str | None, says("The model of the session.", default="the agent's")] = None
    cwd: Annotated[
        Annotated[str, check_by(check_folder, "an absolute path")] | None,
        says("The folder in which a new session works; it has to exist.", default="the agent's workspace"),
    ] = None
    parent_session_key: Annotated[
        str | None, says("The parent of the new session: it becomes that session's child.")
    ] = None
    message: Annotated[MessageText | None, says("A first message to send to the session.")] = None


class SessionsCreateResult(Result, frozen=True, kw_only=True):
    key: Annotated[str, says("The canonical key of the session.")]
    session_id: Annotated[str, says("The id of its transcript.")]
    created: Annotated[bool, says("Whether the session was created by this call.")]
    run_id: Annotated[str | None, says("The run of `message`.")] = None


async def handle(ctx: Context, params: SessionsCreateParams) -> SessionsCreateResult:
    services = ctx.services
    key = _key(ctx, params)
    parent = params.parent_session_key
    if parent is not None:
        parent = services.find(ctx.caller, parent, field="$.parentSessionKey", action="send").key
    sight = services.sight_of(ctx.caller, "send")
    spawned_by = resolve.choose_spawner(services.store.catalog, sight, key, parent, named=params.key is not None)
    if is_foreign(key):  # only the program itself creates its sessions
        services.find(ctx.caller, key, field="$.key", action="send")
        raise resolve.no_such_session(key)
    agent_id = agent_of(key)
    agent = services.config.agent(agent_id)
    # An existing inbox stays usable after its agent was removed from the configuration: no agent runs in it.
    if agent is None and not (is_inbox(key) and key in services.store.catalog.by_key):
        raise NotFound(f"no agent {quote(agent_id)}; `agents_list` shows the agents there are", code="agent_not_found")
    sees = services.sees(ctx.caller)
    # Claimed, so that only one of two concurrent calls gets the label.
    with claimed_label(services.store.catalog, key, params.label, sees, by=spawned_by) as label:
        session, created = await _get_or_create(ctx, params, key, spawned_by, label)
    run_id = None
    if params.message is not None:
        session = await require_target(ctx, session)
        sent = await chat_send.send(ctx, session, chat_send.ChatSendParams(session_key=key, message=params.message))
        run_id = sent.run_id
    return SessionsCreateResult(key=key, session_id=session.session_id, created=created, run_id=run_id)


async def _get_or_create(
    ctx: Context, params: SessionsCreateParams, key: str, spawned_by: str | None, label: str | None
) -> tuple[Session, bool]:
    """The session with the requested settings, and whether it was created by this call."""
    services, agent_id = ctx.services, agent_of(key)
    entry: dict[str, Any] = {}
    if params.model is not None:
        entry |= check_model(services.config, params.model)
    if label is not None:
        entry["label"] = label
    if spawned_by is not None:
        entry["spawnedBy"] = spawned_by
    if ctx.caller.sandboxed and key not in services.store.catalog.by_key:
        entry["sandboxed"] = True
    parts = [Custom(ENTRY, entry)] if entry else []
    cwd = await _chosen_folder(ctx, params, key)
    made = [Custom(ENTRY, {**entry, "keepsCwd": True})] if cwd is not None else parts
    session, created = await services.session_changes.ensure(
        key, agent_id, cwd=cwd or str(services.workspace(agent_id)), parts=made
    )
    if not created and parts:
        await services.store.append(session, parts)
    return session, created


async def _chosen_folder(ctx: Context, params: SessionsCreateParams, key: str) -> str | None:
    """The folder for a new session. InvalidParams, or Forbidden, where its agent cannot work there."""
    services, agent_id = ctx.services, agent_of(key)
    if params.cwd is None:
        return None
    agent = services.config.agent(agent_id)
    is_main = rest_of(key) == services.config.session.main_key
    sandboxed = agent is not None and is_sandboxed(agent.sandbox.mode, is_main=is_main)
    cwd = listing.normalize_folder(params.cwd)
    await require_folder(
        cwd,
        agent_id=agent_id,
        workspace=services.workspace(agent_id),
        sandboxed=sandboxed or ctx.caller.sandboxed,
        field="$.cwd",
    )
    return cwd


def _key(ctx: Context, params: SessionsCreateParams) -> str:
    services = ctx.services
    if params.key is None:
        agent_id = params.agent_id or ctx.caller.agent_id or services.config.default_agent()
        return f"agent:{agent_id}:dashboard:{services.ids.uuid()}"
    key = resolve.key_of(services.store.catalog, ctx.caller, services.rules, params.key, field="$.key")
    if key is None:
        return services.find(ctx.caller, params.key, field="$.key", action="send").key
    if params.agent_id is not None and agent_of(key) != params.agent_id:
        raise InvalidParams(
            f"`$.agentId` is {quote(params.agent_id)}, but `$.key` belongs to agent {quote(agent_of(key))}.",
            field="$.agentId",
        )
    return key


METHOD = Method(
    "sessions.create",
    "admin",
    SessionsCreateParams,
    SessionsCreateResult,
    handle,
    "Create a session, unless it exists.",
    ordered=True,
)
