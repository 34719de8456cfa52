"""How often something may be: so many times at once, and so many a second later on. Pure."""

from __future__ import annotations

import math


class ArrivalPace:
    """Of whatever time, no more go through than `burst` and what that time allows at `per_s`."""

    def __init__(self, burst: int, per_s: float) -> None:
        self._step_s = 1 / per_s
        self._ahead_s = (burst - 1) * self._step_s
        self._due_s = -math.inf

    def delay_s(self, now_s: float) -> float:
        """How long the one that comes now has to wait. It is counted."""
        due_s = max(self._due_s, now_s - self._ahead_s)
        self._due_s = due_s + self._step_s
        return max(0.0, due_s - now_s)

    def admits(self, now_s: float) -> bool:
        """Whether the one that comes now goes through. One that does not is not counted."""
        due_s = max(self._due_s, now_s - self._ahead_s)
        if due_s > now_s:
            return False
        self._due_s = due_s + self._step_s
        return True
