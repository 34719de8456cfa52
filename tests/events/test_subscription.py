"""Subscriptions whose reader is slow or has stopped."""

from __future__ import annotations

import trio
from support.followed_store import sees_all
from support.live_events import KEY, OTHER, changed_event, follower, message_event
from support.rows import check_each

from sessiond.events.bus import EventBus
from sessiond.events.subscription import MAX_QUEUED_BYTES, FollowPlace
from sessiond.model.event import ChangedEvent, LiveEvent, MachineChanged, QuestionAsked
from sessiond.model.question import Question, QuestionOption


async def test_events_that_do_not_fit_wait_in_order() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None)
    reader.stop(room_for=1)
    for seq in (1, 2, 3):
        bus.publish(message_event(seq))
    reader.go_on()
    bus.publish(message_event(4))
    assert reader.events == [message_event(1)]
    assert [subscription.take() for _ in range(3)] == [message_event(2), message_event(3), message_event(4)]


async def test_one_event_over_the_queue_limit_empties_the_queue_and_starts_a_lag() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, KEY, limit=4)
    reader.stop()
    for seq in (1, 2, 3, 4):
        bus.publish(message_event(seq))
    assert (len(subscription.queue), subscription.behind) == (4, {})
    bus.publish(message_event(5))
    assert (len(subscription.queue), subscription.behind[KEY].place) == (0, FollowPlace("s", 100, 0, "lagged"))


async def test_the_queue_is_bounded_by_bytes_too() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, KEY, limit=1024)
    reader.stop()
    big = MAX_QUEUED_BYTES // 4
    for seq in (1, 2, 3):
        bus.publish(message_event(seq, text=b"x" * big))
    assert len(subscription.queue) == 3
    bus.publish(message_event(4, text=b"x" * big))
    assert (len(subscription.queue), subscription.behind[KEY].place) == (0, FollowPlace("s", 100, 0, "lagged"))


async def test_an_overflow_keeps_the_first_unsent_place_and_the_newest_row_of_each_session() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, limit=4)
    reader.stop()
    for event in (
        changed_event(2),
        message_event(3),
        changed_event(3),
        message_event(7, OTHER),
        changed_event(7, OTHER),
    ):
        bus.publish(event)
    assert {key: (lag.place, lag.change) for key, lag in subscription.behind.items()} == {
        KEY: (FollowPlace("s", 300, 2, "lagged"), changed_event(3)),
        OTHER: (FollowPlace("s", 700, 6, "lagged"), changed_event(7, OTHER)),
    }


async def test_a_lagging_session_gets_no_live_events_until_it_has_caught_up() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None)
    subscription.start_lag(KEY, FollowPlace("s", 0, 0))
    for event in (
        message_event(1),
        changed_event(1),
        message_event(1, OTHER),
        LiveEvent(KEY, "session.delta", {}),
        message_event(2),
        changed_event(2),
    ):
        bus.publish(event)
    assert reader.events == [message_event(1, OTHER)]
    subscription.end_lag(KEY)
    bus.publish(message_event(3))
    assert reader.events == [message_event(1, OTHER), changed_event(2), message_event(3)]


async def test_a_delete_is_sent_after_the_unread_messages() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None)
    subscription.start_lag(KEY, FollowPlace("s", 0, 0))
    bus.publish(changed_event(1, deleted=True))
    assert reader.events == []
    subscription.end_lag(KEY)
    assert reader.events == [changed_event(1, deleted=True)]


async def test_an_overflow_keeps_a_delete() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, limit=1)
    reader.stop()
    bus.publish(changed_event(1, deleted=True))
    bus.publish(message_event(1, OTHER))
    assert subscription.behind[KEY].change == changed_event(1, deleted=True)


async def test_a_reread_removes_the_session_from_the_queue_and_keeps_its_newest_row() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, limit=10)
    reader.stop()
    for event in (message_event(1), changed_event(1), message_event(1, OTHER), message_event(2), changed_event(2)):
        bus.publish(event)
    bus.reread(KEY, FollowPlace("s", 0, 0, "rewritten"), live=True)
    assert list(subscription.queue) == [message_event(1, OTHER)]
    lag = subscription.behind[KEY]
    assert (lag.place, lag.change) == (FollowPlace("s", 0, 0, "rewritten"), changed_event(2))


