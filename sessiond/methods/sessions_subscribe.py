"""`sessions.subscribe`: changes of all sessions that the caller may see; with the scope `read` messages too."""

from __future__ import annotations

from typing import Annotated

from sessiond.events.bus import Scope
from sessiond.methods.following import follow
from sessiond.methods.params import Params, Result, SourceNames, says
from sessiond.methods.services import Context
from sessiond.model.row import OWN_SOURCE
from sessiond.rpc.method import Method


class SessionsSubscribeParams(Params, frozen=True, kw_only=True):
    sources: SourceNames = None
    messages: Annotated[bool, says("Whether to follow what is said in them too, not only changes of their rows.")] = (
        True
    )


class SubscribedResult(Result, frozen=True, kw_only=True):
    subscribed: Annotated[bool, says("Whether the connection follows all sessions now.")]


def handle(ctx: Context, params: SessionsSubscribeParams) -> SubscribedResult:
    sources = None
    if params.sources is not None:
        sources = frozenset(None if name == OWN_SOURCE else name for name in params.sources)
    follow(ctx, None, Scope(sources, params.messages))
    return SubscribedResult(subscribed=True)


METHOD = Method(
    "sessions.subscribe",
    "list",
    SessionsSubscribeParams,
    SubscribedResult,
    handle,
    "Follow every visible session.",
    streams=True,
)
