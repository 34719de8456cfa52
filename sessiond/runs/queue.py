"""The queues of runs: one run at a time in each session, in the order of acceptance, limited by run slots.

Decides which run may start next; starts nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sessiond.model.keys import agent_of, is_subagent
from sessiond.runs.run import Run
from sessiond.runs.run_slots import RunSlots, Slot


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
        # The sessions with queued runs. A session whose run starts goes to the end, so that none starves the others.
        self._ready: dict[str, None] = {}

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
        return [run for key in self._ready if agent_of(key) == agent_id for run in self._queues[key].waiting]

    def waiting_agents(self) -> set[str]:
        """The agents that have queued runs."""
        return {agent_of(key) for key in self._ready}

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
        self._ready[run.key] = None

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
        # Thousands of sessions may wait, for a slot of one kind and for one agent.
        can_start: dict[tuple[str, bool], bool] = {}
        for key in self._ready:
            queue = self._queues[key]
            if queue.current is not None:
                continue
            kind = agent_of(key), is_subagent(key)
            if kind not in can_start:
                can_start[kind] = self._slots.has_free(key) and attended(kind[0])
            if can_start[kind]:
                run = queue.current = queue.waiting.popleft()
                del self._ready[key]
                if queue.waiting:
                    self._ready[key] = None
                self._take_slot(run)
                return run
        return None

    def put_back(self, run: Run) -> None:
        """Queue the current run again, ahead of all others of its session, because no agent was there."""
        queue = self._queues[run.key]
        self._release_slot(run)
        queue.current = None
        queue.waiting.appendleft(run)
        self._ready[run.key] = None

    def push_first(self, run: Run) -> None:
        """Queue a run that goes on ahead of all others of its session."""
        self._queues.setdefault(run.key, _Queue()).waiting.appendleft(run)
        self._ready[run.key] = None

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

    def _drop_if_empty(self, key: str, queue: _Queue) -> None:
        if not queue.waiting:
            self._ready.pop(key, None)
            if queue.current is None:
                del self._queues[key]