@check_each(("seq", "received"), [(0, False), (4, False), (5, True), (9, True)])
async def test_the_first_live_message_decides_which_places_were_received(seq: int, received: bool) -> None:
    bus = EventBus()
    subscription, _ = follower(bus, None)
    assert not subscription.has_had(KEY, FollowPlace("s", 0, 9))
    bus.publish(message_event(6))
    bus.publish(message_event(7))
    assert subscription.has_had(KEY, FollowPlace("s", 0, seq)) is received


async def test_a_new_session_of_a_key_is_read_after_the_unsent_events_of_the_old_one() -> None:
    bus = EventBus()
    waiting, read, lagging, new = (follower(bus, key, limit=9) for key in (KEY, KEY, KEY, None))
    waiting[1].stop()
    bus.unfollow(new[0], None)
    bus.publish(message_event(1))
    bus.publish(message_event(2))
    lagging[0].start_lag(KEY, FollowPlace("s", 50, 0))
    bus.follow(new[0], None, sees_all)
    bus.switch_session(KEY, FollowPlace("s", 300, 2), known_only=True)
    assert list(waiting[0].queue) == [message_event(1), message_event(2)]
    assert waiting[0].behind[KEY].place == FollowPlace("s", 300, 2)
    assert read[0].behind[KEY].place == FollowPlace("s", 300, 2)
    assert lagging[0].behind[KEY].place == FollowPlace("s", 50, 0)
    assert new[0].behind == {}
    bus.switch_session(KEY, FollowPlace("u", 0, 0))
    assert new[0].behind[KEY].place == FollowPlace("u", 0, 0)


async def test_an_overflow_after_a_switch_starts_at_the_first_queued_event() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, KEY, OTHER, limit=2)
    reader.stop()
    bus.publish(message_event(1))
    bus.publish(message_event(2))
    bus.switch_session(KEY, FollowPlace("s", 300, 2))
    bus.publish(message_event(1, OTHER))
    assert subscription.behind[KEY].place == FollowPlace("s", 100, 0, "lagged")


async def test_an_overflow_at_a_reset_event_omits_nothing_of_the_old_session() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, limit=1)
    reader.stop()
    bus.publish(message_event(1, OTHER))
    bus.publish(ChangedEvent(KEY, "new", "reset", None, None))
    assert subscription.behind[KEY].place == FollowPlace("new", 0, 0, "lagged")
    bus.switch_session(KEY, FollowPlace("s", 300, 2))
    assert subscription.behind[KEY].place == FollowPlace("s", 300, 2, "lagged")


async def test_a_late_reset_event_does_not_make_an_overflow_repeat_messages() -> None:
    bus = EventBus()
    subscription, reader = follower(bus, None, limit=1)
    subscription.start_lag(KEY, FollowPlace("s", 0, 0))
    bus.publish(ChangedEvent(KEY, "s", "reset", None, None))
    subscription.behind[KEY].place = FollowPlace("s", 300, 2)
    reader.stop()
    subscription.end_lag(KEY)
    bus.publish(message_event(1, OTHER))
    assert subscription.behind[KEY].place == FollowPlace("s", 300, 2, "lagged")


async def test_only_a_follower_that_knew_the_old_session_gets_the_reset() -> None:
    bus = EventBus()
    earlier, _ = follower(bus, None)
    bus.publish(message_event(1))
    new, _ = follower(bus, None)
    bus.switch_session(KEY, FollowPlace("u", 0, 0))
    assert (earlier.behind[KEY].place.reason, new.behind[KEY].place.reason) == ("reset", None)


