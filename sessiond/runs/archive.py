"""What becomes of a child afterwards: its attachments go, and with `cleanup: "delete"` its session goes to the archive.

Counted from the end of its run, never while one is going on. Sleeps until something is due. Knows children and their
attachments; the announcement is somebody else's. Source: runs.md, "Afterwards".
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from pathlib import Path

import structlog
import trio

from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock
from sessiond.config import Config
from sessiond.errors import SessiondError
from sessiond.events.feed import TranscriptFeed
from sessiond.model.keys import agent_of, rest_of
from sessiond.model.record import ENTRY
from sessiond.runs.supervisor import RunSupervisor
from sessiond.sessions import lifecycle
from sessiond.sessions.lifecycle import Births
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, SessionStore

log = structlog.get_logger("sessiond.archive")

# What could not be removed or archived is tried again after this long.
_AGAIN_MS = 10 * 60 * 1000


class ArchiveSweep:
    """`run` belongs to the background nursery. `workspace(agent_id)` is where an agent works."""

    def __init__(
        self,
        store: SessionStore,
        feed: TranscriptFeed,
        births: Births,
        supervisor: RunSupervisor,
        attachments: AttachmentService,
        *,
        config: Callable[[], Config],
        clock: Clock,
        workspace: Callable[[str], Path],
    ) -> None:
        self._store, self._feed, self._births, self._supervisor = store, feed, births, supervisor
        self._attachments, self._config, self._clock, self._workspace = attachments, config, clock, workspace
        self._due: list[tuple[int, str]] = []
        self._changed = trio.Event()

    def ended(self, child: Session) -> None:
        """A run of the child has ended; whatever is still to be announced has its time until this is due."""
        minutes = self._config().agents.defaults.subagents.archive_after_minutes
        if is_to_be_deleted(child) and minutes:
            self._at(child.key, (child.entry.ended_at or self._clock.wall_ms()) + int(minutes * 60_000))

    async def announced(self, child: Session) -> None:
        """The child's outcome was announced, or was to be silent: nothing more is wanted of it."""
        facts = child.entry.spawn or {}
        if facts.get("mode") == "session" or child.entry.runs:
            return
        await self._attempt(child)

    async def run(self) -> None:
        """Do what is due, when it is due, until cancelled."""
        for session in list(self._store.catalog.by_key.values()):
            self._take_up(session)
        while True:
            while self._due and self._due[0][0] <= self._clock.wall_ms():
                _, key = heapq.heappop(self._due)
                child = self._store.catalog.by_key.get(key)
                # One that is at work again is looked at when that has ended.
                if child is not None and not child.entry.runs:
                    await self._attempt(child)
            wait_s = (self._due[0][0] - self._clock.wall_ms()) / 1000 if self._due else float("inf")
            with trio.move_on_after(max(0.0, wait_s)):
                await self._changed.wait()
            self._changed = trio.Event()

    def _take_up(self, session: Session) -> None:
        """After a restart: what the daemon before had still to do."""
        if session.entry.spawn is None or session.entry.runs or session.entry.ended_at is None:
            return
        self.ended(session)
        if self._has_attachments(session) and not is_to_be_deleted(session):
            self._at(session.key, self._clock.wall_ms())

    def _at(self, key: str, due_ms: int) -> None:
        heapq.heappush(self._due, (due_ms, key))
        self._changed.set()

    async def _attempt(self, child: Session) -> None:
        try:
            await self._remove_attachments(child)
            if is_to_be_deleted(child):
                await lifecycle.delete(self._births, self._feed, child, self._supervisor.stop)
        except SessiondError as error:
            log.warning("child not put away", session_key=child.key, reason=error.message)
            self._at(child.key, self._clock.wall_ms() + _AGAIN_MS)

    def _has_attachments(self, child: Session) -> bool:
        facts = child.entry.spawn or {}
        kept = self._config().tools.sessions_spawn.attachments.retain_on_session_keep
        if facts.get("attachments") is None or facts.get("attachmentsRemoved"):
            return False
        return is_to_be_deleted(child) or (not kept and facts.get("mode") != "session")

    async def _remove_attachments(self, child: Session) -> None:
        """The path is made of the child's id, never of anything that stands in a file."""
        if not self._has_attachments(child):
            return
        child_id = rest_of(child.key).rpartition(":")[2]
        report = await self._attachments.remove(self._workspace(agent_of(child.key)), child_id)
        if report.left:
            left = [f"{path}: {reason}" for path, reason in report.left[:5]]
            log.warning("attachments left", session_key=child.key, count=len(report.left), left=left)
            self._at(child.key, self._clock.wall_ms() + _AGAIN_MS)
            return
        await self._store.append(
            child, [Custom(ENTRY, {"spawn": {**(child.entry.spawn or {}), "attachmentsRemoved": True}})]
        )


def is_to_be_deleted(child: Session) -> bool:
    """Whether the child was spawned with `cleanup: "delete"`, to live one run."""
    facts = child.entry.spawn or {}
    return facts.get("cleanup") == "delete" and facts.get("mode") == "run"
