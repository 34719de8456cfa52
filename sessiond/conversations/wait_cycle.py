"""Detect cycles of runs that wait for each other, which could only end by a timeout."""

from __future__ import annotations

from sessiond.conversations.provenance import Sender
from sessiond.runs.run import Run
from sessiond.runs.supervisor import RunSupervisor
from sessiond.store.catalog import Session


def waits_on_sender(supervisor: RunSupervisor, source: Sender, target: Session) -> bool:
    """Whether a message to the session cannot be answered before the sender's own run has ended."""
    live = supervisor.current(target.key) if source.waiter is not None else None
    return live is not None and source.waiter is not None and waits_on(supervisor, live, source.waiter)


def waits_on(supervisor: RunSupervisor, run: Run, other: Run) -> bool:
    """Whether `run` cannot end before `other`: it is `other`, or waits for it, directly or through other runs.

    A queued run waits for all that are ahead of it in its session.
    """
    passed: set[str] = set()
    sessions: dict[str, _SessionRuns] = {}
    ahead = [run]
    while ahead:
        one = ahead.pop()
        if one is other:
            return True
        if one.run_id in passed:
            continue
        passed.add(one.run_id)
        awaited = (supervisor.registry.live.get(run_id) for run_id in one.waits_for)
        ahead += [found for found in awaited if found is not None]
        if one.key not in sessions:
            sessions[one.key] = _SessionRuns(supervisor.queues.runs_of(one.key))
        ahead += sessions[one.key].runs_ahead_of(one)
    return False


class _SessionRuns:
    """The runs of a session in order. Each is returned only once, because a thousand runs may be queued behind it."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs, self._returned = runs, 0
        self._positions = {run.run_id: place for place, run in enumerate(runs)}

    def runs_ahead_of(self, run: Run) -> list[Run]:
        """The runs that have to end before this one begins, without those returned before."""
        begin, end = self._returned, self._positions.get(run.run_id, 0)
        self._returned = max(begin, end)
        return self._runs[begin:end]
