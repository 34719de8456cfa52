"""The sessions of other programs as the catalog and subscribers see them: real files, the real watcher."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from support.followed_store import append
from support.foreign_sessions import (
    UUID,
    FollowedSources,
    followed_sources,
    key_of,
    pi_file,
    pi_header,
    pi_line,
)
from support.shortage import free_descriptors, refused_threads

from sessiond.errors import NoThread
from sessiond.model.decoding_cost import MAX_VALUES
from sessiond.model.event import ChangedEvent
from sessiond.sources import reading
from sessiond.sources.crowds import sort_into_batches
from sessiond.sources.sources import _MOST_PUBLISHED
from sessiond.sources.table import SOURCE_NAMES
from sessiond.store.store import Custom

LONG = "x" * 1000


def write_long(home: Path, number: int) -> Path:
    """A session of which at first only the ends are read."""
    path = pi_file(home, number, "the first words", *(LONG for _ in range(3 * reading.END_BYTES // 1000)))
    append(path, pi_line("the last words", at_s=60))
    return path


async def test_what_is_there_at_the_start_is_listed_newest_first_and_not_announced(tmp_path: Path, home: Path) -> None:
    for number in (1, 2, 3):
        os.utime(pi_file(home, number, "hello"), (number, number))
    async with followed_sources(tmp_path, home) as followed:
        _, reader = followed.parts.follow(None)
        await followed.wait_whole()
        catalog = followed.parts.store.catalog
        assert followed.keys == {key_of(1), key_of(2), key_of(3)}
        entry = catalog.by_key[key_of(1)].entry
        assert (entry.message_count, entry.cwd, entry.source and entry.source.title) == (1, "/home/me", "hello")
        assert reader.events == []


async def test_a_long_file_is_partial_until_it_was_folded_and_then_has_counts(tmp_path: Path, home: Path) -> None:
    write_long(home, 1)
    async with followed_sources(tmp_path, home) as followed:
        session = followed.parts.store.catalog.by_key[key_of(1)]
        source = session.entry.source
        assert source is not None
        if source.partial:
            assert (session.entry.message_count, session.entry.file.folded_to) == (0, 0), "never a guess"
            assert (source.title, session.entry.cwd) == ("the first words", "/home/me")
        await followed.sources.complete(session)
        assert not session.is_partial
        assert session.entry.message_count == 2 + 3 * reading.END_BYTES // 1000
        assert followed.sources.partial_count == 0


async def test_folding_tells_followers_of_the_row_and_of_no_message(tmp_path: Path, home: Path) -> None:
    async with followed_sources(tmp_path, home) as followed:
        _, reader = followed.parts.follow(None)
        long = home / "long"
        write_long(long, 1)
        big = next(long.rglob("*.jsonl"))
        append(big, b"".join(pi_line(LONG) for _ in range(1100)))
        (home / ".pi").mkdir()
        os.rename(long / ".pi" / "agent", home / ".pi" / "agent")
        await followed.wait_until(lambda: followed.keys == {key_of(1)})
        await followed.wait_whole()
        await reader.wait_until(lambda: "changed:patch" in reader.summaries)
        assert reader.summaries == ["changed:create", "changed:patch"]


async def test_an_appended_line_is_published_as_one_of_our_own(followed: FollowedSources, home: Path) -> None:
    _, reader = followed.parts.follow(key_of(1))
    path = pi_file(home, 1, "two", header=False)
    await reader.wait_until(lambda: len(reader.events) >= 1)
    append(path, pi_line("three"))
    await followed.wait_until(lambda: followed.parts.session(key_of(1)).entry.message_count == 3)
    assert path.read_bytes().count(b"\n") == 4


async def test_a_session_that_begins_is_created_and_its_messages_follow(followed: FollowedSources, home: Path) -> None:
    _, reader = followed.parts.follow(None)
    path = pi_file(home, 2, folder="-another", header=False)
    append(path, pi_header(UUID.format(2))[:20])
    append(path, pi_header(UUID.format(2))[20:])
    append(path, pi_line("hello"))
    await followed.wait_until(lambda: key_of(2) in followed.keys)
    await reader.wait_until(lambda: "changed:message" in reader.summaries)
    assert [event.phase for event in reader.events if isinstance(event, ChangedEvent)] == ["create", "message"]


async def test_a_folder_that_appears_later_is_picked_up(tmp_path: Path, home: Path) -> None:
    async with followed_sources(tmp_path, home) as followed:
        assert followed.keys == set()
        pi_file(home, 1, "hello")
        await followed.wait_until(lambda: followed.keys == {key_of(1)})
        os.rename(home / ".pi", home / "away")
        await followed.wait_until(lambda: followed.keys == set())
        os.rename(home / "away", home / ".pi")
        await followed.wait_until(lambda: followed.keys == {key_of(1)})


async def test_a_program_that_is_installed_beside_another_one_is_picked_up(tmp_path: Path, home: Path) -> None:
    (home / ".claude" / "projects").mkdir(parents=True)
    async with followed_sources(tmp_path, home) as followed:
        pi_file(home, 1, "one")
        await followed.wait_until(lambda: followed.keys == {key_of(1)}, "the folder was not noticed")


async def test_the_folder_of_a_program_that_is_removed_and_comes_again_is_followed(tmp_path: Path, home: Path) -> None:
    def write(number: int) -> None:
        body = {"type": "user", "uuid": "u", "timestamp": "2026-01-02T03:04:05.000Z"}
        project = home / ".claude" / "projects" / "-work"
        project.mkdir(parents=True, exist_ok=True)
        line = json.dumps(body | {"message": {"role": "user", "content": "hello"}})
        (project / f"{UUID.format(number)}.jsonl").write_text(line + "\n")

    write(1)
    # As where every program is installed: then nobody waits for a folder in the home, which is not watched.
    others = "".join(f"[sources.{name}]\nenabled = false\n" for name in SOURCE_NAMES if name != "claude")
    async with followed_sources(tmp_path, home, config=others) as followed:
        for number in (2, 3, 4):
            shutil.rmtree(home / ".claude")
            write(number)
            await followed.wait_until(lambda: followed.keys == {f"claude:{UUID.format(number)}"})  # noqa: B023


async def test_a_removed_file_takes_its_session_along(followed: FollowedSources, home: Path) -> None:
    _, reader = followed.parts.follow(None)
    pi_file(home, 1, header=False).unlink()
    await followed.wait_until(lambda: followed.keys == set())
    assert [event.phase for event in reader.events if isinstance(event, ChangedEvent)] == ["delete"]


async def test_a_truncated_file_is_read_again(followed: FollowedSources, home: Path) -> None:
    path = pi_file(home, 1, header=False)
    _, reader = followed.parts.follow(key_of(1))
    os.truncate(path, 0)
    append(path, pi_header(UUID.format(1)) + pi_line("anew"))
    await followed.wait_until(lambda: followed.parts.session(key_of(1)).entry.message_count == 1)
    await reader.wait_until(lambda: any("resync" in text for text in reader.summaries))
    assert followed.parts.session(key_of(1)).entry.session_key == key_of(1)


async def test_a_file_replaced_by_that_of_another_session_is_another_session(
    followed: FollowedSources, home: Path
) -> None:
    path = pi_file(home, 1, header=False)
    other = pi_file(home / "elsewhere", 2, "other")
    os.rename(other, path)
    await followed.wait_until(lambda: followed.keys == {key_of(2)})


async def test_of_two_files_with_one_id_the_newer_is_shown_and_doctor_names_the_other(
    tmp_path: Path, home: Path
) -> None:
    old, new = pi_file(home, 1, "old"), pi_file(home, 1, "new", "newer", folder="-copy")
    os.utime(old, (1, 1))
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        assert followed.parts.session(key_of(1)).path == str(new)
        named = [found.thing for found in followed.sources.findings() if "another file has" in found.what]
        assert named == [str(old)]
        new.unlink()
        await followed.wait_until(lambda: followed.keys and followed.parts.session(key_of(1)).path == str(old))


async def test_a_session_that_ours_carries_is_shown_once(followed: FollowedSources) -> None:
    store = followed.parts.store
    ours = await followed.parts.create("agent:main:a")
    await store.append(ours, [Custom("sessiond/entry", {"nativeSessionId": UUID.format(1)})])
    await followed.wait_until(lambda: followed.keys == set())
    assert store.catalog.carrier_of(UUID.format(1)) is ours
    await store.append(ours, [Custom("sessiond/entry", {"nativeSessionId": "another"})])
    await followed.wait_until(lambda: followed.keys == {key_of(1)})


async def test_the_configuration_switches_sources_and_paths(followed: FollowedSources, tmp_path: Path) -> None:
    pi_file(tmp_path / "other", 2, "two")
    followed.configure("[sources]\nenabled = false")
    await followed.wait_until(lambda: followed.keys == set())
    followed.configure(f'[sources.pi]\npath = "{tmp_path}/other/.pi/agent"')
    await followed.wait_until(lambda: followed.keys == {key_of(2)})
    followed.configure("[sources.pi]\nenabled = false")
    await followed.wait_until(lambda: followed.keys == set())
    followed.configure("")
    await followed.wait_until(lambda: followed.keys == {key_of(1)})


async def test_a_configured_path_without_a_folder_is_a_line_in_doctor(
    followed: FollowedSources, tmp_path: Path
) -> None:
    followed.configure(f'[sources.pi]\npath = "{tmp_path}/nowhere/at all"')
    await followed.wait_until(lambda: followed.keys == set())
    assert [found.what for found in followed.sources.findings()] == [f"there is no folder {tmp_path}/nowhere/at all"]
    pi_file(tmp_path, 3, "three")
    (tmp_path / "nowhere").mkdir()
    os.rename(tmp_path / ".pi" / "agent", tmp_path / "nowhere" / "at all")
    await followed.wait_until(lambda: followed.keys == {key_of(3)})


def write_hostile_files(tmp_path: Path, folder: Path) -> None:
    """Everything that may stand in the folder of a program and is no session, or only part of one."""

    def name(number: int) -> Path:
        return folder / f"2026_{UUID.format(number)}.jsonl"

    secret = tmp_path / "secret.jsonl"
    secret.write_bytes(pi_header(UUID.format(9)) + pi_line("secret"))
    name(9).symlink_to(secret)
    (folder.parent / "-link").symlink_to(tmp_path)
    os.mkfifo(name(10))
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(folder):
        listener.bind(f"2026_{UUID.format(11)}.jsonl")
    name(12).mkdir()
    name(13).write_bytes(b"\0" * 100_000)
    name(14).write_bytes(b"")
    name(15).write_bytes(b"{" * 300_000 + b"\n" + pi_line("after"))
    name(16).write_bytes(pi_header(UUID.format(16)) + b"\xff\xfe\n" + pi_line("two")[:-1])
    (folder / "2026_..jsonl").write_bytes(pi_header("..") + pi_line("x"))
    with open(os.fsencode(folder) + b"/2026_" + b"\xff" + b".jsonl", "wb") as file:
        file.write(pi_header(UUID.format(17)))
    (folder / "auth.json").write_bytes(b"secret")


async def test_hostile_files_cost_nobody_anything(tmp_path: Path, home: Path) -> None:
    good = pi_file(home, 1, "good")
    write_hostile_files(tmp_path, good.parent)
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        assert key_of(1) in followed.keys
        assert not followed.keys & {key_of(number) for number in (9, 10, 11, 12, 14, 17)}
        whats = [found.what for found in followed.sources.findings()]
        assert "it is not shown: a symlink; it is not followed" in whats
        assert whats.count("it is not shown: not a regular file") == 2
        append(good, pi_line("still followed"))
        await followed.wait_until(lambda: followed.parts.session(key_of(1)).entry.message_count == 2)


async def test_a_file_that_cannot_be_read_costs_its_own_row(tmp_path: Path, home: Path) -> None:
    pi_file(home, 1, "good")
    path = write_long(home, 2)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        assert followed.keys == {key_of(1)}
        [found] = [found for found in followed.sources.findings() if str(path) in found.thing]
        assert "Permission denied" in found.what or "permission" in found.what, found


async def test_past_the_limit_of_watches_the_quiet_folders_are_polled(tmp_path: Path, home: Path) -> None:
    for number in range(6):
        pi_file(home, number, "hello", folder=f"-folder{number}")
    async with followed_sources(tmp_path, home, most_watches=4) as followed:
        await followed.wait_whole()
        assert len(followed.keys) == 6
        assert any("cannot be watched" in found.what for found in followed.sources.findings())


async def test_what_was_read_is_saved_and_the_next_start_has_it_at_once(tmp_path: Path, home: Path) -> None:
    path = write_long(home, 1)
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        before = followed.parts.session(key_of(1)).entry
    append(path, pi_line("while nobody looked"))
    async with followed_sources(tmp_path, home) as followed:
        entry = followed.parts.session(key_of(1)).entry
        assert entry.source is not None and not entry.source.partial
        assert entry.message_count == before.message_count + 1
    saved = tmp_path / "store" / "cache" / "sources.jsonl"
    assert saved.stat().st_mode & 0o777 == 0o600
    for damage in (b"", b"\0" * 50, b'{"format":1}\n{"root":1}\n[]\n' + b"[" * 5000, b'{"format":99}\n'):
        saved.write_bytes(damage)
        async with followed_sources(tmp_path, home) as followed:
            await followed.wait_whole()
            assert followed.parts.session(key_of(1)).entry.message_count == entry.message_count


async def test_a_changed_file_is_not_shown_as_the_snapshot_has_it(tmp_path: Path, home: Path) -> None:
    path = write_long(home, 1)
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2].rpartition(b"\n")[0] + b"\n")
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        assert followed.parts.session(key_of(1)).entry.message_count == path.read_bytes().count(b"\n") - 1


async def test_nothing_of_another_program_is_written(tmp_path: Path, home: Path) -> None:
    path = write_long(home, 1)

    def look() -> dict[str, tuple[int, int, int]]:
        looks = {str(one): one.lstat() for one in home.rglob("*")}
        return {name: (one.st_mtime_ns, one.st_ctime_ns, one.st_size) for name, one in looks.items()}

    before = look()
    async with followed_sources(tmp_path, home) as followed:
        await followed.sources.complete(followed.parts.session(key_of(1)))
        page = await followed.parts.store.page(
            followed.parts.session(key_of(1)), lambda record: record.message is not None, limit=3, max_bytes=1 << 20
        )
        assert len(page.lines) == 3
    assert look() == before
    assert path.exists()


async def test_descriptors_and_watches_stay_the_same_however_often_folders_come_and_go(
    followed: FollowedSources, home: Path
) -> None:
    await followed.wait_whole()
    before = None
    for number in range(12):
        path = pi_file(home, 2, "hello", folder=f"-folder{number}")
        await followed.wait_until(lambda: followed.keys == {key_of(1), key_of(2)})
        path.unlink()
        path.parent.rmdir()
        await followed.wait_until(lambda: followed.keys == {key_of(1)})
        await trio.sleep(0.01)
        now = len(os.listdir("/proc/self/fd")), len(followed.sources._watches)
        before = before or now
        assert now == before


def gemini_file(home: Path, name: str, *lines: dict[str, Any]) -> Path:
    """Append to a session of Gemini CLI, and return its file."""
    path = home / ".gemini" / "tmp" / "work" / "chats" / f"session-{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    append(path, b"".join(json.dumps(one).encode() + b"\n" for one in lines))
    return path


async def test_an_empty_file_of_a_session_does_not_take_the_place_of_the_one_with_its_messages(
    tmp_path: Path, home: Path
) -> None:
    native_id = UUID.format(7)
    head = {"sessionId": native_id, "projectHash": "h", "startTime": "2026-01-02T03:04:05.000Z"}
    context = {"$set": {"messages": [{"id": "c", "type": "user", "content": "<session_context>"}]}}
    told = {"id": "u", "type": "user", "content": "hello"}
    first = gemini_file(home, "2026-01-02T03-04-0e821bfa", head, context, told)
    os.utime(first, (1, 1))
    key = f"gemini:{native_id}"
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        _, reader = followed.parts.follow(key)
        gemini_file(home, "2026-01-02T03-05-0e821bfa", head, context)
        gemini_file(home, "2026-01-02T03-04-0e821bfa", {"$set": {"sessionId": native_id}}, {**told, "id": "v"})
        await reader.wait_until(lambda: len(reader.events) >= 1)
        session = followed.parts.session(key)
        assert (session.place, session.entry.message_count) == (
            "tmp/work/chats/session-2026-01-02T03-04-0e821bfa.jsonl",
            2,
        )
        assert not [event for event in reader.events if isinstance(event, ChangedEvent) and event.phase == "delete"]
    os.utime(first, (1, 1))
    async with followed_sources(tmp_path / "again", home) as followed:
        await followed.wait_whole()
        assert followed.parts.session(key).entry.message_count == 2


async def test_a_folder_that_comes_while_descriptors_or_threads_are_short_is_shown_later(
    followed: FollowedSources, home: Path
) -> None:
    shortages = [*(free_descriptors(count) for count in range(4)), refused_threads()]
    for number, shortage in enumerate(shortages, 2):
        made = pi_file(home / "elsewhere", number, "hello", folder=f"-folder{number}")
        folder = home / ".pi" / "agent" / "sessions" / made.parent.name
        with shortage:
            os.rename(made.parent, folder)
            await trio.testing.wait_all_tasks_blocked(0.05)
        await followed.wait_until(lambda number=number: key_of(number) in followed.keys)
        append(folder / made.name, pi_line("more"))
        session = followed.parts.session(key_of(number))
        await followed.wait_until(lambda session=session: session.entry.message_count == 2)
        assert followed.complaints() == []


async def test_many_files_at_once_are_shown_where_no_thread_can_sort_them(
    followed: FollowedSources, home: Path
) -> None:
    await followed.wait_whole()
    usual, refused = followed.sources._run_sync, 0

    async def run_sync(function: Callable[..., Any], *args: Any) -> Any:
        nonlocal refused
        if function is sort_into_batches:
            refused += 1
            raise NoThread
        return await usual(function, *args)

    followed.sources._run_sync = run_sync
    numbers = range(1000, 1000 + _MOST_PUBLISHED + 1)
    for number in numbers:
        made = pi_file(home / "elsewhere", number, "hello", folder="-many")
    os.rename(made.parent, home / ".pi" / "agent" / "sessions" / "-many")
    await followed.wait_until(lambda: {key_of(number) for number in numbers} <= followed.keys)
    assert refused


async def test_a_save_that_the_end_of_the_daemon_interrupts_is_made_up_for(
    followed: FollowedSources, tmp_path: Path
) -> None:
    await followed.wait_whole()
    with trio.CancelScope() as scope:
        scope.cancel()
        await followed.sources.save()
    await followed.sources.save()
    assert (tmp_path / "store" / "cache" / "sources.jsonl").exists()


async def test_of_lines_that_cannot_be_read_the_first_is_named_with_its_reason(tmp_path: Path, home: Path) -> None:
    path = pi_file(home, 1, "good")
    before = path.read_bytes().count(b"\n")
    append(path, b"\n" + b'{"a":[' + b"[]," * MAX_VALUES + b"0]}\n" + b"{torn\n")
    good = pi_file(home, 2, "good")
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
        found = followed.sources.findings()
        for _ in followed.sources.name_first_bad_lines(found, followed.parts.store.record_limit):
            pass
        [bad] = [one for one in found if one.level == "warn" and str(path) in one.thing]
        begin = path.read_bytes().index(b'{"a":[')
        where = f"line {before + 2} (at byte {begin}), more than 262144 values"
        assert bad.what == f"2 lines that cannot be read (the first: {where})"
        assert not [one for one in found if str(good) in one.thing]
