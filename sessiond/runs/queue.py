"""Which runs of a session go on and wait, in which order, and which may start next. Starts nothing; knows no runtime.

One run at a time in a session, in the order of acceptance; only so many in all (`places.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sessiond.model.keys import agent_of
from sessiond.runs.run import Run
from sessiond.runs.run_slots import RunSlots


class _Queue:
    __slots__ = ("current", "waiting")

    def __init__(self) -> None:
        self.current: Run | None = None
        self.waiting: deque[Run] = deque()


class RunQueues:
    """The runs of every session that has any. `places` bounds how many go on at once."""

    def __init__(self, places: RunSlots) -> None:
        self._places = places
        self._queues: dict[str, _Queue] = {}
        # Sessions with something waiting. One whose run starts goes to the end, so that none starves the others.
        self._ready: dict[str, None] = {}

    def current(self, key: str) -> Run | None:
        """The run that is going on in a session."""
        queue = self._queues.get(key)
        return queue.current if queue is not None else None

    def runs_of(self, key: str) -> list[Run]:
        """The runs of a session in their order: the one going on, then those that wait."""
        queue = self._queues.get(key)
        if queue is None:
            return []
        return [*([queue.current] if queue.current is not None else []), *queue.waiting]

    def waiting_of(self, agent_id: str) -> list[Run]:
        """All runs of an agent that wait."""
        return [run for key in self._ready if agent_of(key) == agent_id for run in self._queues[key].waiting]

    def waiting_agents(self) -> set[str]:
        """The agents that have runs waiting."""
        return {agent_of(key) for key in self._ready}

    def going_on(self) -> list[Run]:
        """Every run that goes on."""
        return [queue.current for queue in self._queues.values() if queue.current is not None]

    def count_waiting(self) -> int:
        """How many runs wait for their turn."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    def begin(self, run: Run) -> bool:
        """Let the run go on at once if nothing of its session is before it and there is a place; whether it may."""
        queue = self._queues.get(run.key)
        if (queue is not None and (queue.current is not None or queue.waiting)) or not self._places.free(run.key):
            return False
        self.set_current(run)
        self._occupy(run)
        return True

    def set_current(self, run: Run, *, reserved: bool = False) -> None:
        """The run is what goes on in its session, in a place that was reserved or in none."""
        self._queues.setdefault(run.key, _Queue()).current = run
        run.placed = reserved

    def reserve(self, key: str) -> bool:
        """Take a place for the run of a session that is being made; whether there is one."""
        if not self._places.free(key):
            return False
        self._places.take(key)
        return True

    def give_back(self, key: str) -> None:
        """The session was not made after all."""
        self._places.give(key)

    def push(self, run: Run) -> None:
        """The run waits: behind all others, or (`first`) behind those only that were to be first before it."""
        queue = self._queues.setdefault(run.key, _Queue())
        if run.request.first:
            place = next((index for index, other in enumerate(queue.waiting) if not other.request.first), None)
            queue.waiting.insert(len(queue.waiting) if place is None else place, run)
        else:
            queue.waiting.append(run)
        self._ready[run.key] = None

    def take(self, run: Run) -> bool:
        """Take the run out of those that wait; False where it does not wait."""
        queue = self._queues.get(run.key)
        if queue is None or run not in queue.waiting:
            return False
        queue.waiting.remove(run)
        self._tidy(run.key, queue)
        return True

    def next(self, attended: Callable[[str], bool]) -> Run | None:
        """A run whose turn it is and whose agent can be had; it goes on from now on. None where there is none."""
        for key in self._ready:
            queue = self._queues[key]
            if queue.current is None and self._places.free(key) and attended(agent_of(key)):
                run = queue.current = queue.waiting.popleft()
                del self._ready[key]
                if queue.waiting:
                    self._ready[key] = None
                self._occupy(run)
                return run
        return None

    def put_back(self, run: Run) -> None:
        """The run that goes on could not be lived: it waits again, before all others of its session."""
        queue = self._queues[run.key]
        self._vacate(run)
        queue.current = None
        queue.waiting.appendleft(run)
        self._ready[run.key] = None

    def remove(self, run: Run) -> None:
        """The run no longer goes on."""
        self._vacate(run)
        queue = self._queues.get(run.key)
        if queue is not None and queue.current is run:
            queue.current = None
            self._tidy(run.key, queue)

    def park(self, run: Run, waits_for: str) -> None:
        """The run waits for another one, and leaves its place to others meanwhile."""
        run.parked += 1
        run.waits_for[waits_for] = run.waits_for.get(waits_for, 0) + 1
        self._vacate(run)

    def unpark(self, run: Run, waits_for: str) -> None:
        """That wait is over. The run goes on, also where all places are taken by now."""
        run.parked -= 1
        run.waits_for[waits_for] -= 1
        if not run.waits_for[waits_for]:
            del run.waits_for[waits_for]
        if not run.parked and self.current(run.key) is run:
            self._occupy(run)

    def _occupy(self, run: Run) -> None:
        if not run.placed and not run.parked:
            run.placed = True
            self._places.take(run.key)

    def _vacate(self, run: Run) -> None:
        if run.placed:
            run.placed = False
            self._places.give(run.key)

    def _tidy(self, key: str, queue: _Queue) -> None:
        if not queue.waiting:
            self._ready.pop(key, None)
            if queue.current is None:
                del self._queues[key]
