"""`ping`: whether the daemon answers. Requires authentication, as every method but `initialize` does."""

from __future__ import annotations

from sessiond.methods.params import Empty, NoParams
from sessiond.methods.services import Context
from sessiond.rpc.method import Method

_PONG = Empty()


def handle(ctx: Context, params: NoParams) -> Empty:  # noqa: ARG001
    return _PONG


METHOD = Method("ping", None, NoParams, Empty, handle, "Answer at once with {}.", before_ready=True)
