"""Runs that wait for an attached agent to connect: expire those that have waited too long.

Knows queues and Trio's clock. The caller ends the expired runs.
Source: runs.md, "Run slots".
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from sessiond.runs.queue import RunQueues
from sessiond.runs.run import Run


class UnattendedRuns:
    """`attended(agent_id)`: whether the agent can run now. `expire(run, ttl_s)` is called for each expired run."""

    def __init__(
        self,
        queues: RunQueues,
        *,
        attended: Callable[[str], bool],
        ttl_s: Callable[[], float],
        expire: Callable[[Run, float], None],
    ) -> None:
        self._queues, self._attended, self._ttl_s, self._expire = queues, attended, ttl_s, expire
        self._watched: set[str] = set()

    def note_presence(self, agent_id: str) -> bool:
        """Note whether the agent is attended now. True: runs wait for it, and the caller has to start `watch`."""
        there, now = self._attended(agent_id), trio.current_time()
        waiting = self._queues.waiting_of(agent_id)
        for run in waiting:
            if there:
                run.unattended_since = None
            elif run.unattended_since is None:
                run.unattended_since = now
        if there or not waiting or agent_id in self._watched:
            return False
        self._watched.add(agent_id)
        return True

    async def watch(self, agent_id: str) -> None:
        """Expire the agent's runs in time; returns when none waits for the agent any more."""
        try:
            while (due := self._next_expiry(agent_id)) is not None:
                await trio.sleep_until(due)
                self._sweep(agent_id)
        finally:
            self._watched.discard(agent_id)

    def _next_expiry(self, agent_id: str) -> float | None:
        since = [run.unattended_since for run in self._queues.waiting_of(agent_id) if run.unattended_since is not None]
        return min(since) + self._ttl_s() if since else None

    def _sweep(self, agent_id: str) -> None:
        now, ttl_s = trio.current_time(), self._ttl_s()
        for run in self._queues.waiting_of(agent_id):
            if (
                run.unattended_since is not None
                and run.unattended_since + ttl_s <= now
                and self._queues.remove_waiting(run)
            ):
                self._expire(run, ttl_s)
