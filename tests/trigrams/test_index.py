from __future__ import annotations

import contextlib
import json
import os
import resource
import sqlite3
from collections.abc import Callable
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.indexed_store import (
    BUSY,
    FILLER,
    RECORD_LIMIT,
    T,
    find_missed,
    message,
    opened_store,
    running_index,
    wait_ready,
    wait_until,
    write_session,
)
from support.rows import check_each
from support.sampling import amount, spread

from sessiond.config.settings import SearchConfig
from sessiond.errors import NoThread
from sessiond.model.case import fold_case
from sessiond.store import folding
from sessiond.store.finding import Finding
from sessiond.store.store import Message, SessionStore
from sessiond.trigrams.coverage import REST_S
from sessiond.trigrams.index import _AFTER_TROUBLE_S, TrigramIndex
from sessiond.trigrams.narrowing import NOT_NARROWED

INDEX = Path("cache", "search.sqlite")
WORDS = [
    "alpha",
    "Beta",
    "gamma\ndelta",
    "\u00c9t\u00e9",
    "\u65e5\u672c\u8a9e\u306e",
    'say "no"',
    "\\path\\",
    "\u0130stanbul",
    "\u039f\u0394\u039f\u03a3 ",
    "a\0b",
    "\U0001f600\U0001f601\U0001f602",
    "\ud83d half",
    "x",
]
DUMPS: list[Callable[[Any], str]] = [
    json.dumps,
    lambda line: json.dumps(line, ensure_ascii=True, separators=(",", ":")),
]
texts = st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=4).map(" ".join)


@settings(max_examples=amount(100, 10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.lists(st.tuples(st.integers(0, 2), texts), max_size=12),
    later=st.lists(st.tuples(st.integers(0, 2), texts), max_size=4),
    queries=st.lists(texts | st.sampled_from(["", "pha", "TA", "b\ufffe", "\u03c3 "]), min_size=1, max_size=4),
)
@example(said=[(0, "a\0b platypus")], later=[], queries=["platypus"])
def test_no_line_with_a_text_is_left_out(
    tmp_path_factory: pytest.TempPathFactory,
    said: list[tuple[int, str]],
    later: list[tuple[int, str]],
    queries: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("store")
    for number in range(3):
        lines = [message(text, T + at) for at, (which, text) in enumerate(said) if which == number]
        write_session(folder, f"s{number}", lines, dump=DUMPS[number % 2], archived=number == 2)

    async def check() -> None:
        async with opened_store(folder) as store, running_index(store) as index:
            await wait_ready(index)
            for which, text in later:
                session = store.catalog.by_id[f"s{which}"]
                if not session.archived:
                    await store.append(session, [Message(message(text.encode("utf-8", "replace").decode())["message"])])
            sessions = list(store.catalog.every())
            for query in [*queries, *(text for _, text in (*said, *later))]:
                narrowed = index.narrow(fold_case(query))
                assert (narrowed is not NOT_NARROWED) == (len(fold_case(query)) > 2 and "\n" not in query)
                assert [find_missed(narrowed, session, query) for session in sessions] == [[], [], []]

    trio.run(check)


def write_some(folder: Path) -> None:
    """Three sessions; the word `platypus` in one of them, behind some text."""
    for number in range(3):
        words = [message(f"number {number} {place} " + FILLER, T + place) for place in range(40)]
        write_session(folder, f"s{number}", [*words, message("the platypus" if number == 1 else "no", T + 100)])


async def find_blocks(folder: Path) -> dict[str, int]:
    """How many blocks may have the word, by session, in an index that is ready; none is left out."""
    async with opened_store(folder) as store, running_index(store) as index:
        await wait_ready(index)
        return count_blocks(store, index)


def count_blocks(store: SessionStore, index: TrigramIndex) -> dict[str, int]:
    sessions = list(store.catalog.by_id.values())
    narrowed = index.narrow("platypus")
    assert not any(find_missed(narrowed, session, "platypus") for session in sessions)
    return {session.session_id: len(narrowed.find_in(session).blocks) for session in sessions}


def change_byte(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 0xFF]))


