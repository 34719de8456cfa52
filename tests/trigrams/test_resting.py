"""Sessions that rest, against a plain table of when each of them is due."""

from __future__ import annotations

import sys
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.store.folder import Folder
from sessiond.store.session import Session
from sessiond.trigrams.resting import RestingGroup, RestingSessions

FOLDER = Folder("main", -1, dialect=V3)


def session(number: int) -> Session:
    return Session(key=f"agent:main:{number}", entry=Entry(session_id=f"s{number}"), folder=FOLDER)


additions = st.tuples(st.just("add"), st.integers(1, 150), st.integers(0, 2))
removals = st.tuples(st.just("remove"), st.integers(1, 40), st.integers(0, 500))
takings = st.tuples(st.just("take"), st.integers(0, 100), st.integers(-1, 1))


@given(steps=st.lists(additions | removals | takings, max_size=12))
def test_each_that_rests_is_taken_once_in_the_order_in_which_they_came_to_rest(
    steps: list[tuple[str, int, int]],
) -> None:
    resting, now = RestingSessions(), 0
    table: dict[Session, tuple[int, RestingGroup]] = {}
    for what, count, number in steps:
        if what == "add":
            now += number
            for one in map(session, range(count)):
                table[one] = now, resting.add(one, now)
        elif what == "remove":
            for one in list(table)[number : number + count]:
                _, group = table.pop(one)
                resting.remove(one, group)
        else:
            due = [one for one, (at, _) in table.items() if at <= now + number][:count]
            assert resting.take(now + number, count) == due
            for one in due:
                del table[one]
        assert resting.next_due == next((at for at, _ in table.values()), None)
        assert bool(resting) == bool(table)
    assert resting.take(now, sys.maxsize) == list(table)


def test_what_rests_takes_few_bytes() -> None:
    resting, many = RestingSessions(), [session(number) for number in range(10_000)]
    tracemalloc.start()
    try:
        for one in many:
            resting.add(one, 60)
        assert tracemalloc.get_traced_memory()[0] < 16 * len(many)
    finally:
        tracemalloc.stop()
