"""The folders are watched before the store is read: nothing that changes from then on is missed, or read in vain."""

from __future__ import annotations

import os
from pathlib import Path

import trio
import trio.testing
from support.followed_store import (
    PATIENCE_S,
    FollowedStore,
    MissingEventsWatcher,
    append,
    followed_store,
    header,
    line,
)
from support.rows import check_each

from sessiond.events.watch import Kind
from sessiond.events.watch_backend import Rescan

BACKENDS: list[Kind] = ["inotify", "watchfiles", "polling"]


def session_file(folder: Path, name: str, agent: str = "main") -> Path:
    path = folder / "store" / "agents" / agent / "sessions" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    append(path, header(name, f"agent:{agent}:{name}") + line("first"))
    return path


def counts(parts: FollowedStore) -> dict[str, int]:
    return {key: session.entry.message_count for key, session in parts.store.catalog.by_key.items()}


async def wait_for_counts(parts: FollowedStore, expected: dict[str, int]) -> None:
    with trio.move_on_after(PATIENCE_S):
        while counts(parts) != expected:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert counts(parts) == expected


@check_each("watcher", BACKENDS)
async def test_changes_between_the_scan_and_the_feed_are_noticed(tmp_path: Path, watcher: Kind) -> None:
    grows, goes, moves = (session_file(tmp_path, name) for name in ("grows", "goes", "moves"))
    session_file(tmp_path, "stays")

    def change() -> None:
        append(grows, line("second"))
        goes.unlink()
        moves.rename(moves.with_name("moved.jsonl"))
        session_file(tmp_path, "comes")
        session_file(tmp_path, "comes", agent="other")

    async with followed_store(tmp_path, watcher=watcher, before=change) as parts:
        expected = {"main:grows": 2, "main:stays": 1, "main:moves": 1, "main:comes": 1, "other:comes": 1}
        await wait_for_counts(parts, {f"agent:{key}": count for key, count in expected.items()})
        append(grows, line("third"))
        await wait_for_counts(parts, {f"agent:{key}": count for key, count in {**expected, "main:grows": 3}.items()})


async def test_an_agent_without_sessions_leaves_the_others_watched(tmp_path: Path) -> None:
    agents = [f"a{number}" for number in range(8)]
    files = [session_file(tmp_path, f"quiet-{agent}", agent) for agent in agents]
    for number in range(8):  # whatever the order of the folder, one of them comes before another agent
        (tmp_path / "store" / "agents" / f"b{number}").mkdir(mode=0o700)
    read_at = {file: file.stat().st_mtime_ns for file in files}

    def change() -> None:
        for file in files:
            os.utime(file, ns=(1, 1))  # of which inotify says nothing
        session_file(tmp_path, "comes", "a0")

    async with followed_store(tmp_path, watcher="inotify", before=change) as parts:
        quiet = {f"agent:{agent}:quiet-{agent}": 1 for agent in agents}
        await wait_for_counts(parts, {**quiet, "agent:a0:comes": 1})
        seen = {file: parts.session(key).entry.file.mtime_ns for file, key in zip(files, quiet, strict=True)}
        assert seen == read_at


async def test_files_that_were_just_read_are_not_looked_at_again(tmp_path: Path) -> None:
    """With 100,000 of them that took a second of the event loop."""
    quiet, grows = session_file(tmp_path, "quiet"), session_file(tmp_path, "grows")
    read_at = quiet.stat().st_mtime_ns

    def change() -> None:
        os.utime(quiet, ns=(1, 1))  # of which inotify says nothing
        append(grows, line("second"))

    async with followed_store(tmp_path, watcher="inotify", before=change) as parts:
        await wait_for_counts(parts, {"agent:main:quiet": 1, "agent:main:grows": 2})
        assert parts.session("agent:main:quiet").entry.file.mtime_ns == read_at


async def test_a_file_that_could_not_be_read_at_the_scan_is_read_though_it_does_not_change(tmp_path: Path) -> None:
    """The index beside it, which has its key, was being written then."""
    sessions = tmp_path / "store" / "agents" / "main" / "sessions"
    sessions.mkdir(parents=True, mode=0o700)
    append(sessions / "pi.jsonl", header("pi") + line("first"))
    index = sessions / "sessions.json"
    index.write_text('{"agent:main:named": {"sess')

    def complete_index() -> None:
        index.write_text('{"agent:main:named": {"sessionId": "pi"}}')

    async with followed_store(tmp_path, watcher="inotify", before=complete_index) as parts:
        await wait_for_counts(parts, {"agent:main:named": 1})


async def test_once_it_follows_a_missed_event_makes_it_look_at_every_file(tmp_path: Path) -> None:
    session_file(tmp_path, "goes")
    watcher = MissingEventsWatcher()
    async with followed_store(tmp_path, watching=False) as parts, trio.open_nursery() as nursery:
        parts.feed.watch_early(watcher)
        nursery.start_soon(parts.feed.run, watcher)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert counts(parts) == {"agent:main:goes": 1}
        parts.file("agent:main:goes").unlink()
        session_file(tmp_path, "comes")
        await watcher.send.send([Rescan("overflow")])
        await wait_for_counts(parts, {"agent:main:comes": 1})
        nursery.cancel_scope.cancel()
