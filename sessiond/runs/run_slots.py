"""Limit how many runs execute at once. Only counts. Source: runs.md, "Run slots", "Machines"."""

from __future__ import annotations

from collections.abc import Callable

from sessiond.model.keys import agent_of, is_subagent

# What a slot is counted as: `light`, `subagent`, `other`, or `machine <id>` for the runs of another machine.
Slot = str
# More light runs than this at once only make each other wait: for the event loop, and for the disk.
_MOST_LIGHT = 64
# Runs of one machine that its link was asked for. They wait there, perhaps for days, and cost nothing here but a task
# and the request; what comes beyond waits here.
MOST_AWAY = 1024
_MACHINE = "machine "


class RunSlots:
    """Counts the slots that are taken. `limits()` gives `(others, sub-agents)`. `is_light(agent_id)`: the agent's runs
    start nothing and are over at once, so the configured limits are not meant for them; nor for those of
    `is_resumable(agent_id)`, which another machine executes.
    """

    def __init__(
        self,
        limits: Callable[[], tuple[int, int]],
        is_light: Callable[[str], bool],
        is_resumable: Callable[[str], bool],
    ) -> None:
        self._limits, self._is_light, self._is_resumable = limits, is_light, is_resumable
        self.taken: dict[Slot, int] = {"light": 0, "subagent": 0, "other": 0}

    def has_free(self, key: str) -> bool:
        """Whether a slot is free for a run of this session."""
        slot = self._slot_for(key)
        others, subagents = self._limits()
        most = {"light": _MOST_LIGHT, "subagent": subagents, "other": others}.get(slot, MOST_AWAY)
        return self.taken.get(slot, 0) < most

    def take(self, key: str) -> Slot:
        """Take a slot, to be given to `release`. May exceed the limit, for a run that continues after a wait."""
        slot = self._slot_for(key)
        self.taken[slot] = self.taken.get(slot, 0) + 1
        return slot

    def release(self, slot: Slot) -> None:
        """Free a slot."""
        self.taken[slot] -= 1
        if slot.startswith(_MACHINE) and not self.taken[slot]:
            del self.taken[slot]

    def _slot_for(self, key: str) -> Slot:
        agent_id = agent_of(key)
        if self._is_resumable(agent_id):
            return _MACHINE + agent_id
        if self._is_light(agent_id):
            return "light"
        return "subagent" if is_subagent(key) else "other"