def put_another(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("create table about (name, value)")
        connection.commit()


def put_link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


SPOILED: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "cut to nothing": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "another byte": lambda path: change_byte(path, path.stat().st_size // 2),
    "another byte at the end": lambda path: change_byte(path, path.stat().st_size - 7),
    "no database": lambda path: path.write_bytes(b"something else" * 1000),
    "another database": put_another,
    "a link": put_link,
}


async def test_an_index_that_was_spoiled_is_begun_again(tmp_path: Path) -> None:
    write_some(tmp_path)
    expected = await find_blocks(tmp_path)
    assert expected == {"s0": 0, "s1": 1, "s2": 0}
    for how, spoil in spread(list(SPOILED.items()), 3):
        spoil(tmp_path / INDEX)
        assert await find_blocks(tmp_path) == expected, how
        mode = (tmp_path / INDEX).stat().st_mode & 0o777, (tmp_path / INDEX).parent.stat().st_mode & 0o777
        assert (mode, (tmp_path / INDEX).is_symlink()) == ((0o600, 0o700), False)


async def test_an_index_that_is_spoiled_while_it_is_used_is_begun_again(tmp_path: Path) -> None:
    write_some(tmp_path)
    async with opened_store(tmp_path) as store, running_index(store) as index:
        for how, spoil in spread(list(SPOILED.items()), 3):
            await wait_ready(index)
            assert count_blocks(store, index) == {"s0": 0, "s1": 1, "s2": 0}
            spoil(tmp_path / INDEX)
            assert index.narrow("platypus") is NOT_NARROWED, how
            assert index.status.state == "building"
        await wait_ready(index)


async def test_the_next_start_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    write_some(tmp_path)
    await find_blocks(tmp_path)
    look = (tmp_path / INDEX).stat()
    await find_blocks(tmp_path)
    again = (tmp_path / INDEX).stat()
    assert (look.st_ino, look.st_mtime_ns, look.st_size) == (again.st_ino, again.st_mtime_ns, again.st_size)
    with (tmp_path / "agents/main/sessions/s0.jsonl").open("a") as file:
        file.write(json.dumps(message("platypus " + FILLER)) + "\n")
    assert await find_blocks(tmp_path) == {"s0": 1, "s1": 1, "s2": 0}
    assert (tmp_path / INDEX).stat().st_ino == look.st_ino


async def test_another_version_or_limit_begins_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_some(tmp_path)
    expected = await find_blocks(tmp_path)
    # Lines over the limit are not searched; with a higher limit some may be that are not in the index.
    async with opened_store(tmp_path, RECORD_LIMIT + 1) as store, running_index(store) as index:
        await wait_ready(index)
        assert count_blocks(store, index) == expected
    async with opened_store(tmp_path, RECORD_LIMIT + 1) as store, running_index(store) as index:
        await wait_ready(index)
        assert index.status.indexed_bytes == index.status.total_bytes
    assert capsys.readouterr().out.count("it was made by another version") == 1


class ScarceThreads:
    """Runs work at once, but not where the name of its function is one of `refused`. `asked` are all names."""

    def __init__(self) -> None:
        self.refused: tuple[str, ...] = ()
        self.asked: list[str] = []

    async def run_sync(self, function: Callable[..., Any], *args: Any, abandon_on_cancel: bool = False) -> Any:
        del abandon_on_cancel  # nothing takes long
        await trio.lowlevel.checkpoint()
        self.asked.append(function.__name__)
        if function.__name__ in self.refused:
            raise NoThread
        return function(*args)


async def test_without_threads_it_waits_for_them_and_ends_when_it_is_told_to(
    tmp_path: Path, autojump_clock: object
) -> None:
    write_some(tmp_path)
    threads = ScarceThreads()
    threads.refused = ("has_trigrams",)
    async with opened_store(tmp_path) as store, running_index(store, run_sync=threads.run_sync) as index:
        await trio.sleep(_AFTER_TROUBLE_S * 2.5)
        assert threads.asked == ["has_trigrams"] * 3
        assert (index.status.state, index.findings()[0].level) == ("building", "warn")
        assert "no thread can be started" in index.findings()[0].what
        threads.refused = ()
        await trio.sleep(_AFTER_TROUBLE_S)
        await wait_ready(index)
        assert count_blocks(store, index) == {"s0": 0, "s1": 1, "s2": 0}
        threads.refused = ("close",)
    assert threads.asked[-1] == "close"


async def test_what_is_in_doubt_is_removed_before_anything_else_when_there_are_threads_again(
    tmp_path: Path, autojump_clock: object
) -> None:
    write_some(tmp_path)
    threads = ScarceThreads()
    async with opened_store(tmp_path) as store, running_index(store, run_sync=threads.run_sync) as index:
        await wait_ready(index)
        threads.refused, threads.asked = ("remove",), []
        change_byte(tmp_path / INDEX, 5000)
        assert index.narrow("platypus") is NOT_NARROWED
        await trio.sleep(_AFTER_TROUBLE_S * 2.5)
        assert threads.asked == ["remove"] * 3
        assert index.narrow("platypus") is NOT_NARROWED
        threads.refused = ()
        await trio.sleep(_AFTER_TROUBLE_S)
        assert threads.asked[3:5] == ["remove", "open"]
        await wait_ready(index)
        assert count_blocks(store, index) == {"s0": 0, "s1": 1, "s2": 0}


async def test_a_doubt_is_not_forgotten_where_its_work_cannot_be_closed_in_a_thread(
    tmp_path: Path, autojump_clock: object
) -> None:
    write_some(tmp_path)
    threads = ScarceThreads()
    async with opened_store(tmp_path) as store, running_index(store, run_sync=threads.run_sync) as index:
        await wait_ready(index)
        change_byte(tmp_path / INDEX, 5000)
        threads.refused, threads.asked = ("close",), []
        long = [Message(message("a platypus " + FILLER)["message"])] * 20
        await store.append(store.catalog.by_id["s0"], long)
        await wait_until(lambda: "remove" in threads.asked)
        threads.refused = ()
        await wait_ready(index)
        assert count_blocks(store, index)["s0"] > 1


async def test_it_sleeps_when_it_is_ready_and_a_short_addition_rests(tmp_path: Path) -> None:
    write_some(tmp_path)
    async with opened_store(tmp_path) as store, running_index(store) as index:
        await wait_ready(index)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == inf
        await store.append(store.catalog.by_id["s0"], [Message(message("a platypus")["message"])])
        await trio.testing.wait_all_tasks_blocked()
        assert 0 < trio.lowlevel.current_statistics().seconds_to_next_deadline <= REST_S
        assert index.status.state == "ready"
        assert count_blocks(store, index) == {"s0": 0, "s1": 1, "s2": 0}
        long = [Message(message("a platypus " + FILLER)["message"])] * 20
        await store.append(store.catalog.by_id["s0"], long)
        await wait_until(lambda: index.status.indexed_bytes == index.status.total_bytes)
        assert count_blocks(store, index)["s0"] > 1


async def test_the_configuration_takes_it_away_and_brings_it_back(tmp_path: Path) -> None:
    write_some(tmp_path)
    config = BUSY
    async with opened_store(tmp_path) as store, running_index(store, lambda: config) as index:
        await wait_ready(index)
        assert index.findings() == [Finding("ok", "search", "all is indexed")]
        config = SearchConfig(index=False)
        index.reconfigure()
        await wait_until(lambda: not (tmp_path / INDEX).exists())
        assert (index.status.state, index.status.indexed_bytes) == ("off", 0)
        assert [finding.what for finding in index.findings()] == [
            "there is no index, as it is configured: a search reads every transcript"
        ]
        assert index.narrow("platypus") is NOT_NARROWED
        config = BUSY
        index.reconfigure()
        await wait_until((tmp_path / INDEX).exists)
        await wait_ready(index)
        assert count_blocks(store, index) == {"s0": 0, "s1": 1, "s2": 0}
    assert not list((tmp_path / "cache").glob("search.sqlite-*"))


async def test_without_trigrams_doctor_says_why_searches_are_slow(tmp_path: Path) -> None:
    write_some(tmp_path)
    async with opened_store(tmp_path) as store, running_index(store, is_possible=lambda: False) as index:
        await wait_until(lambda: index.status.state == "unsupported")
        (finding,) = index.findings()
        assert finding.level == "warn"
        assert "has no trigrams (FTS5): a search reads every transcript" in finding.what
        assert index.narrow("platypus") is NOT_NARROWED
    assert not (tmp_path / INDEX).exists()


async def test_a_full_disk_is_told_and_what_is_indexed_is_used(tmp_path: Path) -> None:
    write_some(tmp_path)
    await find_blocks(tmp_path)
    for number in range(3, 6):
        write_session(tmp_path, f"s{number}", [message(f"{place} {number} " + FILLER) for place in range(60)])
    async with opened_store(tmp_path) as store:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / INDEX).stat().st_size // 8, hard))
        try:
            async with running_index(store) as index:
                await wait_until(lambda: index.findings()[0].level == "warn")
                assert index.findings()[0].what.startswith("the index is not kept up to date: ")
                assert index.status.state == "building"
                found = count_blocks(store, index)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found == {"s0": 0, "s1": 1, "s2": 0, "s3": 0, "s4": 0, "s5": 0}
    assert (await find_blocks(tmp_path)) == found


