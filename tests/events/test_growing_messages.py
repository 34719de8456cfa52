"""A message that another program writes in several lines is published anew, whole, with each of them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from support.followed_store import FollowedStore, Reader, append
from support.foreign_file import ForeignFile, foreign_file
from support.joined_lines import JOINING, first_entry, line, texts_of

from sessiond.events.subscription import FollowPlace
from sessiond.model.event import MessageEvent, ResyncEvent
from sessiond.store import folding

Shown = tuple[int, str | None, list[str]]


def growing_file(tmp_path: Path) -> AbstractAsyncContextManager[tuple[FollowedStore, ForeignFile]]:
    return foreign_file(tmp_path, line("user", "go"), first_entry(), JOINING)


def shown(reader: Reader) -> list[Shown]:
    return [
        (event.seq, event.message_id, texts_of(event.message))
        for event in reader.events
        if isinstance(event, MessageEvent)
    ]


def part(text: str, message_id: str = "m") -> bytes:
    return line("part", text, message_id)


async def test_each_part_publishes_the_whole_message_under_its_number_with_a_newer_cursor(tmp_path: Path) -> None:
    async with growing_file(tmp_path) as (parts, file):
        _, reader = parts.follow(file.session.key)
        file.write(part("one"))
        file.write(line("tool", "r"), part("two"))
        file.write(line("other"), part("three"), line("user", "on"))
        assert shown(reader) == [
            (2, "m", ["one"]),
            (3, None, ["r"]),
            (2, "m", ["one", "two"]),
            (2, "m", ["one", "two", "three"]),
            (4, None, ["on"]),
        ]
        places = [parts.store.position(file.session, event.cursor) for event in reader.events]  # type: ignore[union-attr]
        assert [place.seq for place in places] == [2, 3, 3, 3, 4]
        assert sorted(places, key=lambda place: place.offset) == places


async def test_a_cursor_within_a_message_replays_all_of_it_and_what_came_between(tmp_path: Path) -> None:
    async with growing_file(tmp_path) as (parts, file):
        file.write(part("one"))
        within = file.place
        file.write(line("tool", "r"), part("two"), part("three"), line("user", "on"))
        subscription, reader = parts.follow(file.session.key, place=within)
        await parts.wait_until_caught_up(subscription)
        assert shown(reader) == [(3, None, ["r"]), (2, "m", ["one", "two", "three"]), (4, None, ["on"])]


async def test_parts_right_behind_one_another_are_replayed_as_one_message(tmp_path: Path) -> None:
    async with growing_file(tmp_path) as (parts, file):
        file.write(part("one"))
        within = file.place
        file.write(part("two"), line("other"), part("three"))
        for place, number_of_events in ((within, 1), (FollowPlace(within.session_id, 0, 0), 2)):
            subscription, reader = parts.follow(file.session.key, place=place)
            await parts.wait_until_caught_up(subscription)
            assert (shown(reader)[-1], len(shown(reader))) == ((2, "m", ["one", "two", "three"]), number_of_events)


async def test_a_reader_that_lags_within_a_message_gets_the_whole_message_later(tmp_path: Path) -> None:
    async with growing_file(tmp_path) as (parts, file):
        subscription, reader = parts.follow(file.session.key, limit=1)
        reader.stop()
        file.write(part("one"))
        file.write(line("tool", "r"))
        file.write(part("two"))
        reader.go_on()
        await parts.wait_until_caught_up(subscription)
        assert any(isinstance(event, ResyncEvent) for event in reader.events)
        final = {seq: texts for seq, _, texts in shown(reader)}
        assert final == {2: ["one", "two"], 3: ["r"]}


async def test_whoever_had_only_a_later_part_has_not_had_what_lies_before_it(tmp_path: Path) -> None:
    async with growing_file(tmp_path) as (parts, file):
        file.write(part("one"))
        before_result = file.place
        file.write(line("tool", "r"))
        behind_result = file.place
        subscription, _ = parts.follow(file.session.key)
        file.write(part("two"))
        assert not subscription.has_had(file.session.key, before_result)
        assert subscription.has_had(file.session.key, behind_result)


async def test_many_long_parts_are_read_in_several_steps(tmp_path: Path) -> None:
    async with growing_file(tmp_path) as (parts, file):
        texts = [str(number) * 1500 for number in range(60)]
        append(file.path, b"".join(map(part, texts)), create=False)
        longest = 0
        for _ in range(100):
            got = folding.advance(
                file.session.folder.fd,
                file.session.entry,
                file.path.name,
                parts.store.record_limit,
                dialect=JOINING,
                max_bytes=2**20,
            )
            sizes = [len(step.line.record.message or b"") for step in got.steps if step.line.record is not None]
            longest = max(longest, sum(sizes))
            file.session.entry = got.entry
            if not got.more:
                break
        assert longest < 3 * 2**20 and file.session.entry.message_count == 2
