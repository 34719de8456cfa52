"""The connections that are being served: peers and event streams. Knows their callers and how to close them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from sessiond.model.caller import Caller
from sessiond.rpc.peer import Peer
from sessiond.rpc.sending import PeerGone

_LAST_ANSWERS_S = 1.0


class ActiveConnection(Protocol):
    """A peer or an event stream."""

    @property
    def caller(self) -> Caller: ...

    def close(self) -> None:
        """Close it now."""
        ...


class ActiveConnections:
    """All connections whose dialect is known. HTTP connections are among them only while they stream events."""

    def __init__(self) -> None:
        self._active: set[ActiveConnection] = set()

    def __iter__(self) -> Iterator[ActiveConnection]:
        return iter(tuple(self._active))

    def __len__(self) -> int:
        return len(self._active)

    @contextmanager
    def track(self, connection: ActiveConnection) -> Iterator[None]:
        """Count `connection` as active while the block runs."""
        self._active.add(connection)
        try:
            yield
        finally:
            self._active.discard(connection)

    def close_where(self, matches: Callable[[Caller], bool]) -> int:
        """Close every connection whose caller is matched by `matches`, such as those of a revoked token; how many."""
        chosen = [connection for connection in self if matches(connection.caller)]
        for connection in chosen:
            connection.close()
        return len(chosen)

    async def finish(self, grace_s: float) -> None:
        """Wait until no peer has a request in flight; after `grace_s` the remaining ones are answered with -32008."""
        peers = [connection for connection in self if isinstance(connection, Peer)]
        with trio.move_on_after(grace_s):
            for peer in peers:
                await peer.wait_idle()
        for peer in peers:
            peer.stop_requests()
        with trio.move_on_after(_LAST_ANSWERS_S):
            for peer in peers:
                await _wait_answered(peer)


async def _wait_answered(peer: Peer) -> None:
    await peer.wait_idle()
    try:
        await peer.wait_drained()
    except PeerGone:
        return
