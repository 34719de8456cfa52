"""What becomes of a subscriber that does not read."""

from __future__ import annotations

import pytest
import trio
from support.followed_store import sees_all
from support.live_events import KEY, OTHER, changed, follower, said

from sessiond.events.bus import EventBus
from sessiond.events.subscription import MAX_QUEUED_BYTES, FollowPlace
from sessiond.model.event import ChangedEvent, LiveEvent


async def test_what_does_not_fit_waits_in_order() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None)
    reader.stop(room_for=1)
    for seq in (1, 2, 3):
        bus.publish(said(seq))
    reader.go_on()
    bus.publish(said(4))
    assert reader.events == [said(1)]
    assert [subscription.take() for _ in range(3)] == [said(2), said(3), said(4)]


async def test_the_queue_holds_as_many_events_as_its_limit_and_one_more_empties_it() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, KEY, limit=4)
    reader.stop()
    for seq in (1, 2, 3, 4):
        bus.publish(said(seq))
    assert (len(subscription.queue), subscription.behind) == (4, {})
    bus.publish(said(5))
    assert (len(subscription.queue), subscription.behind[KEY].place) == (0, FollowPlace("s", 100, 0, "lagged"))


async def test_the_queue_is_bounded_by_bytes_too() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, KEY, limit=1024)
    reader.stop()
    big = MAX_QUEUED_BYTES // 4
    for seq in (1, 2, 3):
        bus.publish(said(seq, text=b"x" * big))
    assert len(subscription.queue) == 3
    bus.publish(said(4, text=b"x" * big))
    assert (len(subscription.queue), subscription.behind[KEY].place) == (0, FollowPlace("s", 100, 0, "lagged"))


async def test_an_overflow_remembers_every_session_where_its_first_event_stood_and_its_newest_row() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, limit=4)
    reader.stop()
    for event in (changed(2), said(3), changed(3), said(7, OTHER), changed(7, OTHER)):
        bus.publish(event)
    assert {key: (lag.place, lag.change) for key, lag in subscription.behind.items()} == {
        KEY: (FollowPlace("s", 300, 2, "lagged"), changed(3)),
        OTHER: (FollowPlace("s", 700, 6, "lagged"), changed(7, OTHER)),
    }


async def test_who_lags_gets_nothing_live_of_that_session_until_it_has_caught_up_and_then_the_newest_row() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None)
    subscription.start_lag(KEY, FollowPlace("s", 0, 0))
    for event in (said(1), changed(1), said(1, OTHER), LiveEvent(KEY, "session.delta", {}), said(2), changed(2)):
        bus.publish(event)
    assert reader.events == [said(1, OTHER)]
    subscription.end_lag(KEY)
    bus.publish(said(3))
    assert reader.events == [said(1, OTHER), changed(2), said(3)]


async def test_a_delete_is_told_after_what_was_not_read_yet() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None)
    subscription.start_lag(KEY, FollowPlace("s", 0, 0))
    bus.publish(changed(1, deleted=True))
    assert reader.events == []
    subscription.end_lag(KEY)
    assert reader.events == [changed(1, deleted=True)]


async def test_an_overflow_keeps_a_delete() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, limit=1)
    reader.stop()
    bus.publish(changed(1, deleted=True))
    bus.publish(said(1, OTHER))
    assert subscription.behind[KEY].change == changed(1, deleted=True)


async def test_falling_back_takes_the_session_out_of_the_queue_but_for_its_newest_row() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, limit=10)
    reader.stop()
    for event in (said(1), changed(1), said(1, OTHER), said(2), changed(2)):
        bus.publish(event)
    bus.reread(KEY, FollowPlace("s", 0, 0, "rewritten"), live=True)
    assert list(subscription.queue) == [said(1, OTHER)]
    lag = subscription.behind[KEY]
    assert (lag.place, lag.change) == (FollowPlace("s", 0, 0, "rewritten"), changed(2))


@pytest.mark.parametrize(("seq", "had"), [(0, False), (4, False), (5, True), (9, True)])
async def test_what_was_had_live_is_known_by_the_first_message_that_came(seq: int, had: bool) -> None:
    bus = EventBus()
    subscription, _ = follower(bus, None)
    assert not subscription.has_had(KEY, FollowPlace("s", 0, 9))
    bus.publish(said(6))
    bus.publish(said(7))
    assert subscription.has_had(KEY, FollowPlace("s", 0, seq)) is had


