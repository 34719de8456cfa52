"""Lines of the log that other machines cause, as often as they like: so many of each machine, and then one a minute.

A log that is a file has no limit of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sessiond.link.pacing import ArrivalPace

BURST = 100
PER_S = 1 / 60


class PacedLog:
    """`monotonic()` is the time in seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._paces: dict[str, ArrivalPace] = {}
        self._left_out: Counter[str] = Counter()

    def write(self, line: Callable[..., object], machine: str, event: str, **facts: object) -> None:
        """Call `line`, as `log.warning`, unless the machine has caused too many; then it is counted in its next one."""
        if not self._paces.setdefault(machine, ArrivalPace(BURST, PER_S)).admits(self._monotonic()):
            self._left_out[machine] += 1
            return
        left_out = self._left_out.pop(machine, 0)
        line(event, machine=machine, **facts, **({"left_out": left_out} if left_out else {}))
