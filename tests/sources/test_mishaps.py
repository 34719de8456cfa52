"""Sources when descriptors run out, folders come and go, and databases are broken or locked: real files and watches."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.followed_store import append
from support.foreign_sessions import UUID, FollowedSources, followed_sources, key_of, pi_file, pi_line
from support.opencode_database import make_database
from support.shortage import free_descriptors

from sessiond.model.dialects import DIALECTS
from sessiond.model.record import Record
from sessiond.sources.event_files import EventFiles
from sessiond.sources.first_reading import read_known
from sessiond.sources.root import OpenRoot
from sessiond.store import dirfd

PI = DIALECTS["pi"]


@contextmanager
def no_descriptors() -> Iterator[None]:
    """In this block not a single one is free."""
    with free_descriptors(0), ExitStack() as taken:
        with suppress(OSError):
            while True:
                taken.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        yield


def root_of(followed: FollowedSources) -> OpenRoot:
    return followed.sources._roots.by_label["pi"]


async def test_a_file_that_cannot_be_opened_at_the_start_is_no_broken_one(followed: FollowedSources) -> None:
    root = root_of(followed)
    (file,) = root.list_below("").files
    with no_descriptors():
        failure = read_known(root, file, None)
    assert isinstance(failure, OSError) and dirfd.is_passing(failure)
    assert followed.complaints() == []


async def test_a_folder_removed_before_it_could_be_watched_is_watched_when_it_comes_back(
    followed: FollowedSources, home: Path
) -> None:
    root = root_of(followed)
    assert not followed.sources._roots.watch(root, "sessions/later")
    pi_file(home, 2, "two", folder="later")
    await followed.wait_until(lambda: key_of(2) in followed.keys)
    pi_file(home, 3, "three", folder="later")
    await followed.wait_until(lambda: key_of(3) in followed.keys)


async def test_a_root_whose_path_is_no_text_is_a_line_in_doctor_and_nothing_else(tmp_path: Path, home: Path) -> None:
    pi_file(home / "real", 1, "one")
    target = os.fsencode(home) + b"/\xff"
    os.rename(home / "real" / ".pi" / "agent", target)
    (home / ".pi").mkdir()
    os.symlink(target, home / ".pi" / "agent")
    async with followed_sources(tmp_path, home) as followed:
        assert followed.keys == set()
        assert any("not UTF-8 text" in line for line in followed.complaints())
        (home / ".pi" / "agent").unlink()
        os.rename(target, home / ".pi" / "agent")
        await followed.wait_until(lambda: followed.keys == {key_of(1)})
        await followed.sources.save()
        assert followed.complaints() == []


async def test_a_file_removed_while_it_is_read_leaves_no_session(tmp_path: Path, home: Path) -> None:
    older, newer = (pi_file(home, number, "hello") for number in (1, 2))
    os.utime(older, (1, 1))
    removed: list[Path] = []

    def parse_and_remove(line: bytes) -> Record:
        if not removed and b"hello" in line:
            removed.append(newer)
            newer.unlink()
            threading.Event().wait(0.1)  # here the event loop learns that it is gone
        return PI.parse(line)

    dialects = {"pi": replace(PI, parse=parse_and_remove)}
    async with followed_sources(tmp_path, home, dialects=dialects) as followed:
        await followed.wait_until(lambda: followed.keys == {key_of(1)})
        assert removed == [newer]
        assert followed.complaints() == []


async def test_a_program_that_is_installed_where_nothing_can_be_watched_is_found_by_looking(
    tmp_path: Path, home: Path
) -> None:
    async with followed_sources(tmp_path, home) as followed:
        sources, watches = followed.sources, followed.sources._watches
        watches.forget(str(home))
        pi_file(home, 1, "hello")
        await sources._look_at_polled(str(home))
        assert followed.keys == {key_of(1)}


async def test_doctor_says_nothing_of_odd_files_that_were_removed(followed: FollowedSources, home: Path) -> None:
    folder = home / ".pi" / "agent" / "sessions" / "odd"
    folder.mkdir()
    bad_name, link = folder / "2026_a b.jsonl", folder / f"2026_{UUID.format(7)}.jsonl"
    bad_name.touch()
    link.symlink_to("/etc/passwd")
    await followed.wait_until(lambda: len(followed.complaints()) == 2)
    bad_name.unlink()
    link.unlink()
    await followed.wait_until(lambda: followed.complaints() == [])


async def test_a_removed_file_is_looked_at_alone_and_a_removed_folder_with_all_in_it(followed: FollowedSources) -> None:
    root = root_of(followed)
    (place,) = root.sessions
    folder, _, name = place.rpartition("/")
    assert root.places_below(f"{folder}/other_{name}") == [f"{folder}/other_{name}"]
    assert root.places_below(folder) == [place]
    assert root.places_below("") == [place]


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("file", {"folded_to": -5}),
        ("file", {"folded_to": -(2**70)}),
        ("file", {"bytes": -10, "folded_to": -20}),
        ("file", {"passed_to": 2**70}),
        ("file", {"check": 2**70}),
        ("file", {"had_messages": 2**70, "rewritten_at": 2**70}),
        ("source", {"tail_begin": -5}),
        ("source", {"tail_begin": 2**70}),
        ("source", {"opened": {"id": "x", "begin": -5, "seq": -1}}),
        ("source", {"title": 5}),
    ],
)
async def test_a_snapshot_with_impossible_values_costs_nothing(
    tmp_path: Path, home: Path, part: str, values: dict[str, Any]
) -> None:
    path = pi_file(home, 1, "one")
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_whole()
    saved = tmp_path / "store" / "cache" / "sources.jsonl"
    head, line = saved.read_bytes().splitlines()
    row = json.loads(line)
    row["entry"][part] |= values
    saved.write_bytes(head + b"\n" + json.dumps(row).encode() + b"\n")
    append(path, pi_line("later"))
    async with followed_sources(tmp_path, home) as followed:
        await followed.wait_until(lambda: followed.parts.session(key_of(1)).entry.message_count == 2)
        append(path, pi_line("and later"))
        await followed.wait_until(lambda: followed.parts.session(key_of(1)).entry.message_count == 3)


async def test_folders_that_change_their_names_with_each_other_are_followed(
    followed: FollowedSources, home: Path
) -> None:
    paths = {number: pi_file(home, number, "one", folder=str(number)) for number in (2, 3)}
    await followed.wait_until(lambda: followed.keys == {key_of(1), key_of(2), key_of(3)})
    folder = home / ".pi" / "agent" / "sessions"
    for _ in range(3):
        for before, after in (("2", "4"), ("3", "2"), ("4", "3")):
            (folder / before).rename(folder / after)
    append(folder / "3" / paths[2].name, pi_line("more"))
    append(folder / "2" / paths[3].name, pi_line("more"))
    counts = {session.key: 0 for session in followed.parts.store.catalog.foreign.values()}

    def count() -> bool:
        counts.update({one.key: one.entry.message_count for one in followed.parts.store.catalog.foreign.values()})
        return counts == {key_of(1): 1, key_of(2): 2, key_of(3): 2}

    await followed.wait_until(count)


@pytest.mark.parametrize("data", [b"no database at all", b"SQLite format 3\0" + b"\xff" * 5000, b"\0" * 4096])
def test_a_broken_database_is_not_tried_again_and_again(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "opencode.db").write_bytes(data)
    with dirfd.closing(dirfd.open_root(tmp_path)) as fd, closing(EventFiles(fd, str(tmp_path), "opencode.db")) as files:
        with pytest.raises(OSError, match="database cannot be read") as failure:
            files.list_sessions()
        assert not dirfd.is_passing(failure.value)


def test_a_locked_database_and_a_lack_of_descriptors_pass(tmp_path: Path) -> None:
    path = tmp_path / "opencode.db"
    with (
        closing(make_database(path)) as program,
        dirfd.closing(dirfd.open_root(tmp_path)) as fd,
        closing(EventFiles(fd, str(tmp_path), "opencode.db")) as files,
    ):
        with no_descriptors(), pytest.raises(OSError) as failure:
            files.list_sessions()
        assert dirfd.is_passing(failure.value)
        program.execute("pragma journal_mode = wal")
        program.execute("pragma locking_mode = exclusive")
        program.execute("create table kept (x)")
        program.commit()
        with pytest.raises(OSError, match="locked") as failure:
            files.list_sessions()
        assert dirfd.is_passing(failure.value)
