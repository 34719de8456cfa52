"""Cleanup after a child's run: remove its attachments, and with `cleanup: "delete"` archive its session.

Happens after the announcement, or `archiveAfterMinutes` after the end of the run; never during a run. Sleeps until
something is due. Source: runs.md, "Afterwards".
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
import trio

from sessiond.attachments.remove import RemovalReport
from sessiond.attachments.service import AttachmentService
from sessiond.clock import Clock
from sessiond.config.settings import Config
from sessiond.errors import Conflict, SessiondError
from sessiond.events.feed import TranscriptFeed
from sessiond.model.entry import Spawn
from sessiond.model.keys import agent_of, rest_of
from sessiond.model.record import ENTRY
from sessiond.runs.spawn_journal import SpawnJournal
from sessiond.runs.supervisor import RunSupervisor
from sessiond.sessions import lifecycle
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, SessionStore

log = structlog.get_logger("sessiond.archive")

# When to try again if something could not be removed or archived.
AGAIN_MS = 10 * 60 * 1000


class ArchiveSweep:
    """Run `run` in the background nursery. `workspace(agent_id)` is the folder in which an agent works.

    `has_open_conversation(key)`: whether the session takes part in an open conversation.
    """

    def __init__(
        self,
        store: SessionStore,
        feed: TranscriptFeed,
        session_changes: SessionChanges,
        supervisor: RunSupervisor,
        attachments: AttachmentService,
        *,
        journal: SpawnJournal,
        config: Callable[[], Config],
        clock: Clock,
        workspace: Callable[[str], Path],
        has_open_conversation: Callable[[str], bool],
    ) -> None:
        self._store, self._feed, self._session_changes, self._supervisor = store, feed, session_changes, supervisor
        self._journal, self._has_open_conversation = journal, has_open_conversation
        self._attachments, self._config, self._clock, self._workspace = attachments, config, clock, workspace
        # A heap of `(when, session id)`. Session ids, because a child that was deleted may have left attachments
        # behind.
        self._due: list[tuple[int, str]] = []
        self._changed = trio.Event()

    async def conversation_over(self, child: Session) -> None:
        """A conversation of the child has closed: do the cleanup that waited for it."""
        if child.entry.spawn is not None and not child.entry.runs:
            self.run_ended(child)
            if child.entry.spawn.announced is not None:
                await self.child_announced(child)

    def put_away(self, session: Session) -> None:
        """The session was archived: schedule the removal of the files that came with its messages."""
        if self._journal.message_files(session.session_id):
            self._schedule(session, self._clock.wall_ms())

    def run_ended(self, child: Session) -> None:
        """A run of the child has ended: schedule its cleanup in `archiveAfterMinutes`, announced or not."""
        minutes = self._config().agents.defaults.subagents.archive_after_minutes
        if is_to_be_deleted(child) and minutes and not child.archived:
            self._schedule(child, (child.entry.ended_at or self._clock.wall_ms()) + int(minutes * 60_000))

    async def child_announced(self, child: Session) -> None:
        """The announcement of the child is done: clean up, unless it is at work or waits for children of its own.

        In that case this is called again when they are done.
        """
        if (child.entry.spawn or Spawn()).mode != "session" and not self._is_wanted(child):
            await self._attempt(child)

    async def run(self) -> None:
        """Clean up each session when it is due; until cancelled."""
        for session in self._store.catalog.spawned_sessions():
            self._schedule_leftover(session)
        for _, session_id in self._journal.message_files():
            put_away = self._store.catalog.by_id.get(session_id)
            if put_away is not None and put_away.archived:
                self._schedule(put_away, self._clock.wall_ms())
        while True:
            while self._due and self._due[0][0] <= self._clock.wall_ms():
                _, session_id = heapq.heappop(self._due)
                child = self._store.catalog.by_id.get(session_id)
                # If it is at work again, the end of that run schedules it again.
                if child is not None and (child.archived or not self._runs(child)):
                    await self._attempt(child)
            wait_s = (self._due[0][0] - self._clock.wall_ms()) / 1000 if self._due else float("inf")
            with trio.move_on_after(max(0.0, wait_s)):
                await self._changed.wait()
            self._changed = trio.Event()

    def _schedule_leftover(self, session: Session) -> None:
        """Schedule the cleanup of a child that an earlier process did not finish."""
        spawn = session.entry.spawn
        if spawn is None or session.entry.runs or session.entry.ended_at is None:
            return
        if session.archived and session.key in self._store.catalog.by_key:
            return  # it was reset; the session that replaced it has the same `spawn` data
        self.run_ended(session)
        left = self._has_attachments(session) or (is_to_be_deleted(session) and not session.archived)
        if left and (session.archived or spawn.announced is not None):
            self._schedule(session, self._clock.wall_ms())

    def _schedule(self, child: Session, due_ms: int) -> None:
        heapq.heappush(self._due, (due_ms, child.session_id))
        self._changed.set()

    def _runs(self, child: Session) -> bool:
        return bool(child.entry.runs) or self._is_at_work(child.key)

    def _is_at_work(self, key: str) -> bool:
        return bool(self._supervisor.registry.of_session(key)) or self._has_open_conversation(key)

    def _is_wanted(self, child: Session) -> bool:
        """Whether the child is at work or still awaits the announcement of a child of its own."""
        catalog = self._store.catalog
        own = (catalog.by_key[key].entry.spawn for key in catalog.children_of(child.key))
        return self._runs(child) or any(spawn is not None and spawn.announced is None for spawn in own)

    async def _attempt(self, child: Session) -> None:
        try:
            if child.archived:
                await self._remove_message_files(child)
                if child.key in self._store.catalog.by_key:
                    return  # it was reset; the session that replaced it has the same `spawn` data
            await self._remove_attachments(child)
            if is_to_be_deleted(child) and self._store.catalog.by_key.get(child.key) is child:
                await lifecycle.delete(self._session_changes, self._feed, child, self._stop_nothing)
                log.info("child archived", session_key=child.key)
        except _AtWork:
            pass
        except SessiondError as error:
            log.warning("child not cleaned up", session_key=child.key, reason=error.message)
            self._schedule(child, self._clock.wall_ms() + AGAIN_MS)

    async def _stop_nothing(self, child: Session) -> None:
        """The `stop` callback of `lifecycle.delete`: refuse to delete a session that has just been given work."""
        if self._is_at_work(child.key):
            raise _AtWork("the session is at work")

    def _has_attachments(self, child: Session) -> bool:
        spawn = child.entry.spawn or Spawn()
        if spawn.attachments is None or spawn.attachments_removed:
            return False
        kept = spawn.mode == "session" or self._config().tools.sessions_spawn.attachments.retain_on_session_keep
        return is_to_be_deleted(child) or child.archived or not kept

    async def _remove_attachments(self, child: Session) -> None:
        """Remove the files that the child was spawned with. Their id is the child's id, never one read from a file."""
        if not self._has_attachments(child):
            return
        child_id = rest_of(child.key).rpartition(":")[2]
        agent_id = agent_of(child.key)
        # The note in the journal tells, after a crash, that missing files were removed here and not by somebody else.
        begun_before = self._journal.has(child_id)
        self._journal.begin(agent_id, child_id, sync=False)
        report = await self._attachments.remove(self._workspace(agent_id), child_id)
        if report.left:
            self._log_left(child, report)
            return
        facts: dict[str, Any] = {"attachmentsRemoved": True}
        if report.missing and not begun_before:
            log.warning("attachments are gone from where they were put", session_key=child.key, attachments_id=child_id)
            facts["attachmentsMissing"] = True
        await self._store.append(child, [Custom(ENTRY, {"spawn": facts})])
        self._journal.complete(child_id)

    async def _remove_message_files(self, session: Session) -> None:
        """Remove the files that came with messages of an archived session."""
        for attachments_id, session_id in self._journal.message_files(session.session_id):
            begun_before = self._journal.begin_removal(attachments_id, session_id)
            report = await self._attachments.remove(self._workspace(agent_of(session.key)), attachments_id)
            if report.left:
                self._log_left(session, report)
                continue
            if report.missing and not begun_before:
                log.warning(
                    "attachments are gone from where they were put",
                    session_key=session.key,
                    attachments_id=attachments_id,
                )
            self._journal.forget(attachments_id, session_id)

    def _log_left(self, session: Session, report: RemovalReport) -> None:
        left = [f"{path}: {reason}" for path, reason in report.left[:5]]
        log.warning("attachments left", session_key=session.key, count=report.left_count, left=left)
        self._schedule(session, self._clock.wall_ms() + AGAIN_MS)


class _AtWork(Conflict):
    """The child has just been given work and must not be archived now; the end of that run schedules it again."""


def is_to_be_deleted(child: Session) -> bool:
    """Whether the child was spawned with `mode: "run"` and `cleanup: "delete"`."""
    spawn = child.entry.spawn or Spawn()
    return spawn.cleanup == "delete" and spawn.mode == "run"
