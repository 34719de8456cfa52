"""Who is connected now: peers and event streams. Knows whose they are and how to end them; not what they do."""

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
    """A peer, or an event stream."""

    @property
    def caller(self) -> Caller: ...

    def close(self) -> None:
        """End it now."""
        ...


class ActiveConnections:
    """Everyone who is connected and known to be more than bytes."""

    def __init__(self) -> None:
        self._present: set[ActiveConnection] = set()

    def __iter__(self) -> Iterator[ActiveConnection]:
        return iter(tuple(self._present))

    def __len__(self) -> int:
        return len(self._present)

    @contextmanager
    def present(self, visitor: ActiveConnection) -> Iterator[None]:
        """`visitor` is here while the block runs."""
        self._present.add(visitor)
        try:
            yield
        finally:
            self._present.discard(visitor)

    def cut(self, whom: Callable[[Caller], bool]) -> int:
        """End every connection of callers that `whom` picks, such as those of a revoked token; how many."""
        chosen = [visitor for visitor in self if whom(visitor.caller)]
        for visitor in chosen:
            visitor.close()
        return len(chosen)

    async def finish(self, grace_s: float) -> None:
        """Wait until no peer has a request in flight; after `grace_s`, those left are answered with -32008."""
        peers = [visitor for visitor in self if isinstance(visitor, Peer)]
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
