"""The session that a message goes to: the one that was named, or for another program's session one of ours."""

from __future__ import annotations

from collections.abc import Callable

from sessiond.methods.services import Context
from sessiond.model.keys import agent_of, machine_of, main_key
from sessiond.model.record import ENTRY
from sessiond.policy import send as send_policy
from sessiond.policy.visibility import settings_to_reach_others
from sessiond.sessions import resolve
from sessiond.sessions.elsewhere import address_of, by_key_there, no_such_machine, session_for
from sessiond.store.catalog import Session
from sessiond.store.store import Custom


def _check_nothing() -> None:
    pass


async def require_target(ctx: Context, found: Session, *, check: Callable[[], object] = _check_nothing) -> Session:
    """The session for a message to `found`, to which the send policy lets it through.

    For another program's session it is that of ours which goes on with it, created now if there is none, after `check`
    has let the message pass; for one that is live in a terminal it is that in which messages wait for its program. For
    another machine's it is that of ours whose messages go there.
    Forbidden by the policy; Unsupported where nothing can go on with it.
    """
    if machine_of(found.key) is not None:
        elsewhere = await find_elsewhere(ctx, found.key, check=check)
        assert elsewhere is not None
        return elsewhere
    services = ctx.services
    policy = services.config.session.send_policy
    if found.folder.source is None:
        send_policy.require_allowed(policy, found.key, found.entry)
        return found
    attending = services.attending.find_live(found.key)
    if attending is not None:
        # Its program is there and works on it: the message waits for its next turn.
        send_policy.require_allowed(policy, found.key, found.entry)
        check()
        return attending
    planned = await services.continuations.plan(found)
    ours = planned.session
    send_policy.require_allowed(policy, planned.key, ours.entry if ours is not None else None)
    check()
    return await services.continuations.begin(planned)


async def find_elsewhere(
    ctx: Context, text: str, *, check: Callable[[], object] = _check_nothing, field: str = "$.sessionKey"
) -> Session | None:
    """The session of ours for messages to `<machine>/<session>`; None where `text` names a session here.

    It is created if there is none, after the send policy and `check` have let the message pass. NotFound for a machine
    that is not in the configuration, or to which the caller may not send.
    """
    services, address = ctx.services, address_of(text, field)
    if address is None:
        return None
    config, catalog = services.config, services.store.catalog
    sight, address = services.sight_of(ctx.caller, "address"), by_key_there(catalog, address)
    key, found = session_for(catalog, address, field)
    if not resolve.may_name(catalog, sight, found, key) or config.machine(address.machine) is None:
        missing = settings_to_reach_others(ctx.caller, ctx.services.visibility_rules)
        raise no_such_machine(address.machine, sight, [peer.name for peer in config.link.peers], text, missing)
    send_policy.require_allowed(config.session.send_policy, key, found.entry if found is not None else None)
    check()
    cwd = str(services.workspace(address.machine))
    parts = [Custom(ENTRY, {"target": address.text})]
    session, _ = await services.session_changes.ensure(key, address.machine, cwd=cwd, parts=parts)
    return session


async def find_for_machine(ctx: Context, text: str) -> Session:
    """As `find_addressee`, for another machine: the first message to an agent's main session begins that. NotFound."""
    services = ctx.services
    catalog, config = services.store.catalog, services.config
    key = resolve.key_of(catalog, ctx.caller, services.rules, text)
    agent_id = agent_of(key) if key is not None else ""
    if (
        key is not None
        and key not in catalog.by_key
        and config.agent(agent_id) is not None
        and key == main_key(agent_id, services.rules)
        and resolve.may_name(catalog, services.sight_of(ctx.caller, "address"), None, key)
    ):
        send_policy.require_allowed(config.session.send_policy, key)
        await services.session_changes.ensure(key, agent_id, cwd=str(services.workspace(agent_id)))
    return services.find_addressee(ctx.caller, text)
