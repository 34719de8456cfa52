"""How many questions one asker may have open, and how fast it may ask: nobody fills the list that a person reads.

An asker is an agent, or a session of another program. Knows names and times; knows no sessions.
"""

from __future__ import annotations

import math
from collections import deque

from sessiond.errors import Conflict, Overloaded
from sessiond.model.entry import MAX_OPEN_QUESTIONS

# An agent that works in many sessions at once has twice as many as one session.
MAX_OPEN_OF_ASKER = 2 * MAX_OPEN_QUESTIONS
# Faster than any person answers; whoever asks and withdraws in a loop would ring the owner's phone with each.
MAX_PER_MINUTE = 120
_WINDOW_S = 60.0
# With more askers than this, those that did not ask in the last minute are forgotten.
_MANY_ASKERS = 1024


class Crowding:
    """The times of the newest questions of each asker."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}

    def admit(self, asker: str, now_s: float, *, open_in_session: int, open_of_asker: int) -> None:
        """Let one more question in. Conflict where too many are open, Overloaded where they come too fast."""
        if open_in_session >= MAX_OPEN_QUESTIONS:
            raise _too_many("this session", MAX_OPEN_QUESTIONS)
        if open_of_asker >= MAX_OPEN_OF_ASKER:
            raise _too_many(asker, MAX_OPEN_OF_ASKER)
        times = self._times.setdefault(asker, deque())
        while times and times[0] <= now_s - _WINDOW_S:
            times.popleft()
        if len(times) >= MAX_PER_MINUTE:
            raise Overloaded(
                f"{asker} asked {MAX_PER_MINUTE} questions in the last minute, which is all that is allowed",
                code="rate_limited",
                value=MAX_PER_MINUTE,
                retryAfterMs=max(1, math.ceil((times[0] + _WINDOW_S - now_s) * 1000)),
            )
        times.append(now_s)
        if len(self._times) > _MANY_ASKERS:
            self._times = {one: asked for one, asked in self._times.items() if asked[-1] > now_s - _WINDOW_S}


def _too_many(whose: str, most: int) -> Conflict:
    return Conflict(
        f"{most} questions of {whose} are open already; they have to be answered or withdrawn first",
        code="too_many_questions",
        limit=most,
    )
