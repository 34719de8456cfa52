"""How fast new copies of one machine appear: at once as many as any has, then so many a second. No clock of its own.

The daemon takes longer to read a new file than the link takes to make it. A hundred thousand at once would keep it
for a minute from telling what others append.
"""

from __future__ import annotations

# Ten thousand sessions are to be there within five seconds. Later the daemon has half of a core for the rest.
BURST, PER_S = 20_000, 2_000


class CopyPace:
    """`wait_s` is asked after each message that made copies."""

    def __init__(self, burst: int = BURST, per_s: float = PER_S) -> None:
        self._burst, self._per_s = burst, per_s
        self._left: float = burst
        self._then_s: float | None = None

    def wait_s(self, count: int, now_s: float) -> float:
        """How long to wait after so many new copies."""
        passed_s = 0.0 if self._then_s is None else now_s - self._then_s
        self._then_s = now_s
        self._left = min(self._burst, self._left + passed_s * self._per_s) - count
        return max(0.0, -self._left / self._per_s)
