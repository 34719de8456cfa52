"""The rate limit of messages between two sessions. Source: runs.md, "Loop guard"."""

from __future__ import annotations

import math
from collections import deque

from sessiond.errors import Overloaded

WINDOW_S = 60.0
# With more pairs than this, those without a message in the last minute are dropped.
_MANY_PAIRS = 1024


class RateLimit:
    """A sliding window of a minute for each pair of sessions, in either direction."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], deque[float]] = {}

    def check(self, one: str, other: str, now_s: float, most: int) -> None:
        """Raise Overloaded, with `retryAfterMs`, if the pair exchanged `most` messages in the last minute."""
        times = self._recent(_pair(one, other), now_s)
        if len(times) >= most:
            wait_s = times[len(times) - most] + WINDOW_S - now_s
            raise Overloaded(
                f"{one} and {other} exchanged {most} messages in the last minute, which is all that is allowed",
                code="rate_limited",
                limit="limits.messagesPerMinute",
                value=most,
                retryAfterMs=max(1, math.ceil(wait_s * 1000)),
            )

    def count(self, one: str, other: str, now_s: float) -> None:
        """Count one message."""
        pair = _pair(one, other)
        times = self._recent(pair, now_s)
        times.append(now_s)
        self._times[pair] = times
        if len(self._times) > _MANY_PAIRS:
            self._times = {pair: times for pair, times in self._times.items() if times[-1] > now_s - WINDOW_S}

    def _recent(self, pair: tuple[str, str], now_s: float) -> deque[float]:
        times = self._times.get(pair, deque())
        while times and times[0] <= now_s - WINDOW_S:
            times.popleft()
        return times


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one <= other else (other, one)
