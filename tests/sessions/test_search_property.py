"""A search finds what reading every message of every history finds, in the same order, page by page, whatever an index
leaves out and wherever blocks end.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.sampling import amount
from support.searched_files import (
    Expected,
    SearchedFiles,
    T,
    Transcript,
    TruthfulIndex,
    find,
    read_everything,
    transcripts,
)

from sessiond.policy.secrets import mask_secrets
from sessiond.sessions.found import Place
from sessiond.sessions.search import Query
from sessiond.trigrams.narrowing import NO_INDEX

queries = st.fixed_dictionaries(
    {
        "text": st.sampled_from(["needle", "NEEDLE", "and", "needle\nin", "\u672c n", "y", "alpha", "nowhere"]),
        "limit": st.integers(1, 6),
        "role": st.sampled_from([None, None, "user", "assistant", "toolResult"]),
        "since_ms": st.none() | st.none() | st.integers(0, 30).map(lambda at: T + at * 1000),
        "until_ms": st.none() | st.none() | st.integers(0, 30).map(lambda at: T + at * 1000),
        "block": st.sampled_from([64, 500, 10**6]),
    }
)


@settings(max_examples=amount(3000, 30), deadline=None)
@given(files=transcripts, asked=queries, masks=st.booleans(), indexed=st.booleans(), seed=st.integers(0, 2**32))
def test_a_search_finds_what_reading_every_message_finds(
    files: list[Transcript], asked: dict[str, Any], masks: bool, indexed: bool, seed: int
) -> None:
    choose = random.Random(seed)
    query = Query(shown=(lambda text: mask_secrets(text)[0]) if masks else (lambda text: text), **asked)
    with TemporaryDirectory() as folder, ExitStack() as closing:
        sessions = SearchedFiles(Path(folder), files, closing).sessions
        expected = read_everything(sessions, query)
        index = TruthfulIndex(choose) if indexed else NO_INDEX
        assert find(sessions, query, index)[0] == expected[: query.limit + 1]
        found: list[Expected] = []
        after: Place | None = None
        while True:
            is_over = choose.choice([None, lambda: True, lambda: choose.random() < 0.3])
            page, looking = find(sessions, replace(query, after=after, is_over=is_over), index)
            found += page[: query.limit]
            last = None
            if len(page) > query.limit:
                one = page[query.limit - 1]
                session = next(session for session in sessions if session.key == one.key)
                listed = one.number if session.dialect.lists else 0
                last = (-one.timestamp, one.key, -one.offset, -listed, session.session_id)
            elif looking.ended_at is not None:
                last = (-looking.ended_at,)
            if last is None:
                break
            assert after is None or last > after
            after = last
        assert found == expected
