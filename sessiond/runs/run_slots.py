"""How many runs go on at once. Counts; knows no runs. Source: runs.md, "Run slots"."""

from __future__ import annotations

from collections.abc import Callable

from sessiond.model.keys import is_subagent


class RunSlots:
    """Two counters, for sub-agents and for all others. `limits()` gives both sizes, as the configuration is now."""

    def __init__(self, limits: Callable[[], tuple[int, int]]) -> None:
        self._limits = limits
        self._taken = {False: 0, True: 0}

    def free(self, key: str) -> bool:
        """Whether a run of this session may start."""
        sub = is_subagent(key)
        return self._taken[sub] < self._limits()[sub]

    def take(self, key: str) -> None:
        """One place less. May go beyond the limit: a run that comes back from a wait is not stopped for it."""
        self._taken[is_subagent(key)] += 1

    def give(self, key: str) -> None:
        """One place more."""
        self._taken[is_subagent(key)] -= 1
