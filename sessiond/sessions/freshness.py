"""When a conversation is over by itself: after some idle time, or at an hour of the day. A pure decision.

Source: runs.md, "Session freshness".
"""

from __future__ import annotations

import time

from sessiond.config.settings import ResetConfig
from sessiond.model.entry import Entry

_HOUR_S = 3600


def is_stale(entry: Entry, settings: ResetConfig, now_ms: int) -> bool:
    """Whether the next message to the session begins a new conversation.

    Never while there is nothing to put away, and never while a run or a conversation goes on or waits: what was
    accepted is answered.
    """
    if not entry.message_count or entry.runs or entry.talks:
        return False
    if settings.mode == "daily":
        return entry.updated_at < last_hour_ms(settings.at_hour, now_ms)
    return settings.idle_minutes > 0 and now_ms > entry.updated_at + settings.idle_minutes * 60_000


def last_hour_ms(hour: int, now_ms: int) -> int:
    """When the clock on the wall (local time) showed `hour` o'clock last.

    Where the clocks go forward over that hour, the moment after the gap counts.
    """
    now_s = now_ms / 1000
    today = time.localtime(now_s)
    for days in (0, 1):
        # mktime takes the day before the first of a month, and finds out itself whether it is summer.
        moment = time.mktime((today.tm_year, today.tm_mon, today.tm_mday - days, hour, 0, 0, 0, 0, -1))
        if moment <= now_s:
            return int(moment * 1000)
    return int((now_s - 24 * _HOUR_S) * 1000)
