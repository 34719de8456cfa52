"""Limit how many runs execute at once. Only counts. Source: runs.md, "Run slots"."""

from __future__ import annotations

from collections.abc import Callable

from sessiond.model.keys import is_subagent


class RunSlots:
    """Two counters of slots: for sub-agents, and for all others. `limits()` gives `(others, sub-agents)`."""

    def __init__(self, limits: Callable[[], tuple[int, int]]) -> None:
        self._limits = limits
        self._taken = {False: 0, True: 0}

    def has_free(self, key: str) -> bool:
        """Whether a slot is free for a run of this session."""
        sub = is_subagent(key)
        return self._taken[sub] < self._limits()[sub]

    def take(self, key: str) -> None:
        """Take a slot. May exceed the limit, for a run that continues after a wait."""
        self._taken[is_subagent(key)] += 1

    def release(self, key: str) -> None:
        """Free a slot."""
        self._taken[is_subagent(key)] -= 1
