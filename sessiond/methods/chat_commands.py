"""The owner's standalone commands in chat.send: `/send on|off|inherit`, `/stop`, `/reset`. They start no run.

Source: runs.md, "Send policy".
"""

from __future__ import annotations

from sessiond.errors import NotFound, pluralize, quote
from sessiond.methods.services import Context
from sessiond.methods.sessions_reset import reset
from sessiond.model.keys import agent_of, is_foreign
from sessiond.model.record import ENTRY
from sessiond.policy.send import OwnerCommand
from sessiond.sessions import resolve
from sessiond.store.catalog import Session
from sessiond.store.store import Custom


async def obey(ctx: Context, text: str, command: OwnerCommand) -> str:
    """Carry out the command in the session that `text` names; the answer for the owner. Ignores the send policy."""
    match command.name:
        case "stop":
            return await _stop(ctx, _there(ctx, text))
        case "reset":
            session = _there(ctx, text)
            if session is None:
                return "There is no conversation to reset."
            await reset(ctx, session)
            return "A new conversation begins; the old one is in the archive."
        case "send":
            if command.sets_override:
                session = _there(ctx, text) or await get_or_create_session(ctx, text)
                await ctx.services.store.append(session, [Custom(ENTRY, {"sendPolicy": command.override})])
            return command.reply or ""


async def _stop(ctx: Context, session: Session | None) -> str:
    stopped = await ctx.services.supervisor.stop(session) if session is not None else []
    if not stopped:
        return "Nothing is running here."
    return f"Stopped {pluralize(len(stopped), 'run')}."


def _there(ctx: Context, text: str) -> Session | None:
    """The session; None if it does not exist yet and a message of the owner would create it."""
    services = ctx.services
    key = resolve.key_of(services.store.catalog, ctx.caller, services.rules, text)
    if key is None or key in services.store.catalog.by_key:
        return services.find(ctx.caller, text, action="send")
    _check_configured(ctx, key)
    return None


async def get_or_create_session(ctx: Context, text: str) -> Session:
    """The session of a well-formed key of a configured agent, created if there is none.

    Source: protocol.md, "Who creates a session".
    """
    services = ctx.services
    key = resolve.key_of(services.store.catalog, ctx.caller, services.rules, text)
    if key is None:
        return services.find(ctx.caller, text, action="send")
    agent_id = _check_configured(ctx, key)
    session, _ = await services.session_changes.ensure(key, agent_id, cwd=str(services.workspace(agent_id)))
    return session


def _check_configured(ctx: Context, key: str) -> str:
    if is_foreign(key):  # only the program itself creates its sessions
        raise resolve.no_such_session(key)
    agent_id = agent_of(key)
    if ctx.services.config.agent(agent_id) is None:
        raise NotFound(f"no agent {quote(agent_id)}; `agents_list` shows the agents there are", code="agent_not_found")
    return agent_id
