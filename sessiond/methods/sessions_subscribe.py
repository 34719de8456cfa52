"""`sessions.subscribe`: changes of all sessions that the caller may see; with the scope `read` messages too."""

from __future__ import annotations

from typing import Annotated

from sessiond.methods.following import follow
from sessiond.methods.params import NoParams, Result, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method


class SubscribedResult(Result, frozen=True, kw_only=True):
    subscribed: Annotated[bool, says("Whether the connection follows all sessions now.")]


def handle(ctx: Context, params: NoParams) -> SubscribedResult:  # noqa: ARG001
    follow(ctx, None)
    return SubscribedResult(subscribed=True)


METHOD = Method(
    "sessions.subscribe", "list", NoParams, SubscribedResult, handle, "Follow every visible session.", streams=True
)
