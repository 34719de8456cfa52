"""Decide whether a session is stale and has to be reset: after some idle time, or at an hour of the day. Pure.

Source: runs.md, "Session freshness".
"""

from __future__ import annotations

import time

from sessiond.config.settings import ResetConfig
from sessiond.model.entry import Entry

_HOUR_S = 3600


def is_stale(entry: Entry, settings: ResetConfig, now_ms: int) -> bool:
    """Whether the session has to be reset before its next message.

    Never if it has no messages, or while it has a run or an open conversation, queued ones included.
    """
    if not entry.message_count or entry.runs or entry.talks:
        return False
    if settings.mode == "daily":
        return entry.updated_at < last_hour_ms(settings.at_hour, now_ms)
    return settings.idle_minutes > 0 and now_ms > entry.updated_at + settings.idle_minutes * 60_000


def last_hour_ms(hour: int, now_ms: int) -> int:
    """The latest time before `now_ms` at which local time was `hour` o'clock, in milliseconds since 1970.

    On a day on which the clocks skip that hour, the end of the gap.
    """
    now_s = now_ms / 1000
    today = time.localtime(now_s)
    for days in (0, 1):
        # mktime accepts day 0 of a month, and -1 lets it find out whether daylight saving time applies.
        moment = time.mktime((today.tm_year, today.tm_mon, today.tm_mday - days, hour, 0, 0, 0, 0, -1))
        if moment <= now_s:
            return int(moment * 1000)
    return int((now_s - 24 * _HOUR_S) * 1000)
