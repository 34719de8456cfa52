"""`sessions.messages.unsubscribe`: follow that session no longer; not following is no error."""

from __future__ import annotations

from sessiond.methods.params import Params
from sessiond.methods.services import Context
from sessiond.methods.sessions_messages_subscribe import MessagesSubscribedResult
from sessiond.rpc.method import Method


class MessagesUnsubscribeParams(Params, frozen=True, kw_only=True):
    key: str


def handle(ctx: Context, params: MessagesUnsubscribeParams) -> MessagesSubscribedResult:
    services = ctx.services
    session = services.find(ctx.caller, params.key, field="$.key")
    following = services.subscriptions.get(ctx.peer)
    if following is not None:
        services.bus.unfollow(following, session.key)
    return MessagesSubscribedResult(subscribed=False, key=session.key)


METHOD = Method(
    "sessions.messages.unsubscribe",
    "read",
    MessagesUnsubscribeParams,
    MessagesSubscribedResult,
    handle,
    "Follow one session no longer.",
    streams=True,
)
