"""The interface between a peer and its connection, the same for every dialect. Knows frames; knows no messages."""

from __future__ import annotations

from typing import Protocol

from sessiond.rpc.codecs import Codec
from sessiond.rpc.sending import FrameSink


class ReceiveGate(Protocol):
    """What a link waits for while it receives. The peer is one."""

    async def reserve_message(self, limit: int) -> None:
        """Awaited before the rest of a long message of at most `limit` bytes is read."""

    async def wait_turn(self) -> None:
        """Awaited before a chunk of received bytes is processed."""


class Link(FrameSink, Protocol):
    """A connection that receives whole messages and sends frames."""

    codec: Codec
    limit: int

    async def receive(self) -> list[bytes]:
        """At least one incoming frame; an empty list at the end of the stream.

        Raises SessiondError where the stream cannot be parsed any further, trio.BrokenResourceError or
        trio.ClosedResourceError where the connection broke or was closed.
        """
        ...

    def has_hung_up(self) -> bool:
        """Whether the other side closed the connection, and not only its sending half."""
        ...

    def has_left_unread(self) -> bool:
        """Whether the other side is known to have closed without reading the last frame sent to it."""
        ...
