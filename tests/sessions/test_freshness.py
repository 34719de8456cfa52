from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from support.rows import check_each

from sessiond.config.settings import ResetConfig
from sessiond.model.entry import Entry, LiveRun
from sessiond.sessions.freshness import is_stale, last_hour_ms

MINUTE = 60_000
T = 1_795_300_000_000


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest) -> Iterator[ZoneInfo]:
    """The local time zone of the process."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield ZoneInfo(request.param)
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def _entry(updated_at: int, *, messages: int = 1, runs: tuple[LiveRun, ...] = ()) -> Entry:
    return Entry(session_id="s", updated_at=updated_at, message_count=messages, runs=runs)


def test_an_idle_session_is_stale_after_its_idle_minutes() -> None:
    settings = ResetConfig(mode="idle", idle_minutes=30)
    assert not is_stale(_entry(T), settings, T + 30 * MINUTE)
    assert is_stale(_entry(T), settings, T + 30 * MINUTE + 1)
    assert is_stale(_entry(T), ResetConfig(mode="idle", idle_minutes=0.5), T + 30_001)


def test_zero_idle_minutes_mean_never_and_are_the_default() -> None:
    assert not is_stale(_entry(1), ResetConfig(), T)


def test_a_session_without_messages_or_with_a_run_is_never_stale() -> None:
    settings = ResetConfig(mode="idle", idle_minutes=1)
    assert not is_stale(_entry(1, messages=0), settings, T)
    assert not is_stale(_entry(1, runs=(LiveRun(run_id="r", offset=0),)), settings, T)
    assert is_stale(_entry(1), settings, T)


@check_each("hour", [0, 4, 23])
def test_a_daily_reset_is_due_at_its_hour_of_local_time(zone: ZoneInfo, hour: int) -> None:
    settings = ResetConfig(mode="daily", at_hour=hour)
    turn = int(datetime(2026, 7, 1, hour, tzinfo=zone).timestamp() * 1000)
    day = 24 * 60 * MINUTE
    assert is_stale(_entry(turn - 1), settings, turn)
    assert not is_stale(_entry(turn), settings, turn)
    assert not is_stale(_entry(turn - day), settings, turn - 1)
    assert is_stale(_entry(turn - day - 1), settings, turn - 1)


def test_the_last_occurrence_of_an_hour_is_less_than_a_day_ago_in_every_time_zone(zone: ZoneInfo) -> None:
    for day in range(0, 366, 3):
        now = T + day * 24 * 60 * MINUTE
        for hour in range(24):
            found = last_hour_ms(hour, now)
            # The day on which clocks are set back has 25 hours.
            assert 0 <= now - found <= 25 * 60 * MINUTE
            shown = datetime.fromtimestamp(found / 1000, zone)
            assert shown.hour in (hour, hour + 1)  # the next hour, where the change of the clocks skipped it
            assert (shown.minute, shown.second) == (0, 0)
