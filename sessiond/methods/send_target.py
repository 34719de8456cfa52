"""The session that a message goes to: the one that was named, or for another program's session one of ours."""

from __future__ import annotations

from collections.abc import Callable

from sessiond.methods.services import Context
from sessiond.policy import send as send_policy
from sessiond.store.catalog import Session


def _check_nothing() -> None:
    pass


async def require_target(ctx: Context, found: Session, *, check: Callable[[], object] = _check_nothing) -> Session:
    """The session for a message to `found`, to which the send policy lets it through.

    For another program's session it is that of ours which goes on with it, created now if there is none, after `check`
    has let the message pass; for one that is live in a terminal it is that in which messages wait for its program.
    Forbidden by the policy; Unsupported where nothing can go on with it.
    """
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
