"""Publish and subscribe: who gets which event. Knows keys and subscriptions. Does not know connections or files."""

from __future__ import annotations

from collections.abc import Iterator

from sessiond.events.subscription import FollowPlace, Sees, Subscription
from sessiond.model.event import Event


class EventBus:
    """All subscriptions. When `publish` returns, everyone has the event, has it queued, or will read it."""

    def __init__(self) -> None:
        # Dictionaries for their order: who came first is told first.
        self._everything: dict[Subscription, None] = {}
        self._by_key: dict[str, dict[Subscription, None]] = {}

    def __len__(self) -> int:
        return len({*self._everything, *(follower for group in self._by_key.values() for follower in group)})

    def has_follower(self, key: str) -> bool:
        """Whether anyone follows this session: no event need be made where nobody does."""
        return bool(self._everything) or key in self._by_key

    def count_of(self, key: str) -> int:
        """How many are told of what is said in this session, at most."""
        return len(self._everything) + len(self._by_key.get(key, ()))

    @property
    def watched(self) -> bool:
        """Whether anyone follows everything."""
        return bool(self._everything)

    def follow(self, subscription: Subscription, key: str | None, sees: Sees) -> None:
        """Follow one session, or with None everything, as far as `sees` says."""
        if key is None:
            subscription.everything = sees
            self._everything[subscription] = None
        else:
            subscription.keys[key] = sees
            self._by_key.setdefault(key, {})[subscription] = None

    def unfollow(self, subscription: Subscription, key: str | None) -> None:
        """The opposite of `follow`; not following is no error."""
        if key is None:
            subscription.everything = None
            self._everything.pop(subscription, None)
            subscription.forget_others()
            return
        subscription.keys.pop(key, None)
        followers = self._by_key.get(key)
        if followers is not None:
            followers.pop(subscription, None)
            if not followers:
                del self._by_key[key]
        subscription.forget(key)

    def forget(self, subscription: Subscription) -> None:
        """Drop everything the subscription follows, when its connection ends."""
        for key in [*subscription.keys, None]:
            self.unfollow(subscription, key)

    def publish(self, event: Event) -> None:
        """Offer an event to all who follow its session."""
        for subscription in self._followers(event.key):
            subscription.offer(event)

    def begin(self, key: str, place: FollowPlace, *, known_only: bool = False) -> None:
        """Another session has the key from now on: let everyone read on from `place`, or those who knew the key."""
        for subscription in self._followers(key):
            if not known_only or subscription.knew(key):
                subscription.begin(key, place)

    def rewrite(self, key: str, place: FollowPlace, *, live: bool) -> None:
        """The file of a session of the key was written anew: `place` is its beginning."""
        for subscription in self._followers(key):
            subscription.rewrite(key, place, live=live)

    def wake(self, key: str) -> None:
        """There is more to read in a session of the key that is not the live one."""
        for subscription in self._followers(key):
            subscription.wake(key)

    def _followers(self, key: str) -> Iterator[Subscription]:
        everything = self._everything
        yield from tuple(everything)
        for subscription in tuple(self._by_key.get(key, ())):
            # Who follows both gets each event once.
            if subscription not in everything:
                yield subscription
