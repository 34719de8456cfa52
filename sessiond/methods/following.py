"""What a connection follows: its subscription, its pump, and its place on the wire. Knows peers and events."""

from __future__ import annotations

from functools import partial
from typing import Any

from sessiond.events import replay
from sessiond.events.bus import Subscription
from sessiond.methods.services import Context, Services
from sessiond.model.event import Event
from sessiond.rpc.peer import Peer
from sessiond.sessions.resolve import reaches

# Below this many unsent bytes a connection takes another event at once; it is about what a socket holds beside.
_READY_BYTES = 64 * 1024


class PeerSink:
    """A connection as the sink of its subscription."""

    def __init__(self, peer: Peer, services: Services) -> None:
        self._peer, self._services = peer, services

    @property
    def codec(self) -> str:
        return self._peer.codec

    @property
    def agent_id(self) -> str | None:
        return self._peer.caller.agent_id

    @property
    def masks(self) -> bool:
        return self._services.masks(self._peer.caller)

    def encode_notification(self, method: str, params: Any) -> bytes:
        return self._peer.encode_notification(method, params)

    def ready(self) -> bool:
        return self._peer.queued_bytes < _READY_BYTES

    def write(self, event: Event) -> None:
        self._peer.send_nowait(self._services.encoder.frame(event, self))

    async def room(self) -> None:
        await self._peer.drained(_READY_BYTES)


def subscription(ctx: Context) -> Subscription:
    """The subscription of this connection, with its pump; made at the first call."""
    services, peer = ctx.services, ctx.peer
    found = services.subscriptions.get(peer)
    if found is not None:
        return found
    sight_of = partial(_may_see, services, peer)
    made = Subscription(PeerSink(peer, services), may_see=sight_of, limit=services.config.limits.max_queued_events)
    services.subscriptions[peer] = made
    peer.on_close(partial(_forget, services, peer))
    peer.nursery.start_soon(replay.pump, made, services.store)
    return made


def _may_see(services: Services, peer: Peer, key: str) -> bool:
    caller = peer.caller
    if services.tokens.is_dead(caller):
        return False
    # A deleted session is not in the catalog any more, and its spawner not known: only wide sights learn of it.
    return reaches(services.store.catalog, services.sight(caller), key)


def _forget(services: Services, peer: Peer) -> None:
    found = services.subscriptions.pop(peer, None)
    if found is not None:
        services.bus.forget(found)
