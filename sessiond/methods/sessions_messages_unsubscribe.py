"""`sessions.messages.unsubscribe`: stop following a session. Not following it is no error."""

from __future__ import annotations

from sessiond.methods.params import Params, SessionName
from sessiond.methods.services import Context
from sessiond.methods.sessions_messages_subscribe import MessagesSubscribedResult
from sessiond.rpc.method import Method
from sessiond.sessions.resolve import key_of


class MessagesUnsubscribeParams(Params, frozen=True, kw_only=True):
    key: SessionName


def handle(ctx: Context, params: MessagesUnsubscribeParams) -> MessagesSubscribedResult:
    services = ctx.services
    following = services.subscriptions.get(ctx.require_peer())
    key = key_of(services.store.catalog, ctx.caller, services.rules, params.key, field="$.key")
    # A followed session can be unsubscribed even if it was deleted or is not visible any more.
    if following is None or key not in following.keys:
        key = services.find(ctx.caller, params.key, field="$.key").key
    if following is not None:
        services.bus.unfollow(following, key)
    return MessagesSubscribedResult(subscribed=False, key=key)


METHOD = Method(
    "sessions.messages.unsubscribe",
    "read",
    MessagesUnsubscribeParams,
    MessagesSubscribedResult,
    handle,
    "Stop following one session.",
    streams=True,
)
