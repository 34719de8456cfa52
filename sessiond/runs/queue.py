"""The queues of runs: one run at a time in each session, in the order of acceptance, limited by run slots.

Decides which run may start next; starts nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count

from sessiond.model.keys import agent_of, is_subagent
from sessiond.runs.run import Run
from sessiond.runs.run_slots import RunSlots, Slot

# An agent, and whether it is about its sub-agents' sessions: of one kind all sessions can start a run, or none can.
_Kind = tuple[str, bool]


class _Queue:
    __slots__ = ("current", "waiting")

    def __init__(self) -> None:
        self.current: Run | None = None
        self.waiting: deque[Run] = deque()


class RunQueues:
    """The current and queued runs of every session. `slots` limits how many execute at once."""

    def __init__(self, slots: RunSlots) -> None:
        self._slots = slots
        self._queues: dict[str, _Queue] = {}
        # The sessions with queued runs by their kind, each with its number. A session whose run starts gets a new one,
        # so that none starves the others. Thousands may wait for one machine, for days: they cost others nothing.
        self._ready: dict[_Kind, dict[str, int]] = {}
        self._numbers = count()

    def current(self, key: str) -> Run | None:
        """The current run of a session."""
        queue = self._queues.get(key)
        return queue.current if queue is not None else None

    def runs_of(self, key: str) -> list[Run]:
        """The runs of a session in order: the current one, then the queued ones."""
        queue = self._queues.get(key)
        if queue is None:
            return []
        return [*([queue.current] if queue.current is not None else []), *queue.waiting]

    def waiting_of(self, agent_id: str) -> list[Run]:
        """All queued runs of an agent."""
        kinds = ((agent_id, False), (agent_id, True))
        return [run for kind in kinds for key in self._ready.get(kind, ()) for run in self._queues[key].waiting]

    def waiting_agents(self) -> set[str]:
        """The agents that have queued runs."""
        return {agent_id for agent_id, _ in self._ready}

    def current_runs(self) -> list[Run]:
        """The current runs of all sessions."""
        return [queue.current for queue in self._queues.values() if queue.current is not None]

    def count_waiting(self) -> int:
        """How many runs are queued."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    def begin(self, run: Run) -> bool:
        """Make the run current if its session has no other run and a slot is free; whether it did."""
        queue = self._queues.get(run.key)
        if (queue is not None and (queue.current is not None or queue.waiting)) or not self._slots.has_free(run.key):
            return False
        self.set_current(run)
        self._take_slot(run)
        return True

    def set_current(self, run: Run, slot: Slot | None = None) -> None:
        """Make the run current, in a slot that was reserved or without a slot."""
        self._queues.setdefault(run.key, _Queue()).current = run
        run.slot = slot

    def reserve(self, key: str) -> Slot | None:
        """A slot for the first run of a session that is being created; None if none is free."""
        return self._slots.take(key) if self._slots.has_free(key) else None

    def release_reserved(self, slot: Slot) -> None:
        """Free the slot that was reserved for a session that was not created."""
        self._slots.release(slot)

    def push(self, run: Run) -> None:
        """Queue the run: last, or with `request.first` ahead of all runs without it that have not begun."""
        queue = self._queues.setdefault(run.key, _Queue())
        if run.request.first:
            ahead = (index for index, other in enumerate(queue.waiting) if not (other.request.first or other.begun))
            queue.waiting.insert(next(ahead, len(queue.waiting)), run)
        else:
            queue.waiting.append(run)
        self._make_ready(run.key)

    def remove_waiting(self, run: Run) -> bool:
        """Remove the run from the queue; whether it was queued."""
        queue = self._queues.get(run.key)
        if queue is None or run not in queue.waiting:
            return False
        queue.waiting.remove(run)
        self._drop_if_empty(run.key, queue)
        return True

    def start_next(self, attended: Callable[[str], bool]) -> Run | None:
        """Dequeue a run whose session is idle, whose agent is there and that gets a slot; it becomes current."""
        first: tuple[int, str] | None = None
        for kind, keys in self._ready.items():
            if not (self._slots.has_free(next(iter(keys))) and attended(kind[0])):
                continue
            found = next(((number, key) for key, number in keys.items() if self._queues[key].current is None), None)
            if found is not None and (first is None or found < first):
                first = found
        if first is None:
            return None
        key = first[1]
        queue = self._queues[key]
        run = queue.current = queue.waiting.popleft()
        self._drop_ready(key)
        if queue.waiting:
            self._make_ready(key)
        self._take_slot(run)
        return run

    def put_back(self, run: Run) -> None:
        """Queue the current run again, ahead of all others of its session, because no agent was there."""
        queue = self._queues[run.key]
        self._release_slot(run)
        queue.current = None
        queue.waiting.appendleft(run)
        self._make_ready(run.key)

    def push_first(self, run: Run) -> None:
        """Queue a run that goes on ahead of all others of its session."""
        self._queues.setdefault(run.key, _Queue()).waiting.appendleft(run)
        self._make_ready(run.key)

    def remove(self, run: Run) -> None:
        """Remove a run that has ended, and free its slot."""
        self._release_slot(run)
        queue = self._queues.get(run.key)
        if queue is not None and queue.current is run:
            queue.current = None
            self._drop_if_empty(run.key, queue)

    def park(self, run: Run, waits_for: str) -> None:
        """Free the slot of a run while it waits for the run with the id `waits_for`."""
        run.parked += 1
        run.waits_for[waits_for] = run.waits_for.get(waits_for, 0) + 1
        self._release_slot(run)

    def unpark(self, run: Run, waits_for: str) -> None:
        """End such a wait. The run takes a slot again, even if that exceeds the limit."""
        run.parked -= 1
        run.waits_for[waits_for] -= 1
        if not run.waits_for[waits_for]:
            del run.waits_for[waits_for]
        if not run.parked and self.current(run.key) is run:
            self._take_slot(run)

    def _take_slot(self, run: Run) -> None:
        if run.slot is None and not run.parked:
            run.slot = self._slots.take(run.key)

    def _release_slot(self, run: Run) -> None:
        if run.slot is not None:
            self._slots.release(run.slot)
            run.slot = None

    def _make_ready(self, key: str) -> None:
        """Note that the session has a queued run; one that had keeps its place."""
        keys = self._ready.setdefault(_kind_of(key), {})
        if key not in keys:
            keys[key] = next(self._numbers)

    def _drop_ready(self, key: str) -> None:
        kind = _kind_of(key)
        keys = self._ready.get(kind, {})
        keys.pop(key, None)
        if not keys:
            self._ready.pop(kind, None)

    def _drop_if_empty(self, key: str, queue: _Queue) -> None:
        if not queue.waiting:
            self._drop_ready(key)
            if queue.current is None:
                del self._queues[key]


def _kind_of(key: str) -> _Kind:
    return agent_of(key), is_subagent(key)
