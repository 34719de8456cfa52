"""What a peer asks of a connection, whatever dialect it speaks. Knows frames; knows no messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from sessiond.rpc.codecs import Codec
from sessiond.rpc.sending import FrameSink


class Link(FrameSink, Protocol):
    """A connection in some dialect: whole messages in, frames out."""

    codec: Codec
    limit: int
    # Awaited before more of a long message is read; set by the peer.
    before_long: Callable[[int], Awaitable[None]] | None
    # Awaited before a piece of what came is taken apart; set by the peer.
    before_piece: Callable[[], Awaitable[None]] | None

    async def receive(self) -> list[bytes]:
        """At least one incoming frame; none at the end of the stream.

        Raises SessiondError where the stream cannot be read on, trio.BrokenResourceError or trio.ClosedResourceError
        where there is none any more.
        """
        ...

    def has_hung_up(self) -> bool:
        """Whether the other side has gone altogether, and not only ended its own half."""
        ...

    def has_left_unread(self) -> bool:
        """Whether the other side is known to have closed without reading the last frame that it was sent."""
        ...
