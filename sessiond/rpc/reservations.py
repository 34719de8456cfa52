"""The budget shares of one connection: for the long message being received, and for answers until they are sent.

Knows the budget and the send queue. Does not know messages.
"""

from __future__ import annotations

from typing import Protocol

import trio

from sessiond.model.caller import Caller
from sessiond.rpc.budget import MESSAGE_FACTOR, Budgets, Share
from sessiond.rpc.sending import SendQueue

_STALL_S = 20.0  # a client that reads nothing of a large answer for so long is closed: its share blocks others
_SMALL_SHARE_BYTES = 256 * 1024


class ReservingPeer(Protocol):
    """What the reservations need of their connection."""

    closed: trio.Event
    nursery: trio.Nursery

    @property
    def caller(self) -> Caller: ...
    def close(self) -> None: ...
    def __hash__(self) -> int: ...


class ConnectionReservations:
    """`unsent` is given for a single HTTP exchange, which sends the answers: it gets and releases their shares."""

    def __init__(self, peer: ReservingPeer, out: SendQueue, budgets: Budgets, unsent: list[Share] | None) -> None:
        self._peer, self._out, self._budgets, self._unsent = peer, out, budgets, unsent
        self._coming: Share | None = None

    async def reserve_message(self, limit: int) -> None:
        """Wait until the budget has room for a message of up to `limit` bytes.

        Nothing is reserved for a peer that has ended: the reader of a WebSocket goes on until its close is sent.
        """
        if self._coming is not None or self._peer.closed.is_set():
            return
        share = await self._budgets.take(self._peer.caller, self._peer, MESSAGE_FACTOR * limit)
        if self._peer.closed.is_set():
            share.release()
        else:
            self._coming = share

    def shrink_to_messages(self, messages: list[bytes]) -> None:
        """The long message was received, as one of `messages`: reduce its share from the limit to its size."""
        if self._coming is not None:
            self._coming.shrink(2 * max(map(len, messages)))

    def hand_over(self) -> Share | None:
        """The share of the received message, which the caller has to release."""
        share, self._coming = self._coming, None
        return share

    def release(self) -> None:
        """Release the share of the received message, if it was not handed over."""
        share = self.hand_over()
        if share is not None:
            share.release()

    def hold_until_sent(self, share: Share, size: int) -> None:
        """Keep the share of an answer of `size` bytes, which was queued, until it is sent."""
        share.shrink(size if self._out.joins else 2 * size)  # a link that cannot send pieces joins them to a copy
        if self._unsent is not None:
            self._unsent.append(share)
        elif self._out.queued_bytes == 0 or self._peer.closed.is_set():
            share.release()
        else:
            self._peer.nursery.start_soon(self._hold, share)

    async def _hold(self, share: Share) -> None:
        """Release the share when the answer is sent. A client that reads nothing for `_STALL_S` is closed.

        The owner's connections are not: only shares of other callers block others.
        """
        patient = self._peer.caller.kind == "owner" or share.size < _SMALL_SHARE_BYTES
        try:
            target = self._out.end
            while not self._out.has_delivered(target):
                before = self._out.delivered_bytes
                with trio.move_on_after(_STALL_S):
                    await self._out.wait_progress(target)
                if self._out.delivered_bytes == before and not patient and not self._out.broken:
                    self._budgets.closed["unread"] += 1
                    self._peer.close()
        finally:
            share.release()