async def test_a_worn_index_is_built_anew_beside_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = Random(1)
    big = [" ".join(f"{noise.getrandbits(40):x}" for _ in range(5000)) for _ in range(15)]
    write_session(tmp_path, "s0", [message(text, T + at) for at, text in enumerate(big)])
    async with opened_store(tmp_path) as store, running_index(store) as index:
        await wait_ready(index)
        first = (tmp_path / INDEX).stat().st_ino
        write_session(tmp_path, "s0", [message(text + " platypus", T + at) for at, text in enumerate(big)])
        session = store.catalog.by_id["s0"]
        got = folding.read_on(session.folder, session.entry, session.file_name, RECORD_LIMIT)
        session.activity.epoch += 1
        store.catalog.replace(session, got.entry)
        await wait_until(lambda: (tmp_path / INDEX).exists() and (tmp_path / INDEX).stat().st_ino != first)
        await wait_ready(index)
        assert count_blocks(store, index)["s0"] == len(big)
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["search.sqlite"]
    assert "begun again" not in capsys.readouterr().out


async def test_an_archived_session_is_not_indexed_again(tmp_path: Path) -> None:
    write_some(tmp_path)
    async with opened_store(tmp_path) as store, running_index(store) as index:
        await wait_ready(index)
        before = index.status
        await store.archive(store.catalog.by_id["s1"])
        await wait_until(lambda: index.status == before)
        assert count_blocks(store, index) == {"s0": 0, "s1": 1, "s2": 0}
    with contextlib.closing(sqlite3.connect(tmp_path / INDEX)) as connection:
        assert connection.execute("select count(*), max(id) from files").fetchone() == (3, 3)


@check_each("changed", ["rewritten in place", "cut", "another file", "touched", "grown"])
async def test_what_happened_to_a_file_while_nobody_looked(tmp_path: Path, changed: str) -> None:
    write_some(tmp_path)
    await find_blocks(tmp_path)
    path = tmp_path / "agents/main/sessions/s0.jsonl"
    data = path.read_bytes().replace(b"number 0 20", b"a platypus ")
    look = path.stat()
    match changed:
        case "rewritten in place":
            with path.open("r+b") as file:
                file.write(data)
        case "cut":
            os.truncate(path, len(data) - len(data.splitlines(keepends=True)[-1]))
        case "another file":
            path.unlink()
            path.write_bytes(data)
        case "touched":
            os.utime(path, ns=(look.st_atime_ns, look.st_mtime_ns + 1000))
        case "grown":
            with path.open("ab") as file:
                file.write(json.dumps(message("platypus " + FILLER)).encode() + b"\n")
    found = await find_blocks(tmp_path)
    assert (found["s0"] > 0) == (b"platypus" in path.read_bytes())
