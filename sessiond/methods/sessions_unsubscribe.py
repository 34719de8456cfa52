"""`sessions.unsubscribe`: undo sessions.subscribe. Not following is no error."""

from __future__ import annotations

from sessiond.methods.params import NoParams
from sessiond.methods.services import Context
from sessiond.methods.sessions_subscribe import SubscribedResult
from sessiond.rpc.method import Method


def handle(ctx: Context, params: NoParams) -> SubscribedResult:  # noqa: ARG001
    following = ctx.services.subscriptions.get(ctx.require_peer())
    if following is not None:
        ctx.services.bus.unfollow(following, None)
    return SubscribedResult(subscribed=False)


METHOD = Method(
    "sessions.unsubscribe", "list", NoParams, SubscribedResult, handle, "Stop following all sessions.", streams=True
)
