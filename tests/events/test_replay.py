"""Replay from a place in the file to live events: no gap and no repetition, whatever happens to the file meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.followed_store import followed_store, header, line, sees_changes

from sessiond.events import replay_page
from sessiond.events.subscription import FollowPlace
from sessiond.model.event import ChangedEvent, MessageEvent, ResyncEvent

KEY = "agent:main:a"


async def test_a_replay_from_the_start_gives_every_message_with_its_seq_and_cursor(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        session = await parts.create(KEY, "one", "two")
        _, reader = parts.follow(KEY, place=parts.first_position(KEY))
        await reader.wait_for_text("two")
        facts = session.entry.file
        first, second = reader.events
        assert isinstance(first, MessageEvent) and isinstance(second, MessageEvent)
        assert second == MessageEvent(
            KEY,
            session.session_id,
            facts.last_id,
            2,
            parts.store.cursor(session, facts.folded_to, 2),
            b'{"role":"user","content":"two"}',
            first.end_offset,
            facts.folded_to,
            messages_before=1,
            timestamp_ms=second.timestamp_ms,
        )
        assert (first.seq, parts.store.position(session, first.cursor).offset) == (1, first.end_offset)


async def test_a_replay_from_a_cursor_gives_only_later_messages(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY, "one", "two")
        behind_two = parts.newest_position(KEY)
        await parts.say(KEY, "three", "four")
        _, reader = parts.follow(KEY, place=behind_two)
        await reader.wait_for_text("four")
        await parts.say(KEY, "five")
        await reader.wait_for_text("five")
        assert reader.summaries == ["three", "four", "five"]


async def test_messages_appended_during_a_replay_arrive_once_and_in_order(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        texts = [str(number) for number in range(replay_page.PAGE_LINES * 3)]
        await parts.create(KEY, *texts)
        _, reader = parts.follow(KEY, place=parts.first_position(KEY))
        for number in range(30):
            reader.stop(room_for=40)
            await parts.say(KEY, f"more {number}")
            reader.go_on()
            await trio.lowlevel.checkpoint()
        await reader.wait_for_text("more 29")
        assert reader.summaries == [*texts, *(f"more {number}" for number in range(30))]


async def test_an_overflow_gives_one_resync_per_session_and_then_every_record(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        session = await parts.create(KEY)
        await parts.create("agent:main:b")
        _, reader = parts.follow(None, limit=8)
        reader.stop(room_for=4)
        for number in range(50):
            await parts.say(KEY, f"a{number}")
            await parts.say("agent:main:b", f"b{number}")
        reader.go_on()
        await reader.wait_for_text("a49")
        await reader.wait_for_text("b49")
        await reader.wait_until(lambda: reader.summaries.count("changed:message") >= 4)
        assert reader.summaries[:4] == ["a0", "changed:message", "b0", "changed:message"]
        for letter in "ab":
            assert [text for text in reader.texts if text[0] == letter] == [f"{letter}{n}" for n in range(50)]
        assert reader.summaries.count("resync:lagged") == 2
        resyncs = {event.key: event for event in reader.events if isinstance(event, ResyncEvent)}
        first = next(e for e in reader.events if isinstance(e, MessageEvent) and e.key == KEY)
        assert resyncs[KEY] == ResyncEvent(KEY, session.session_id, "lagged", first.cursor)
        # The newest row is sent once, after the messages that it counts.
        rows = [e for e in reader.events[4:] if isinstance(e, ChangedEvent) and e.key == KEY]
        assert [row.entry.message_count for row in rows if row.entry is not None] == [50]


async def test_after_an_overflow_events_are_live_again(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY)
        subscription, reader = parts.follow(KEY, limit=1)
        reader.stop()
        await parts.say(KEY, "1", "2", "3")
        reader.go_on()
        await reader.wait_for_text("3")
        await parts.wait_until_caught_up(subscription)
        await parts.say(KEY, "4")
        assert reader.summaries == ["resync:lagged", "1", "2", "3", "4"]


async def test_a_long_replay_of_one_session_does_not_delay_another(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY, *map(str, range(replay_page.PAGE_LINES * 4)))
        await parts.create("agent:main:b")
        subscription, reader = parts.follow(KEY, "agent:main:b", limit=100)
        subscription.start_lag(KEY, parts.first_position(KEY))
        reader.stop(room_for=10)
        await parts.say("agent:main:b", "meanwhile")
        reader.go_on()
        await reader.wait_for_text(str(replay_page.PAGE_LINES * 4 - 1))
        assert reader.texts.index("meanwhile") <= replay_page.PAGE_LINES


async def test_a_slow_reader_gets_the_remaining_messages_before_the_reset(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY)
        _, reader = parts.follow(KEY)
        reader.stop()
        await parts.say(KEY, "old 1")
        await parts.say(KEY, "old 2")
        await parts.reset(KEY)
        await parts.say(KEY, "new 1")
        reader.go_on()
        await reader.wait_for_text("new 1")
        await parts.say(KEY, "new 2")
        await reader.wait_for_text("new 2")
        assert reader.summaries == ["old 1", "old 2", "resync:reset", "new 1", "new 2"]


async def test_a_reader_that_lags_over_two_resets_misses_nothing(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY)
        _, reader = parts.follow(None, limit=2)
        reader.stop()
        await parts.say(KEY, "a1", "a2", "a3")
        await parts.reset(KEY)
        await parts.say(KEY, "b1")
        await parts.reset(KEY)
        await parts.say(KEY, "c1")
        reader.go_on()
        await reader.wait_for_text("c1")
        transcript = [text for text in reader.summaries if not text.startswith("changed")]
        assert transcript == ["resync:lagged", "a1", "a2", "a3", "resync:reset", "b1", "resync:reset", "c1"]


async def test_a_slow_reader_gets_the_remaining_messages_before_the_delete(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY)
        _, reader = parts.follow(None, limit=1)
        reader.stop()
        await parts.say(KEY, "1", "2", "3")
        await parts.delete(KEY)
        reader.go_on()
        await reader.wait_until(lambda: "changed:delete" in reader.summaries)
        assert reader.summaries == ["resync:lagged", "1", "2", "3", "changed:delete"]


async def test_a_key_used_again_after_a_delete_begins_with_a_reset(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY, "old")
        _, reader = parts.follow(KEY)
        await parts.delete(KEY)
        await parts.create(KEY, "new")
        await reader.wait_for_text("new")
        await parts.say(KEY, "newer")
        await reader.wait_for_text("newer")
        assert reader.summaries == ["resync:reset", "new", "newer"]


async def test_a_rewritten_file_is_replayed_from_the_start(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        session = await parts.create(KEY, "one", "two")
        _, reader = parts.follow(None, KEY)
        os.truncate(parts.file(KEY), 0)
        parts.file(KEY).write_bytes(header(session.session_id, KEY) + line("another"))
        await reader.wait_for_text("another")
        parts.write(KEY, "more")
        await reader.wait_for_text("more")
        transcript = [text for text in reader.summaries if not text.startswith("changed")]
        # The watcher may or may not have looked between the truncation and the write.
        assert transcript in (
            ["resync:rewritten", "another", "more"],
            ["resync:rewritten", "resync:rewritten", "another", "more"],
        )


async def test_a_follower_without_the_right_to_read_gets_only_the_newest_row(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY)
        _, reader = parts.follow(None, limit=1, sees=sees_changes)
        reader.stop()
        await parts.say(KEY, "1", "2", "3")
        reader.go_on()
        await reader.wait_until(lambda: reader.events)
        [only] = reader.events
        assert isinstance(only, ChangedEvent) and only.entry is not None and only.entry.message_count == 3


async def test_an_event_that_waits_is_dropped_when_the_rights_are_lost(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY)
        await parts.create("agent:main:b")
        seen = {KEY, "agent:main:b"}
        _, reader = parts.follow(KEY, "agent:main:b", sees=lambda key, spawned_by, transcript: key in seen)
        reader.stop()
        await parts.say(KEY, "secret")
        await parts.say("agent:main:b", "open")
        seen.discard(KEY)
        reader.go_on()
        await reader.wait_for_text("open")
        assert reader.summaries == ["open"]


async def test_a_replay_stops_when_the_rights_are_lost(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY, *map(str, range(20)))
        rights = {KEY}
        subscription, reader = parts.follow(KEY, sees=lambda key, spawned_by, transcript: key in rights)
        reader.stop(room_for=5)
        subscription.start_lag(KEY, parts.first_position(KEY))
        await reader.wait_until(lambda: len(reader.events) == 5)
        rights.clear()
        reader.go_on()
        await trio.testing.wait_all_tasks_blocked(0.05)
        # The sixth was already checked and waiting for room.
        assert reader.summaries[:5] == ["0", "1", "2", "3", "4"] and len(reader.summaries) <= 6


async def test_a_file_that_cannot_be_opened_at_first_is_read_later(tmp_path: Path, autojump_clock: object) -> None:
    refusals = 2

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        nonlocal refusals
        if refusals and getattr(function, "__qualname__", "").startswith("SessionReader.read"):
            refusals -= 1
            raise OSError(24, "Too many open files")
        return function(*args)

    async with followed_store(tmp_path, watching=False, run_sync=run_sync) as parts:
        await parts.create(KEY, "one")
        subscription, reader = parts.follow(KEY, place=parts.first_position(KEY))
        await reader.wait_until(lambda: not refusals)
        await parts.say(KEY, "two")
        await reader.wait_for_text("two")
        assert reader.summaries == ["one", "two"]
        assert subscription.behind == {}


@pytest.mark.parametrize("how", ["replaced", "truncated"])
async def test_a_replaced_file_gives_a_resync_even_without_a_watcher(tmp_path: Path, how: str) -> None:
    async with followed_store(tmp_path, watching=False) as parts:
        session = await parts.create(KEY, "one", "two")
        behind_two = parts.newest_position(KEY)
        await parts.say(KEY, "three")
        path = parts.file(KEY)
        data = header(session.session_id, KEY) + line("x" * 900)
        if how == "replaced":
            (path.parent / "new").write_bytes(data)
            (path.parent / "new").rename(path)
        else:
            path.write_bytes(data)
        _, reader = parts.follow(KEY, place=behind_two)
        await reader.wait_for_text("x" * 900)
        assert reader.summaries == ["resync:rewritten", "x" * 900]


async def test_blank_and_bad_lines_at_the_end_do_not_block_a_replay(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        session = await parts.create(KEY, "one")
        with parts.file(KEY).open("ab") as file:
            file.write(b"no json\n   \n\n\0\0\n")
        parts.feed.poke(session)
        subscription, reader = parts.follow(KEY, place=parts.first_position(KEY))
        await reader.wait_for_text("one")
        await parts.wait_until_caught_up(subscription)
        await parts.say(KEY, "two")
        await reader.wait_for_text("two")
        assert reader.summaries == ["one", "two"]


async def test_a_place_in_another_sessions_file_is_not_read(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        other = await parts.create("agent:main:secret", "hidden")
        await parts.create(KEY, "one")
        _, reader = parts.follow(KEY, place=FollowPlace(other.session_id, 0, 0))
        await reader.wait_for_text("one")
        assert reader.summaries == ["resync:reset", "one"]
