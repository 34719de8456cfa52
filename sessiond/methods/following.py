"""The subscription of a connection: its filter, its sink and its pump. Knows peers and events."""

from __future__ import annotations

from functools import partial
from typing import Any

from sessiond.config.settings import Config
from sessiond.events import replay
from sessiond.events.bus import ALL, Scope
from sessiond.events.subscription import Subscription
from sessiond.methods.question_view import reads_questions
from sessiond.methods.services import QUICK_BYTES, Context, Services
from sessiond.model.caller import Caller
from sessiond.model.event import Event, approximate_bytes
from sessiond.policy.visibility import Sight
from sessiond.rpc.peer import Peer

# With fewer unsent bytes than this a connection takes another event at once. A socket's own buffer is about as large.
_READY_BYTES = 64 * 1024


class EventFilter:
    """Decides for each event whether it may go to a caller: its token may have been revoked, the rules have changed.

    `sees` is its `events.subscription.Sees`. The caller's sight is cached until the configuration changes.
    """

    def __init__(self, services: Services, caller: Caller) -> None:
        self._services = services
        self.caller = caller
        self._reads = caller.has("read")
        self._sight: tuple[Config, Sight] | None = None

    def sees(self, key: str, spawned_by: str | None, transcript: bool) -> bool:
        """Without the scope `read` a caller gets changes of rows, but no messages. Source: protocol.md, "Events"."""
        if transcript and not self._reads:
            return False
        services = self._services
        if self.caller.kind != "owner" and services.tokens.is_dead(self.caller):
            return False
        if self._sight is None or self._sight[0] is not services.config:
            self._sight = services.config, services.sight_of(self.caller)
        sight = self._sight[1]
        if sight.unlimited:
            return True
        by_key = services.store.catalog.by_key

        def spawner(target: str) -> str | None:
            session = by_key.get(target)
            if session is not None:
                return session.entry.spawned_by
            # A deleted session is not in the catalog any more; its last events have its spawner.
            return spawned_by if target == key else None

        return sight.reaches(key, spawner)


class PeerSink:
    """Writes the events of a subscription to its connection."""

    def __init__(self, peer: Peer, services: Services) -> None:
        self._peer, self._services = peer, services
        self._sight: tuple[Config, Caller, Sight] | None = None

    @property
    def codec(self) -> str:
        return self._peer.codec

    @property
    def agent_id(self) -> str | None:
        return self._peer.caller.agent_id

    @property
    def masks(self) -> bool:
        return self._services.masks(self._peer.caller)

    @property
    def reads(self) -> bool:
        return self._peer.caller.has("read")

    @property
    def reads_questions(self) -> bool:
        return reads_questions(self._peer.caller)

    @property
    def sight(self) -> Sight:
        config, caller = self._services.config, self._peer.caller
        if self._sight is None or self._sight[0] is not config or self._sight[1] is not caller:
            self._sight = config, caller, self._services.sight_of(caller)
        return self._sight[2]

    def encode_notification(self, method: str, params: Any) -> bytes:
        return self._peer.encode_notification(method, params)

    def ready(self) -> bool:
        return self._peer.queued_bytes < _READY_BYTES

    def write(self, event: Event) -> None:
        size = approximate_bytes(event)
        if size < QUICK_BYTES or not (self.masks or self.codec == "cbor"):
            self._peer.send_nowait(self._services.encoder.frame(event, self))
        else:
            self._peer.send_deferred(size, partial(self._make, event))

    async def _make(self, event: Event) -> bytes:
        masks = self._services.patterns() if self.masks else None
        method, params = await self._services.describe_event(event, self.agent_id, masks, self._peer.caller)
        return await self._peer.encode_slowly(method, params)

    async def room(self) -> None:
        await self._peer.wait_drained(_READY_BYTES)


def subscription(ctx: Context) -> Subscription:
    """The subscription of this connection; created, with its pump, at the first call."""
    services, peer = ctx.services, ctx.require_peer()
    found = services.subscriptions.get(peer)
    if found is not None:
        return found
    made = Subscription(PeerSink(peer, services), limit=services.config.limits.max_queued_events)
    services.subscriptions[peer] = made
    peer.on_close(lambda: _forget(services, peer))
    peer.nursery.start_soon(replay.pump, made, services.store)
    return made


def follow(ctx: Context, key: str | None, scope: Scope = ALL) -> Subscription:
    """Let this connection follow a session, or with None all in the scope, as far as the caller may see them."""
    services, peer = ctx.services, ctx.require_peer()
    following = subscription(ctx)
    if ctx.caller is not peer.caller:
        # Called for a run that this connection executes: with the rights of the run, and only until it ends.
        services.bus.follow(following, key, EventFilter(services, ctx.caller).sees, scope)
        return following
    current = EventFilter(services, peer.caller)

    def sees(of: str, spawned_by: str | None, transcript: bool) -> bool:
        nonlocal current
        if current.caller is not peer.caller:  # it has presented a token since
            current = EventFilter(services, peer.caller)
        return current.sees(of, spawned_by, transcript)

    services.bus.follow(following, key, sees, scope)
    return following


def _forget(services: Services, peer: Peer) -> None:
    found = services.subscriptions.pop(peer, None)
    if found is not None:
        services.bus.forget(found)
