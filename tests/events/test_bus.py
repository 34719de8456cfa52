"""The event bus: which subscription gets which event."""

from __future__ import annotations

from support.followed_store import Reader, sees_all, sees_changes
from support.live_events import KEY, OTHER, changed_event, follower, message_event

from sessiond.events.bus import EventBus, Scope
from sessiond.events.subscription import FollowPlace, Subscription
from sessiond.model.event import ChangedEvent, LiveEvent, MachineChanged


async def test_a_follower_of_a_key_gets_events_of_that_session_only() -> None:
    bus = EventBus()
    _, reader = follower(bus, KEY)
    live = LiveEvent(KEY, "session.delta", {"runId": "r", "text": "x"})
    for event in (message_event(1), changed_event(1), live, message_event(1, OTHER)):
        bus.publish(event)
    assert reader.events == [message_event(1), live]


async def test_a_follower_of_everything_gets_changes_too() -> None:
    bus = EventBus()
    _, reader = follower(bus, None)
    events = [message_event(1), changed_event(1), message_event(1, OTHER), changed_event(1, OTHER)]
    for event in events:
        bus.publish(event)
    assert reader.events == events


async def test_a_follower_of_a_key_and_of_everything_gets_each_event_once() -> None:
    bus = EventBus()
    _, reader = follower(bus, None, KEY)
    bus.publish(message_event(1))
    bus.publish(changed_event(1))
    assert reader.events == [message_event(1), changed_event(1)]
    assert len(bus) == 1


async def test_a_follower_without_the_right_to_read_gets_changes_only() -> None:
    bus = EventBus()
    _, reader = follower(bus, None, sees=sees_changes)
    for event in (message_event(1), changed_event(1), LiveEvent(KEY, "session.delta", {})):
        bus.publish(event)
    assert reader.events == [changed_event(1)]


async def test_a_follower_with_rights_to_one_key_gets_its_messages() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, KEY)
    bus.follow(subscription, None, sees_changes)
    for event in (message_event(1), changed_event(1), message_event(1, OTHER)):
        bus.publish(event)
    assert reader.events == [message_event(1), changed_event(1)]


async def test_a_follower_of_our_own_sessions_gets_nothing_of_others_and_nobody_makes_events_of_these() -> None:
    bus = EventBus()
    subscription = Subscription(reader := Reader(), limit=4)
    bus.follow(subscription, None, sees_all, Scope(frozenset({None})))
    copied = f"mars/{KEY}"
    for key in (KEY, copied, "claude:one"):
        bus.publish(message_event(1, key))
        bus.publish(changed_event(1, key))
    bus.publish(MachineChanged("mars/agent:", "mars", 1))
    assert reader.events == [message_event(1), changed_event(1)]
    asked = (bus.has_follower, bus.has_reader, bus.is_watched, bus.count_followers)
    assert [[ask(key) for ask in asked] for key in (KEY, copied)] == [[True, True, True, 1], [False, False, False, 0]]


async def test_a_key_that_is_followed_beside_a_scope_without_it_brings_messages_and_no_changes() -> None:
    bus = EventBus()
    subscription = Subscription(reader := Reader(), limit=4)
    copied = f"mars/{KEY}"
    bus.follow(subscription, None, sees_all, Scope(frozenset({None})))
    bus.follow(subscription, copied, sees_all)
    bus.publish(message_event(1, copied))
    bus.publish(changed_event(1, copied))
    assert reader.events == [message_event(1, copied)]


async def test_a_follower_that_wants_no_messages_gets_changes_alone() -> None:
    bus = EventBus()
    subscription = Subscription(reader := Reader(), limit=4)
    bus.follow(subscription, None, sees_all, Scope(messages=False))
    for event in (message_event(1), changed_event(1), LiveEvent(KEY, "session.delta", {})):
        bus.publish(event)
    assert reader.events == [changed_event(1)]
    assert (bus.has_follower(KEY), bus.has_reader(KEY), bus.is_watched(KEY)) == (True, False, True)
    bus.follow(subscription, None, sees_all)
    bus.publish(message_event(2))
    assert reader.events == [changed_event(1), message_event(2)]


async def test_visibility_is_checked_for_every_event_and_with_the_parent_of_a_deleted_session() -> None:
    asked: list[tuple[str, str | None, bool]] = []
    visible = {KEY}

    def sees(key: str, spawned_by: str | None, transcript: bool) -> bool:
        asked.append((key, spawned_by, transcript))
        return key in visible

    bus = EventBus()
    _, reader = follower(bus, None, sees=sees)
    bus.publish(message_event(1))
    visible.clear()
    bus.publish(message_event(2))
    visible.add(KEY)
    deleted = ChangedEvent(KEY, "s", "delete", None, None, spawned_by=OTHER)
    bus.publish(deleted)
    assert reader.events == [message_event(1), deleted]
    assert asked == [(KEY, None, True), (KEY, None, True), (KEY, OTHER, False)]


async def test_unfollowing_ends_the_events_and_drops_the_place() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, KEY)
    subscription.start_lag(OTHER, FollowPlace("s", 0, 0))
    subscription.start_lag(KEY, FollowPlace("s", 0, 0))
    bus.unfollow(subscription, None)
    assert set(subscription.behind) == {KEY}
    bus.unfollow(subscription, KEY)
    bus.unfollow(subscription, KEY)
    bus.publish(message_event(1))
    assert (reader.events, subscription.behind, len(bus), bus.has_follower(KEY), bus.is_watched(KEY)) == (
        [],
        {},
        0,
        False,
        False,
    )


async def test_forgetting_one_connection_does_not_affect_the_others() -> None:
    bus = EventBus()
    gone, left = follower(bus, None, KEY), follower(bus, KEY)
    bus.forget(gone[0])
    bus.publish(message_event(1))
    assert (gone[1].events, left[1].events, len(bus)) == ([], [message_event(1)], 1)
