"""The connections that are being served: peers and event streams. Knows their callers and how to close them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from sessiond.model.caller import Caller
from sessiond.rpc.peer import Peer
from sessiond.rpc.sending import PeerGone

_LAST_ANSWERS_S, _LAST_RESPONSES_S = 1.0, 0.3


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
        self._owed = 0
        self._all_sent = trio.lowlevel.ParkingLot()
        # From then on no HTTP response waits for its handler.
        self.cut_off = trio.Event()

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

    @contextmanager
    def owe_response(self) -> Iterator[None]:
        """Let the end of the daemon wait for an HTTP response while the block runs."""
        self._owed += 1
        try:
            yield
        finally:
            self._owed -= 1
            if not self._owed:
                self._all_sent.unpark_all()

    async def _wait_responses(self) -> None:
        while self._owed:
            await self._all_sent.park()

    def close_where(self, matches: Callable[[Caller], bool]) -> int:
        """Close every connection whose caller is matched by `matches`, such as those of a revoked token; how many."""
        chosen = [connection for connection in self if matches(connection.caller)]
        for connection in chosen:
            connection.close()
        return len(chosen)

    async def finish(self, grace_s: float) -> None:
        """Wait until no request is in flight; after `grace_s` the remaining ones are answered with -32008, or 503."""
        peers = [connection for connection in self if isinstance(connection, Peer)]
        with trio.move_on_after(grace_s):
            for peer in peers:
                await peer.wait_idle()
            await self._wait_responses()
        for peer in peers:
            peer.stop_requests()
        with trio.move_on_after(_LAST_ANSWERS_S):
            for peer in peers:
                await _wait_answered(peer)
            with trio.move_on_after(_LAST_RESPONSES_S):  # those with the answers of peers
                await self._wait_responses()
            self.cut_off.set()
            await self._wait_responses()


async def _wait_answered(peer: Peer) -> None:
    await peer.wait_idle()
    try:
        await peer.wait_drained()
    except PeerGone:
        return
