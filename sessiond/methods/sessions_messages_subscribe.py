"""`sessions.messages.subscribe`: replay a session from a cursor on, then follow it live. Each message comes once.

The cursor may be from before a reset: then the rest of the old transcript comes first, and `session.resync` before the
new one. After a rewrite of the file `session.resync` comes at once. The cursor `start` is before the first record.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from sessiond.events import replay
from sessiond.events.subscription import FollowPlace
from sessiond.methods.following import follow, subscription
from sessiond.methods.params import Params, Result, SessionName, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Later, LongWork, Method
from sessiond.sessions.resolve import no_such_session
from sessiond.store.catalog import Session


class MessagesSubscribeParams(Params, frozen=True, kw_only=True):
    key: SessionName
    cursor: Annotated[
        str | None,
        says("First replay the messages after this place; `start` is before the first record.", default="now"),
    ] = None


class MessagesSubscribedResult(Result, frozen=True, kw_only=True):
    subscribed: Annotated[bool, says("Whether the connection follows the session now.")]
    key: Annotated[str, says("The canonical key of the session.")]
    cursor: Annotated[str | None, says("The place from which it is followed.")] = None


def handle(ctx: Context, params: MessagesSubscribeParams) -> Later | LongWork:
    # Only a session of another program may have to be waited for; others keep their place among the requests.
    session = ctx.services.find(ctx.caller, params.key, field="$.key")
    if session.is_partial:
        return LongWork(partial(_follow_when_whole, ctx, params))
    done = Later()
    done.settle_with(_follow_now(ctx, params, session))
    return done


async def _follow_when_whole(ctx: Context, params: MessagesSubscribeParams) -> Later:
    session = await ctx.services.find_whole(ctx.caller, params.key, field="$.key")
    done = Later()
    done.settle_with(_follow_now(ctx, params, session))
    return done


def _follow_now(ctx: Context, params: MessagesSubscribeParams, session: Session) -> MessagesSubscribedResult:
    services = ctx.services
    if session.archived:
        raise no_such_session(params.key)  # it gets no more messages, and its key may be another session's by now
    facts = session.entry.file
    place = FollowPlace(session.session_id, facts.folded_to, session.entry.message_count)
    now = place
    if params.cursor is not None:
        place = replay.place_of(services.store, session, params.cursor)
    following = subscription(ctx)
    # A session that this connection follows already is not replayed again.
    caught_up = place == now or following.has_had(session.key, place)
    follow(ctx, session.key)
    # No await from here to the return, so that every later message is offered live or replayed.
    if not caught_up:
        following.start_lag(session.key, place)
    cursor = params.cursor
    if cursor is None or place.offset == 0:
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
    later=True,
)