async def test_a_new_session_of_a_key_is_read_behind_the_old_one_and_behind_what_waits_of_it() -> None:
    bus = EventBus()
    waiting, read, lagging, new = (follower(bus, key, limit=9) for key in (KEY, KEY, KEY, None))
    waiting[1].stop()
    bus.unfollow(new[0], None)
    bus.publish(said(1))
    bus.publish(said(2))
    lagging[0].start_lag(KEY, FollowPlace("s", 50, 0))
    bus.follow(new[0], None, sees_all)
    bus.switch_session(KEY, FollowPlace("s", 300, 2), known_only=True)
    assert list(waiting[0].queue) == [said(1), said(2)]
    assert waiting[0].behind[KEY].place == FollowPlace("s", 300, 2)
    assert read[0].behind[KEY].place == FollowPlace("s", 300, 2)
    assert lagging[0].behind[KEY].place == FollowPlace("s", 50, 0)
    assert new[0].behind == {}
    bus.switch_session(KEY, FollowPlace("u", 0, 0))
    assert new[0].behind[KEY].place == FollowPlace("u", 0, 0)


async def test_an_overflow_goes_back_to_what_was_queued_before_the_place_to_read_on_from() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, KEY, OTHER, limit=2)
    reader.stop()
    bus.publish(said(1))
    bus.publish(said(2))
    bus.switch_session(KEY, FollowPlace("s", 300, 2))
    bus.publish(said(1, OTHER))
    assert subscription.behind[KEY].place == FollowPlace("s", 100, 0, "lagged")


async def test_an_overflow_with_the_news_of_a_reset_leaves_nothing_of_the_old_session_out() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, limit=1)
    reader.stop()
    bus.publish(said(1, OTHER))
    bus.publish(ChangedEvent(KEY, "new", "reset", None, None))
    assert subscription.behind[KEY].place == FollowPlace("new", 0, 0, "lagged")
    bus.switch_session(KEY, FollowPlace("s", 300, 2))
    assert subscription.behind[KEY].place == FollowPlace("s", 300, 2, "lagged")


async def test_news_of_a_reset_that_was_told_late_does_not_make_an_overflow_read_again_what_was_had() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, limit=1)
    subscription.start_lag(KEY, FollowPlace("s", 0, 0))
    bus.publish(ChangedEvent(KEY, "s", "reset", None, None))
    subscription.behind[KEY].place = FollowPlace("s", 300, 2)
    reader.stop()
    subscription.end_lag(KEY)
    bus.publish(said(1, OTHER))
    assert subscription.behind[KEY].place == FollowPlace("s", 300, 2, "lagged")


async def test_one_who_knew_the_key_is_told_where_nothing_is_left_of_the_session_before() -> None:
    bus = EventBus()
    knew, _ = follower(bus, None)
    bus.publish(said(1))
    new, _ = follower(bus, None)
    bus.switch_session(KEY, FollowPlace("u", 0, 0))
    assert (knew.behind[KEY].place.reason, new.behind[KEY].place.reason) == ("reset", None)


@pytest.mark.parametrize(
    ("place", "live", "expected"),
    [
        (None, True, FollowPlace("s", 0, 0, "rewritten")),
        (None, False, None),
        (FollowPlace("s", 9, 1), False, FollowPlace("s", 0, 0, "rewritten")),
        (FollowPlace("older", 9, 1), True, FollowPlace("older", 9, 1)),
    ],
    ids=["live and followed live", "not live and not read", "not live and being read", "not reached yet"],
)
async def test_a_file_written_anew_is_read_again_by_those_who_are_in_it(
    place: FollowPlace | None, live: bool, expected: FollowPlace | None
) -> None:
    bus = EventBus()
    subscription, _ = follower(bus, KEY)
    if place is not None:
        subscription.start_lag(KEY, place)
    bus.reread(KEY, FollowPlace("s", 0, 0, "rewritten"), live=live)
    lag = subscription.behind.get(KEY)
    assert (lag.place if lag is not None else None) == expected


async def test_sessions_take_turns_in_catching_up_and_one_that_cannot_be_read_waits(autojump_clock: object) -> None:
    bus = EventBus()
    subscription, _ = follower(bus, None)
    for key in (KEY, OTHER):
        subscription.start_lag(key, FollowPlace("s", 0, 0))
    assert [subscription.next_lagging() for _ in range(3)] == [KEY, OTHER, KEY]
    for lag in subscription.behind.values():
        lag.waits_for_file = True
    assert subscription.next_lagging() is None
    began = trio.current_time()
    await subscription.wait_work()  # what woke it was told before
    assert (subscription.next_lagging(), trio.current_time() - began) == (OTHER, 0)
    for lag in subscription.behind.values():
        lag.waits_for_file = True
    await subscription.wait_work()
    assert trio.current_time() - began == 1
    for lag in subscription.behind.values():
        lag.waits_for_file = True
    bus.publish(said(1))
    assert subscription.next_lagging() == KEY
