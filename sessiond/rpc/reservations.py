"""What one connection has of the budget: for the long message that is coming, and for answers on their way.

Knows the budget and the queue of what is sent. Does not know messages.
"""

from __future__ import annotations

from typing import Protocol

import trio

from sessiond.model.caller import Caller
from sessiond.rpc.budget import COMING, Budgets, Share
from sessiond.rpc.sending import SendQueue

_STALL_S = 20.0  # for a client that reads nothing of a large answer, which keeps others from theirs
_SMALL_SHARE_BYTES = 256 * 1024


class ReservingPeer(Protocol):
    """What is needed of the connection whose reservations these are."""

    lasting: bool
    closed: trio.Event
    nursery: trio.Nursery

    @property
    def caller(self) -> Caller: ...
    def close(self) -> None: ...
    def __hash__(self) -> int: ...


class Reserved:
    """`unsent` are the shares of answers that somebody else will send, where the peer is not `lasting`."""

    def __init__(self, peer: ReservingPeer, out: SendQueue, budgets: Budgets) -> None:
        self.unsent: list[Share] = []
        self._peer, self._out, self._budgets = peer, out, budgets
        self._coming: Share | None = None

    async def before_long(self, limit: int) -> None:
        """Wait until a message of up to `limit` bytes may come."""
        if self._coming is None:
            self._coming = await self._budgets.take(self._peer.caller, self._peer, COMING * limit)

    def is_whole(self, messages: list[bytes]) -> None:
        """It has come, among these: what it is and what it says count, instead of all that it might have been."""
        if self._coming is not None:
            self._coming.shrink(2 * max(map(len, messages)))

    def hand_on(self) -> Share | None:
        """The share of the message that has come, which is the receiver's now."""
        share, self._coming = self._coming, None
        return share

    def release(self) -> None:
        """Nothing of the message is kept any more."""
        share = self.hand_on()
        if share is not None:
            share.release()

    def answer_queued(self, share: Share, size: int) -> None:
        """The answer of so many bytes, for which there is this share, has been queued: it lasts until it is sent."""
        share.shrink(size if self._out.joins else 2 * size)  # sent in pieces, or made whole once more
        if not self._peer.lasting:
            self.unsent.append(share)
        elif self._out.queued_bytes == 0 or self._peer.closed.is_set():
            share.release()
        else:
            self._peer.nursery.start_soon(self._keep, share)

    async def _keep(self, share: Share) -> None:
        """A client that takes nothing for so long ends, but for the owner: its answers are in the way of others'."""
        patient = self._peer.caller.kind == "owner" or share.size < _SMALL_SHARE_BYTES
        try:
            target = self._out.end
            while not self._out.has_delivered(target):
                before = self._out.delivered_bytes
                with trio.move_on_after(_STALL_S):
                    await self._out.progress(target)
                if self._out.delivered_bytes == before and not patient and not self._out.broken:
                    self._budgets.closed["unread"] += 1
                    self._peer.close()
        finally:
            share.release()
