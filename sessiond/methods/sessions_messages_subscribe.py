"""`sessions.messages.subscribe`: what came after a cursor, then everything as it comes; no gap, nothing twice."""

from __future__ import annotations

from sessiond.events.bus import Place
from sessiond.methods.following import subscription
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.store.cursor import Position


class MessagesSubscribeParams(Params, frozen=True, kw_only=True):
    key: str
    cursor: str | None = None


class MessagesSubscribedResult(Result, frozen=True, kw_only=True):
    subscribed: bool
    key: str
    cursor: str | None = None


def handle(ctx: Context, params: MessagesSubscribeParams) -> MessagesSubscribedResult:
    services = ctx.services
    session = services.find(ctx.caller, params.key, field="$.key")
    now = Position(session.entry.file.folded_to, session.entry.message_count)
    place = services.store.position(session, params.cursor) if params.cursor is not None else now
    following = subscription(ctx)
    services.bus.follow(following, session.key)
    # From here to the return nothing is awaited: what is not replayed is offered live.
    if place != now:
        following.fall_back(session.key, Place(session.session_id, place.offset, place.seq))
    cursor = services.store.cursor(session, place.offset, place.seq)
    return MessagesSubscribedResult(subscribed=True, key=session.key, cursor=cursor)


METHOD = Method(
    "sessions.messages.subscribe",
    "read",
    MessagesSubscribeParams,
    MessagesSubscribedResult,
    handle,
    "Follow one session from a cursor on.",
    streams=True,
)
