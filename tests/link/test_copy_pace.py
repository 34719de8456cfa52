"""New copies of one machine: many at once, then so many a second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.link.copy_pace import CopyPace


def test_so_many_come_at_once_and_one_more_waits() -> None:
    pace = CopyPace(burst=10, per_s=4)
    assert pace.wait_s(10, 100.0) == 0.0
    assert pace.wait_s(1, 100.0) == 0.25
    assert pace.wait_s(0, 100.25) == 0.0
    assert CopyPace(burst=10, per_s=4).wait_s(11, 0.0) == 0.25


def test_what_was_not_used_is_kept_up_to_the_burst() -> None:
    pace = CopyPace(burst=10, per_s=4)
    pace.wait_s(10, 0.0)
    assert pace.wait_s(10, 1000.0) == 0.0
    assert pace.wait_s(4, 1000.0) == 1.0


@given(steps=st.lists(st.tuples(st.integers(0, 400), st.floats(0, 10))))
def test_whoever_waits_has_no_more_than_the_burst_and_the_rate(steps: list[tuple[int, float]]) -> None:
    pace, now_s, made = CopyPace(burst=1000, per_s=100), 0.0, 0
    for count, idle_s in steps:
        now_s += idle_s
        made += count
        now_s += pace.wait_s(count, now_s)
        assert made <= 1000 + 100 * now_s + 1e-3


@pytest.mark.parametrize("count", [0, 400])
def test_the_usual_number_of_sessions_does_not_wait(count: int) -> None:
    pace = CopyPace()
    assert [pace.wait_s(count, 0.0) for _ in range(50)] == [0.0] * 50