@check_each(
    ("place", "live", "expected"),
    [
        (None, True, FollowPlace("s", 0, 0, "rewritten")),
        (None, False, None),
        (FollowPlace("s", 9, 1), False, FollowPlace("s", 0, 0, "rewritten")),
        (FollowPlace("older", 9, 1), True, FollowPlace("older", 9, 1)),
    ],
    ids=["live and followed live", "not live and not read", "not live and being read", "not reached yet"],
)
async def test_a_rewritten_file_is_read_again_by_the_followers_that_are_in_it(
    place: FollowPlace | None, live: bool, expected: FollowPlace | None
) -> None:
    bus = EventBus()
    subscription, _ = follower(bus, KEY)
    if place is not None:
        subscription.start_lag(KEY, place)
    bus.reread(KEY, FollowPlace("s", 0, 0, "rewritten"), live=live)
    lag = subscription.behind.get(KEY)
    assert (lag.place if lag is not None else None) == expected


async def test_lagging_sessions_take_turns_and_an_unreadable_one_is_retried_later(autojump_clock: object) -> None:
    bus = EventBus()
    subscription, _ = follower(bus, None)
    for key in (KEY, OTHER):
        subscription.start_lag(key, FollowPlace("s", 0, 0))
    assert [subscription.next_lagging() for _ in range(3)] == [KEY, OTHER, KEY]
    for lag in subscription.behind.values():
        lag.waits_for_file = True
    assert subscription.next_lagging() is None
    began = trio.current_time()
    await subscription.wait_work()  # the wake-up that was already due
    assert (subscription.next_lagging(), trio.current_time() - began) == (OTHER, 0)
    for lag in subscription.behind.values():
        lag.waits_for_file = True
    await subscription.wait_work()
    assert trio.current_time() - began == 1
    for lag in subscription.behind.values():
        lag.waits_for_file = True
    bus.publish(message_event(1))
    assert subscription.next_lagging() == KEY


async def test_questions_reach_a_subscriber_that_is_behind_and_one_that_only_lists() -> None:
    asked = Question(id="0" * 16, title="May I?", options=(QuestionOption("a", "A", "allow_once"),), asked_at=1)
    event = QuestionAsked(KEY, asked)
    bus = EventBus()
    behind, reader = follower(bus, None)
    behind.start_lag(KEY, FollowPlace("s", 0, 0))
    reader.stop()
    bus.publish(event)
    assert list(behind.queue) == [event]
    # Neither a replay nor a queue that overflows takes it away, as there is no other way to hear of it.
    behind.start_lag(KEY, FollowPlace("s", 100, 1))
    for seq in range(10):
        bus.publish(message_event(seq, OTHER))
    assert list(behind.queue) == [event]
    assert OTHER in behind.behind

    lists, heard = follower(bus, None, sees=lambda key, spawned_by, transcript: not transcript)
    nobody, silence = follower(bus, OTHER, None, sees=lambda *_: False)
    both, once = follower(bus, KEY, None)
    bus.publish(event)
    assert [len(one.events) for one in (heard, silence, once)] == [1, 0, 1]
    assert not lists.queue and not nobody.queue and not both.queue


async def test_what_is_told_of_a_machine_reaches_a_subscriber_whose_queue_overflows() -> None:
    event = MachineChanged("mars/agent:", "mars", 5)
    bus = EventBus()
    behind, reader = follower(bus, None)
    reader.stop()
    one, heard = follower(bus, "mars/agent:ops:main")
    for seq in range(10):
        bus.publish(message_event(seq, OTHER))
    bus.publish(event)
    for seq in range(10, 20):
        bus.publish(message_event(seq, OTHER))
    assert list(behind.queue) == [event]
    assert not one.queue
    assert heard.events == [], "who follows one session has its row to tell"


async def test_questions_alone_cannot_fill_the_memory() -> None:
    asked = Question(
        id="0" * 16, title="x", options=(QuestionOption("a", "A", "allow_once"),), asked_at=1, detail="x" * 16_000
    )
    bus = EventBus()
    behind, reader = follower(bus, None, limit=1024)
    reader.stop()
    for _ in range(1000):
        bus.publish(QuestionAsked(KEY, asked))
    assert len(behind.queue) * 16_000 <= MAX_QUEUED_BYTES
