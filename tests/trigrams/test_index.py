from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.indexed_store import (
    FILLER,
    T,
    find_missed,
    message,
    opened_store,
    running_index,
    wait_ready,
    write_session,
)
from support.sampling import amount

from sessiond.model.case import fold_case
from sessiond.store.store import Message, SessionStore
from sessiond.trigrams.index import TrigramIndex

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


@settings(max_examples=amount(100, 15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
                narrowed = index.narrow(fold_case(query), sessions)
                assert narrowed.is_narrowed == (len(fold_case(query)) > 2 and "\n" not in query)
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
    narrowed = index.narrow("platypus", sessions)
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
    for how, spoil in SPOILED.items():
        spoil(tmp_path / INDEX)
        assert await find_blocks(tmp_path) == expected, how
        mode = (tmp_path / INDEX).stat().st_mode & 0o777, (tmp_path / INDEX).parent.stat().st_mode & 0o777
        assert (mode, (tmp_path / INDEX).is_symlink()) == ((0o600, 0o700), False)


async def test_an_index_that_is_spoiled_while_it_is_used_is_begun_again(tmp_path: Path) -> None:
    write_some(tmp_path)
    async with opened_store(tmp_path) as store, running_index(store) as index:
        for how, spoil in SPOILED.items():
            await wait_ready(index)
            assert count_blocks(store, index) == {"s0": 0, "s1": 1, "s2": 0}
            spoil(tmp_path / INDEX)
            assert not index.narrow("platypus", store.catalog.by_id.values()).is_narrowed, how
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
