"""Which other machines are reached just now, and since when the others are not. Told by programs that are connected to
them, each for as long as it goes on. Knows names; opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from sessiond.errors import LimitExceeded

# More than anybody links; a program that reports others has a fault.
MAX_MACHINES = 1000


class _Report(NamedTuple):
    by: Hashable
    away_since: int | None


class MachinePresence:
    """The newest report of each machine. One that nobody reports is away, since `began_ms` at the latest."""

    def __init__(self, now_ms: Callable[[], int], began_ms: int) -> None:
        self._now_ms, self._began_ms = now_ms, began_ms
        self._reports: dict[str, _Report] = {}

    def away_since(self, machine: str) -> int | None:
        """Since when the machine is not reached, in milliseconds since 1970; None while it is."""
        known = self._reports.get(machine)
        return known.away_since if known is not None else self._began_ms

    def report(self, machine: str, by: Hashable, *, present: bool) -> bool:
        """The program `by` says whether it reaches a machine; whether that is news. LimitExceeded."""
        if machine not in self._reports and len(self._reports) >= MAX_MACHINES:
            raise LimitExceeded(
                f"At most {MAX_MACHINES} machines are reported to one daemon.", limit="machines", value=MAX_MACHINES
            )
        before = self.away_since(machine)
        since = None if present else before if before is not None else self._now_ms()
        self._reports[machine] = _Report(by, since)
        return since != before

    def forget(self, by: Hashable) -> list[str]:
        """The program `by` has gone: what it reached last is away from now on. The machines for which that is news."""
        lost = [name for name, one in self._reports.items() if one.by == by and one.away_since is None]
        for name in lost:
            self._reports[name] = _Report(by, self._now_ms())
        return lost
