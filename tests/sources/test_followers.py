"""What followers get of sessions of other programs that are long, or come in numbers: real files, the real watcher."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.followed_store import append
from support.foreign_sessions import followed_sources, key_of, pi_file, pi_line

from sessiond.model.event import ChangedEvent, MessageEvent

LONG = "x" * 1000


def write_long(home: Path, number: int) -> Path:
    """A session that is read whole in the background, even when it is new."""
    return pi_file(home, number, "the first words", *(LONG for _ in range(1100)))


@pytest.mark.parametrize("what", [".pi", ".pi/agent/sessions/-many"])
async def test_many_sessions_that_appear_at_once_are_each_created_and_their_messages_flood_nobody(
    tmp_path: Path, home: Path, what: str
) -> None:
    for number in range(130):
        pi_file(home / "away", number, "hello", "again", folder="-many")
    (home / what).parent.mkdir(parents=True, exist_ok=True)
    async with followed_sources(tmp_path, home) as followed:
        _, reader = followed.parts.follow(None)
        os.rename(home / "away" / what, home / what)
        await reader.wait_until(lambda: len(reader.events) >= 130)
        created = [event.key for event in reader.events if isinstance(event, ChangedEvent) and event.phase == "create"]
        assert sorted(created) == sorted(map(key_of, range(130)))
        assert set(reader.summaries) == {"changed:create"}
        _, reader = followed.parts.follow(key_of(7))
        pi_file(home, 7, "three", folder="-many", header=False)
        await reader.wait_until(lambda: len(reader.events) >= 1)


async def test_what_is_appended_after_a_long_session_was_asked_for_comes_as_messages(
    tmp_path: Path, home: Path
) -> None:
    path = write_long(home, 1)
    async with followed_sources(tmp_path, home) as followed:
        session = followed.parts.session(key_of(1))
        append(path, pi_line("while it is partial"))
        await followed.sources.complete(session)
        before = session.entry.message_count
        _, reader = followed.parts.follow(key_of(1))
        append(path, pi_line("first"))
        append(path, pi_line("second"))
        await reader.wait_until(lambda: len(reader.events) >= 2)
        assert [type(event) for event in reader.events] == [MessageEvent, MessageEvent]
        assert session.entry.message_count == before + 2


async def test_whoever_follows_a_session_whose_file_becomes_a_long_one_gets_all_of_it_and_what_is_appended(
    tmp_path: Path, home: Path
) -> None:
    path = pi_file(home, 1, "short")
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        _, reader = followed.parts.follow(key_of(1))
        os.rename(write_long(home / "away", 1), path)
        append(path, pi_line("LAST"))
        await reader.wait_until(
            lambda: any(isinstance(event, MessageEvent) and b"LAST" in bytes(event.message) for event in reader.events)
        )
