"""The answers of a search are the same whatever the index has, or has not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.indexed_store import FILLER, RECORD_LIMIT, T, message, opened_store, write_session
from support.sampling import amount

from sessiond.sessions.search import Query, Search, search
from sessiond.sessions.search_numbers import MatchNumbering
from sessiond.store import dirfd
from sessiond.store.catalog import Session
from sessiond.store.store import Message, SessionStore
from sessiond.store.time_slicer import TimeSlicer
from sessiond.trigrams.building import IndexBuilder
from sessiond.trigrams.candidates import FoundBlocks, FrequencyLimits
from sessiond.trigrams.narrowing import NO_INDEX, NOT_NARROWED, Narrowed
from sessiond.trigrams.opened import IndexFiles, OpenIndex, close
from sessiond.trigrams.text import match_expressions

WORDS = ["alpha", "Alphabet soup", "beta", "\u65e5\u672c\u8a9e\u306e", "\u0130stanbul", "a\0b", "x", "pha be"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)
lines = st.lists(st.tuples(st.integers(0, 3), texts, st.sampled_from(["user", "assistant"])), max_size=12)


class StandingIndex:
    """An index of which as much is built as the test lets it."""

    def __init__(self, store: SessionStore) -> None:
        self._files = IndexFiles(store.root_fd, store.path, RECORD_LIMIT)
        self.one: OpenIndex = self._files.open()[0]
        self.limits = FrequencyLimits()
        self._files.make(self.one, is_next=False)

    def build(self, sessions: Iterable[Session], steps: int) -> Iterator[None]:
        """Do so many steps; the rest when asked for the next."""
        for session in sessions:
            self.one.coverage.note(session, 0.0)
        assert self.one.database is not None
        builder = IndexBuilder(self.one.database, self.one.coverage.take(1e9), RECORD_LIMIT)
        for number, _ in enumerate(builder.steps()):
            if number == steps:
                yield
        for done in builder.take_done():
            self.one.coverage.apply(*done)
        yield

    def narrow(self, text: str) -> Narrowed:
        expressions, known = match_expressions(text), self.one.coverage.copy_known()
        if not expressions or not known or self.one.database is None:
            return NOT_NARROWED
        return FoundBlocks(self.one.database, known, expressions, self.limits)


async def run_inline(function: Any, *args: Any) -> Any:
    return function(*args)


async def answer(store: SessionStore, sessions: list[Session], query: Query, index: Any) -> list[tuple[Any, ...]]:
    page = await search(store, TimeSlicer(run_inline), sessions, query, index)
    found = [(match.session.key, match.timestamp, match.offset, match.snippet, cursor) for match, cursor in page.found]
    return [*found, (page.next_place,)]


@settings(max_examples=amount(150, 12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=lines,
    later=lines,
    indexed=st.tuples(
        st.integers(0, 12),
        st.just(FrequencyLimits()) | st.builds(FrequencyLimits, st.just(0), st.integers(0, 2), st.integers(0, 3)),
    ),
    asked=st.fixed_dictionaries({
        "text": texts | st.sampled_from(["lph", "SOUP", "ab", "nowhere"]),
        "limit": st.integers(1, 6),
        "role": st.none() | st.just("user"),
        "since_ms": st.none() | st.integers(T, T + 12),
        "until_ms": st.none() | st.integers(T, T + 24),
    }),
)  # fmt: skip
def test_answers_do_not_depend_on_what_is_indexed(
    tmp_path_factory: pytest.TempPathFactory,
    said: list[Any],
    later: list[Any],
    indexed: tuple[int, FrequencyLimits],
    asked: dict[str, Any],
) -> None:
    folder = tmp_path_factory.mktemp("store")
    for number in range(4):
        mine = [message(text, T + at, role) for at, (which, text, role) in enumerate(said) if which == number]
        write_session(folder, f"s{number}", mine, archived=number == 3)
    query = Query(shown=lambda text: text, **asked)

    async def check() -> None:
        async with opened_store(folder) as store:
            sessions = list(store.catalog.every())
            index = StandingIndex(store)
            steps, index.limits = indexed
            work = index.build(sessions, steps)
            expected = await answer(store, sessions, query, NO_INDEX)
            for stage in ("half built", "built"):
                next(work, None)
                assert await answer(store, sessions, query, index) == expected, stage
            for at, (which, text, role) in enumerate(later):
                if which < 3:
                    body = message(text, T + 12 + at, role)["message"]
                    await store.append(store.catalog.by_id[f"s{which}"], [Message(body)])
            expected = await answer(store, sessions, query, NO_INDEX)
            assert await answer(store, sessions, query, index) == expected, "stale"
            for _ in index.build(sessions, 2):
                assert await answer(store, sessions, query, index) == expected, "built on"
            work.close()
            close(index.one)

    trio.run(check)


class CountedFiles:
    """The transcripts of a folder as they are. `opened` are the names of those that were opened."""

    def __init__(self, folder_fd: int) -> None:
        self._folder_fd = folder_fd
        self.opened: list[str] = []

    def makes(self, _place: str) -> bool:
        return False

    def open(self, place: str) -> int:
        self.opened.append(place)
        return dirfd.open_file(self._folder_fd, place, os.O_RDONLY)

    def status(self, place: str) -> os.stat_result:
        return os.stat(place, dir_fd=self._folder_fd)


async def test_a_transcript_with_a_match_is_opened_once_and_no_other_one(tmp_path: Path) -> None:
    for number in range(6):
        text = f"{'needle' if number % 2 else 'straw'} {FILLER}"
        write_session(tmp_path, f"s{number}", [message(text, T + number), message("end " + FILLER, T + number)])
    async with opened_store(tmp_path) as store:
        sessions, index = list(store.catalog.every()), StandingIndex(store)
        for _ in index.build(sessions, 10_000):
            pass
        folder = sessions[0].folder
        folder.made = files = CountedFiles(folder.fd)
        query = Query(text="needle", limit=50, shown=lambda text: text)
        assert len(await answer(store, sessions, query, index)) == 3 + 1
        assert sorted(files.opened) == ["s1.jsonl", "s3.jsonl", "s5.jsonl"]
        close(index.one)


async def test_what_is_before_a_match_is_not_read_for_its_number(tmp_path: Path) -> None:
    """A step is made for what is read."""
    write_session(tmp_path, "s0", [message(f"needle {FILLER}", T + at) for at in range(30)])
    async with opened_store(tmp_path) as store:
        sessions, index = list(store.catalog.every()), StandingIndex(store)
        for _ in index.build(sessions, 10_000):
            pass
        query = Query(text="needle", limit=50, shown=lambda text: text)
        for asked, reads in ((index, False), (NO_INDEX, True)):
            looking = Search(store, sessions, query, asked)
            assert sum(1 for _ in looking.steps())
            matches = looking.matches()
            numbering = MatchNumbering(RECORD_LIMIT, matches, query.block)
            assert bool(list(numbering.steps())) is reads
            assert [numbering.number_of(match) for match in matches] == list(range(31, 1, -1))
        close(index.one)
