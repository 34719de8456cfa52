"""Limit how many runs execute at once. Only counts. Source: runs.md, "Run slots"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from sessiond.model.keys import agent_of, is_subagent

# What a slot is counted as: a light run, that of a sub-agent, or any other.
Slot = Literal["light", "subagent", "other"]
# More light runs than this at once only make each other wait: for the event loop, and for the disk.
_MOST_LIGHT = 64


class RunSlots:
    """Counts the slots that are taken. `limits()` gives `(others, sub-agents)`. `is_light(agent_id)`: the agent's runs
    start nothing and are over at once, so the configured limits are not meant for them.
    """

    def __init__(self, limits: Callable[[], tuple[int, int]], is_light: Callable[[str], bool]) -> None:
        self._limits, self._is_light = limits, is_light
        self.taken: dict[Slot, int] = {"light": 0, "subagent": 0, "other": 0}

    def has_free(self, key: str) -> bool:
        """Whether a slot is free for a run of this session."""
        slot = self._slot_for(key)
        others, subagents = self._limits()
        return self.taken[slot] < {"light": _MOST_LIGHT, "subagent": subagents, "other": others}[slot]

    def take(self, key: str) -> Slot:
        """Take a slot, to be given to `release`. May exceed the limit, for a run that continues after a wait."""
        slot = self._slot_for(key)
        self.taken[slot] += 1
        return slot

    def release(self, slot: Slot) -> None:
        """Free a slot."""
        self.taken[slot] -= 1

    def _slot_for(self, key: str) -> Slot:
        if self._is_light(agent_of(key)):
            return "light"
        return "subagent" if is_subagent(key) else "other"
