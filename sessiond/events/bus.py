"""Publish and subscribe: who gets which event. Knows keys and subscriptions. Does not know connections or files."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sessiond.events.subscription import FollowPlace, Sees, Subscription
from sessiond.model.event import Event
from sessiond.model.keys import source_of


class Scope(msgspec.Struct, frozen=True):
    """What a follower of everything wants of it: the sessions of these `sources` (None as one of them: our own), or of
    all; with `messages` also what is said in them, else changes of their rows alone.
    """

    sources: frozenset[str | None] | None = None
    messages: bool = True

    def covers(self, key: str) -> bool:
        return self.sources is None or source_of(key) in self.sources


ALL = Scope()


class EventBus:
    """All subscriptions. After `publish` every follower has the event, has it queued, or will read it from the file."""

    def __init__(self) -> None:
        # Dictionaries as ordered sets: subscriptions get events in the order in which they began to follow.
        self._everything: dict[Subscription, Scope] = {}
        self._by_key: dict[str, dict[Subscription, None]] = {}

    def __len__(self) -> int:
        return len({*self._everything, *(follower for group in self._by_key.values() for follower in group)})

    def has_follower(self, key: str) -> bool:
        """Whether anyone follows this session. If not, no event has to be built."""
        return key in self._by_key or self.is_watched(key)

    def has_reader(self, key: str) -> bool:
        """Whether anyone follows what is said in this session."""
        return key in self._by_key or any(scope.messages and scope.covers(key) for scope in self._everything.values())

    def is_watched(self, key: str) -> bool:
        """Whether anyone follows everything, and this session with it."""
        return any(scope.covers(key) for scope in self._everything.values())

    def count_followers(self, key: str) -> int:
        """An upper bound for the number of subscriptions that get events of this session."""
        return sum(scope.covers(key) for scope in self._everything.values()) + len(self._by_key.get(key, ()))

    def follow(self, subscription: Subscription, key: str | None, sees: Sees, scope: Scope = ALL) -> None:
        """Follow one session, or with None all that are in the scope, as far as `sees` permits."""
        if key is None:
            subscription.everything = sees if scope == ALL else _limit_sight(scope, sees)
            self._everything[subscription] = scope
        else:
            subscription.keys[key] = sees
            self._by_key.setdefault(key, {})[subscription] = None

    def unfollow(self, subscription: Subscription, key: str | None) -> None:
        """Undo `follow`. A subscription that does not follow is no error."""
        if key is None:
            subscription.everything = None
            self._everything.pop(subscription, None)
            subscription.forget_unfollowed()
            return
        subscription.keys.pop(key, None)
        followers = self._by_key.get(key)
        if followers is not None:
            followers.pop(subscription, None)
            if not followers:
                del self._by_key[key]
        subscription.forget(key)

    def forget(self, subscription: Subscription) -> None:
        """Remove the subscription altogether, when its connection ends."""
        for key in [*subscription.keys, None]:
            self.unfollow(subscription, key)

    def publish(self, event: Event) -> None:
        """Offer an event to all who follow its session."""
        for subscription in self._followers(event.key):
            subscription.offer(event)

    def switch_session(self, key: str, place: FollowPlace, *, known_only: bool = False) -> None:
        """Another session has the key now: its followers read on from `place`, with `known_only` the earlier ones."""
        for subscription in self._followers(key):
            if not known_only or subscription.has_known(key):
                subscription.switch_session(key, place)

    def read_whole(self, key: str, place: FollowPlace) -> None:
        """Whoever follows this key, not merely everything, reads its session from `place`, its beginning."""
        for subscription in self._followers(key):
            if key in subscription.keys:
                subscription.switch_session(key, place)

    def reread(self, key: str, place: FollowPlace, *, live: bool) -> None:
        """The file of a session was rewritten: its followers read it again from `place`, its beginning."""
        for subscription in self._followers(key):
            subscription.reread(key, place, live=live)

    def wake(self, key: str) -> None:
        """Let followers look again: an older session of the key (reset or deleted) has more to read."""
        for subscription in self._followers(key):
            subscription.wake(key)

    def _followers(self, key: str) -> Iterator[Subscription]:
        watching = [subscription for subscription, scope in self._everything.items() if scope.covers(key)]
        yield from watching
        for subscription in tuple(self._by_key.get(key, ())):
            # A subscription that follows both everything and the key gets each event once.
            if subscription not in watching:
                yield subscription


def _limit_sight(scope: Scope, sees: Sees) -> Sees:
    def sees_within(key: str, spawned_by: str | None, transcript: bool) -> bool:
        return scope.covers(key) and (scope.messages or not transcript) and sees(key, spawned_by, transcript)

    return sees_within
