"""How often something may be that other machines cause."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sessiond.link.paced_log import BURST, PER_S, PacedLog
from sessiond.link.pacing import ArrivalPace

PAUSES = st.lists(st.floats(0, 0.5), min_size=1, max_size=100)


@given(PAUSES, st.integers(1, 20), st.sampled_from([1.0, 50.0]))
def test_a_pace_lets_a_burst_through_and_then_so_many_a_second(pauses: list[float], burst: int, per_s: float) -> None:
    """However they come: in whatever time, no more begin than the burst and what that time allows."""
    pace, now_s = ArrivalPace(burst, per_s), 1.0
    begun: list[float] = []
    for number, pause_s in enumerate(pauses):
        now_s += pause_s
        delay_s = pace.delay_s(now_s)
        assert number >= burst or delay_s == 0.0
        now_s += delay_s
        begun.append(now_s)
    for first in range(len(begun)):
        for last in range(first, len(begun)):
            assert last - first + 1 <= burst + (begun[last] - begun[first]) * per_s + 0.001


@given(PAUSES, st.integers(1, 20), st.sampled_from([1.0, 50.0]))
def test_what_is_not_admitted_does_not_count(pauses: list[float], burst: int, per_s: float) -> None:
    pace, now_s, admitted = ArrivalPace(burst, per_s), 1.0, 0
    for number, pause_s in enumerate(pauses):
        now_s += pause_s
        is_in = pace.admits(now_s)
        assert number >= burst or is_in
        admitted += is_in
    assert admitted <= burst + (now_s - 1.0 - pauses[0]) * per_s + 0.001
    assert pace.admits(now_s + 1 / per_s), "after one step there is room again"


def test_a_machine_that_causes_lines_without_end_gets_some_and_then_one_a_minute_that_counts_them() -> None:
    now_s, lines = 1.0, []
    paced = PacedLog(lambda: now_s)

    def line(event: str, **facts: Any) -> None:
        lines.append((event, facts))

    for number in range(BURST + 5):
        paced.write(line, "lap", "refused", number=number)
    assert lines == [("refused", {"machine": "lap", "number": number}) for number in range(BURST)]
    paced.write(line, "moon", "refused", number=0)
    assert lines[-1] == ("refused", {"machine": "moon", "number": 0})
    now_s += 1 / PER_S + 1
    for number in (7, 8):
        paced.write(line, "lap", "refused", number=number)
    assert lines[BURST + 1 :] == [("refused", {"machine": "lap", "number": 7, "left_out": 5})]
