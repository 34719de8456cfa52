from __future__ import annotations

import re
import time

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.cli.terminal.times import ago, ago_in_words, clock, duration, quantity, size

NOW = 1_790_000_000_000


@check_each(
    ("age_s", "shown"),
    [(-59, "now"), (4, "now"), (5, "5s"), (59, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h"), (86_399, "23h"),
     (86_400, "1d"), (86_400 * 60 - 1, "59d")],
)  # fmt: skip
def test_ages_use_the_largest_fitting_unit(age_s: int, shown: str) -> None:
    assert ago(NOW - age_s * 1000, NOW) == shown


def test_old_and_future_times_are_shown_as_dates() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", ago(NOW - 86_400_000 * 60, NOW))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", ago(NOW + 120_000, NOW))
    assert ago(None, NOW) == ""


def test_in_a_sentence_a_length_of_time_is_followed_by_ago() -> None:
    shown = {age_s: ago_in_words(NOW - age_s * 1000, NOW) for age_s in (4, 40, 300, 7200, 86_400)}
    assert shown == {4: "now", 40: "40s ago", 300: "5m ago", 7200: "2h ago", 86_400: "1d ago"}
    assert ago_in_words(NOW - 86_400_000 * 60, NOW) == ago(NOW - 86_400_000 * 60, NOW)
    assert ago_in_words(None, NOW) == ""


@given(st.integers(-(10**20), 10**20))
def test_any_number_in_a_record_can_be_shown_as_a_time(moment: int) -> None:
    assert clock(moment, NOW)
    assert ago(moment, NOW)


def test_a_time_of_today_is_shown_without_a_date() -> None:
    moment = int(time.mktime((2026, 9, 21, 12, 30, 5, 0, 0, -1))) * 1000
    assert clock(moment, moment + 1000) == "12:30:05"
    assert clock(moment, moment + 86_400_000) == "2026-09-21 12:30:05"
    assert clock(None, moment) == "--:--:--"


@check_each(
    ("length_ms", "shown"),
    [(0, "0.0s"), (1234, "1.2s"), (9_999, "10.0s"), (10_000, "10s"), (59_999, "59s"), (60_000, "1m 00s"),
     (3_599_000, "59m 59s"), (3_600_000, "1h 00m"), (86_400_000, "1d 00h"), (None, "")],
)  # fmt: skip
def test_durations_have_two_units(length_ms: int | None, shown: str) -> None:
    assert duration(length_ms) == shown


def test_quantities_and_sizes_are_abbreviated() -> None:
    assert [quantity(n) for n in (None, 0, 999, 1000, 12_345, 4_100_000, 2_000_000_000)] == [
        "", "0", "999", "1.0k", "12.3k", "4.1M", "2.0G",
    ]  # fmt: skip
    assert [size(n) for n in (0, 1023, 1024, 1_258_291, 3 << 30)] == ["0 B", "1023 B", "1.0 KiB", "1.2 MiB", "3.0 GiB"]
