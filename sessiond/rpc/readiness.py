"""The requests that came before the daemon was ready. They begin in their order when it is. Knows no method by name."""

from __future__ import annotations

import trio

from sessiond.errors import SessiondError
from sessiond.rpc.method import Method
from sessiond.rpc.peer import Peer
from sessiond.rpc.pending import PendingRequest


class Readiness:
    """`ready` is set when the daemon is; None when there is nothing to wait for any more."""

    __slots__ = ("ready", "waiting")

    def __init__(self, ready: trio.Event | None) -> None:
        self.ready = ready
        self.waiting: dict[PendingRequest, None] = {}

    def must_wait(self, peer: Peer, method: Method) -> bool:
        """Whether a request has to wait until the daemon is ready, or behind one of its connection that still does."""
        if self.ready is None:
            return False
        if self.ready.is_set() and not self.waiting:
            self.ready = None
        elif not method.before_ready:
            return not self.ready.is_set() or any(one.context.peer is peer for one in self.waiting)
        return False

    async def wait(self, pending: PendingRequest) -> bool:
        """Wait until the daemon is ready, if the request has to; whether it had to."""
        waits = pending in self.waiting
        if waits and self.ready is not None:
            await self.ready.wait()
        return waits

    def cancel_all(self, reason: SessiondError) -> None:
        """End all waits."""
        for pending in list(self.waiting):
            pending.cancel(reason)
