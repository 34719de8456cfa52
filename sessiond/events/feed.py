"""From a transcript to events: file -> tail -> fold -> entry -> event, for appends of the daemon and of other programs.

The committer pokes the feed after each commit; `folders` tells it what other programs changed. Knows the store and the
bus. Does not know folders, subscribers' connections, runs or methods.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import structlog
import trio
from msgspec.structs import replace

from sessiond.events.bus import EventBus
from sessiond.events.delayed_retry import DelayedRetry
from sessiond.events.folders import Folders
from sessiond.events.publisher import Publisher
from sessiond.events.step_sizes import MAX_STEP_BYTES, StepSizes
from sessiond.events.subscription import FollowPlace
from sessiond.events.watch import Watcher
from sessiond.model.entry import Entry
from sessiond.store import folding, scan
from sessiond.store.adoption import claim_to_restore, is_own_key, keep_origin
from sessiond.store.catalog import Folder, Session
from sessiond.store.folded_steps import FoldedLine
from sessiond.store.folding import Advance
from sessiond.store.store import SessionStore
from sessiond.store.transcript import WrittenBytes

log = structlog.get_logger("sessiond.feed")


class TranscriptFeed:
    """Keeps entries up to date with their files and publishes what is new, each record once. The store's listener.

    `changed` is set whenever an entry changed; its waiter replaces it by a new event. `on_lost(session)` is called when
    another program removed a session, `on_found(session)` when one created it, brought it back, or put another
    transcript under its name, and `on_questions(session)` when one with open questions changed.
    """

    def __init__(
        self,
        store: SessionStore,
        bus: EventBus,
        *,
        on_lost: Callable[[Session], None],
        on_found: Callable[[Session], None],
        on_questions: Callable[[Session], None] = lambda _session: None,
    ) -> None:
        self._store, self._bus = store, bus
        self._on_lost, self._on_found, self._on_questions = on_lost, on_found, on_questions
        self._publisher, self._steps = Publisher(store, bus), StepSizes(store, bus)
        self.publish = self._publisher.publish_change
        self._folders = Folders(store, self)
        self.watch_early = self._folders.watch_early
        # Sessions with more to read than one step takes, and those whose rewritten file has no session key.
        self._backlog: dict[Session, None] = {}
        self._without_key: dict[Session, None] = {}
        # Those whose file the watcher has reported while they were written to, and when.
        self._changed_in_flight: dict[Session, float] = {}
        # Sessions whose file could not be opened for a temporary error.
        self._retries = DelayedRetry[Session](self._retry)
        self._work = trio.Event()
        self.changed = trio.Event()

    @property
    def backend(self) -> str:
        """The watcher's backend, for daemon.status."""
        return self._folders.backend

    async def run(self, watcher: Watcher) -> None:
        """Follow the watcher until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_backlog)
            nursery.start_soon(self._retries.run)
            nursery.start_soon(self._folders.retries.run)
            await self._folders.follow(watcher)

    def poke(self, session: Session) -> bool:
        """Read one step of what is new in the file. Called on the event loop after a commit of the daemon.

        Whether records that the daemon wrote are still to be published: an append returns when they are. Records of
        other programs behind them are read later.
        """
        activity = session.activity
        written, activity.written = activity.written, None
        if not self._store.catalog.has(session):
            self._store.committer.files.forget(session)  # removed while it was written
        reported_at = self._changed_in_flight.pop(session, -math.inf)
        if (
            written is not None
            and self._fold_written(session, written)
            # What was reported before the commit looked at the file was seen by it.
            and (reported_at < written.seen_at or self._is_up_to_date(session))
        ):
            more = False
        else:
            more = self._read_step(session) and session.entry.file.folded_to < activity.written_end
        if session.archived:
            # Followers that still replay it read on, and at its end switch to the key's next session.
            self._bus.wake(session.key)
        return more

    async def read_on(self, session: Session) -> None:
        """Read one step of what other programs wrote into the file."""
        if not session.in_flight:
            await self._parse_ahead(session)
        if session.in_flight:
            self.changed_in_flight(session)
        else:
            self.poke(session)

    def changed_in_flight(self, session: Session) -> None:
        """The session's file changed while the daemon appends to it: its commit reads on."""
        self._changed_in_flight[session] = time.monotonic()

    def _fold_written(self, session: Session, written: WrittenBytes) -> bool:
        """Fold what a commit wrote, and publish it. False where the file has to be read."""
        if session in self._without_key or written.end - written.offset > self._steps.step_bytes(session):
            return False
        try:
            got = folding.advance_written(session.entry, written, self._store.record_limit, dialect=session.dialect)
        except MemoryError:
            return False
        if got is None:
            return False
        self._apply_advance(session, got)
        return True

    def _is_up_to_date(self, session: Session) -> bool:
        """Whether nothing happened to the file since it was folded."""
        try:
            status = session.folder.status_of(session.file_name)
        except (OSError, MemoryError):
            return False
        return folding.is_current(session.entry.file, status, session.dialect)

    async def _parse_ahead(self, session: Session) -> None:
        if session not in self._without_key:
            await self._steps.parse_ahead(session, collects=self._publisher.needs_steps(session))

    def _read_step(self, session: Session) -> bool:
        """Read on by one step; whether there is more."""
        if session in self._without_key or session.is_partial:
            return False
        entry = session.entry
        # The entry of a file that was emptied stays valid until the file has a session key again.
        is_kept = bool(entry.file.inode) and not entry.file.folded_to and session.folder.source is None
        base = Entry(session_id=entry.session_id, file=entry.file) if is_kept else entry
        try:
            name, limit, parsed = session.file_name, self._store.record_limit, session.parsed
            collect = self._publisher.needs_steps(session)
            max_bytes, is_over = self._steps.limits_of(session, collects=collect)
            read = partial(folding.read_on, session.folder, base, name, limit, max_bytes=max_bytes, collect=collect)
            got = self._store.committer.files.retry_with_room(partial(read, parsed=parsed, is_over=is_over))
        except (OSError, MemoryError) as error:
            # Moved or removed: the watcher reports it, and the caller of an append gets an error of its own.
            self._retries.retry_if_passing(session, error)
            return False
        if is_kept and not is_own_key(got.entry.session_key, session.folder.agent_id):
            got.entry = replace(keep_origin(got.entry, entry), session_key=session.stored_key)
        self._apply_advance(session, got)
        if session.parsed:
            session.keep_parsed(())
        if got.more:
            self._backlog[session] = None
            self._work.set()
        else:
            self._steps.forget(session)
        return got.more

    def folder_opened(self, folder: Folder) -> None:
        """Watch a folder that the store opened or made."""
        self._folders.folder_opened(folder)

    def store_displaced(self) -> None:
        """Look again at what is at the store's path: a folder is missing from it."""
        self._folders.recheck_store_path()

    def session_created(self, session: Session, steps: list[FoldedLine]) -> None:
        """The daemon created a session: publish it and its first records."""
        self.changed.set()
        self.publish(session, "create", "create")
        self._publisher.switch_former_followers(session)
        self._publisher.publish_records(session, steps)
        self._store.read_new(session)  # events of the watcher were ignored while it was being created

    def session_appeared(self, session: Session) -> None:
        """Another program created a session: publish it, and let its followers read all of it."""
        self.changed.set()
        self._on_found(session)
        if session.superseded:
            return
        rivals = self._store.catalog.superseded_sessions(session.key)
        self.publish(session, "reset" if rivals else "create", "found")
        self._publisher.switch_followers(session)

    def session_completed(self, session: Session) -> None:
        """All of a session was read, of which only the ends were: who follows its key reads it from its start."""
        self.publish(session, "patch", "read")
        self._bus.read_whole(session.key, FollowPlace(session.session_id, 0, 0))

    def session_disappeared(self, session: Session, reason: str) -> None:
        """The file of a session was removed or moved. If an older session has its key now, that one is followed."""
        self.changed.set()
        self._store.committer.files.forget(session)
        self._on_lost(session)
        if session.superseded:
            return
        if session.entry.attends is not None:
            self.publish(session, "patch", reason)
            return
        heir = self._store.catalog.by_key.get(session.key)
        if heir is None:
            self.publish(session, "delete", reason, deleted=True)
        else:
            self.publish(heir, "reset", reason)
            self._bus.switch_session(session.key, FollowPlace(heir.session_id, 0, 0, "reset"))
            self._store.read_new(heir)
        self._bus.wake(session.key)

    async def refold(self, session: Session) -> bool:
        """Replace a wrong entry by folding the whole file again, without publishing any record twice. False where this
        is not possible just now.
        """
        store, entry = self._store, folding.begin_anew(session.entry)
        async with store.committer.hold_exclusively(session):
            try:
                entry = (await store.run_for_feed(self._read_on, session, entry, None)).entry
                # There is no await from here on, so both entries have what other programs wrote meanwhile.
                self._read_step(session)
                entry = self._read_on(session, entry, MAX_STEP_BYTES).entry
            except OSError:
                return False
            known, says_key = session.entry.file, is_own_key(entry.session_key, session.folder.agent_id)
            is_same = (entry.file.inode, entry.file.folded_to) == (known.inode, known.folded_to)
            if not (is_same and says_key and store.catalog.has(session)) or session in self._without_key:
                return False
            self._replace_wrong_entry(session, entry)
        return True

    def _read_on(self, session: Session, entry: Entry, max_bytes: int | None) -> Advance:
        limit, name = self._store.record_limit, session.file_name
        return folding.read_on(session.folder, entry, name, limit, max_bytes=max_bytes, collect=False)

    def _replace_wrong_entry(self, session: Session, entry: Entry) -> None:
        self.changed.set()
        if entry.known_key != session.key:
            self._rename(session, entry)
            return
        self._store.catalog.replace(session, entry)
        if self._store.catalog.is_current(session):
            self.publish(session, "patch", "refolded")

    def session_replaced(self, session: Session) -> None:
        """A reset replaced the key's session by this one: publish it. Followers first read the old one to its end, even
        while it is moved to the archive, and then this one.
        """
        self.changed.set()
        self.publish(session, "reset", None)
        self._publisher.switch_followers(session)
        self._store.read_new(session)

    def _apply_advance(self, session: Session, got: Advance) -> None:
        entry, was_incomplete = got.entry, session.entry.is_incomplete
        if entry == session.entry:
            return
        if entry.file.inode != session.entry.file.inode:
            self._store.committer.files.forget(session, unless_inode=entry.file.inode)
        if session.folder.source is not None:
            self._apply_foreign(session, got)
        else:
            self._apply_own(session, got)
        if was_incomplete and not entry.is_incomplete and self._store.catalog.is_current(session):
            self.publish(session, "patch", "read")  # its last records need not change its row

    def _apply_own(self, session: Session, got: Advance) -> None:
        entry = got.entry
        for one in scan.line_problems(session.path, got):
            log.warning("passed over", path=one.path, reason=one.reason)
        self.changed.set()
        if entry.known_key != session.key and is_own_key(entry.session_key, session.folder.agent_id):
            self._rename(session, entry)
        elif (got.rewritten or not session.entry.file.folded_to) and claim_to_restore(
            entry, session.entry, session.stored_key, session.folder.agent_id
        ):
            self._without_key[session] = None
            self._work.set()
        elif got.rewritten:
            self._handle_rewrite(session, entry)
        else:
            self._store.catalog.replace(session, entry)
            # The last records of a deleted session are still published. Those of one that was reset, the pumps replay.
            if self._store.catalog.is_current(session) or session.key not in self._store.catalog.by_key:
                self._publisher.publish_records(session, got.steps)
        if session.entry.open_questions:
            self._on_questions(session)

    def _apply_foreign(self, session: Session, got: Advance) -> None:
        # Its key is not in its lines, and nothing in it is adopted or restored.
        if got.rewritten:
            self._handle_rewrite(session, got.entry)
        elif self._store.catalog.by_key.get(session.key) is session:
            self._store.catalog.replace(session, got.entry)
            self._publisher.publish_records(session, got.steps)

    def _handle_rewrite(self, session: Session, entry: Entry) -> None:
        """The file was rewritten in place, or replaced by another one under its name."""
        session.activity.epoch += 1
        self._store.catalog.replace(session, entry)
        live = self._store.catalog.by_key.get(session.key) is session
        if entry.attends is not None:
            self.publish(session, "patch", "rewritten")
            return
        self._bus.reread(session.key, FollowPlace(session.session_id, 0, 0, "rewritten"), live=live)
        if live:
            self.publish(session, "patch", "rewritten")
            self._on_found(session)

    def _rename(self, session: Session, entry: Entry) -> None:
        """The file has another session key than before: one session disappears and another appears."""
        catalog = self._store.catalog
        if session.folder.archived:
            self._rename_archived(session, entry)
            return
        catalog.remove(session)
        self.session_disappeared(session, f"its transcript is that of {entry.session_key} now")
        session.activity.epoch += 1
        session.key = entry.known_key
        catalog.replace(session, entry)
        catalog.add(session)
        self.session_appeared(session)

    def _rename_archived(self, session: Session, entry: Entry) -> None:
        """A file in the archive has another session key: followers of the old key do not read it."""
        self._store.catalog.remove(session)
        self._bus.wake(session.key)
        session.activity.epoch += 1
        session.key = entry.known_key
        self._store.catalog.replace(session, entry)
        self._store.catalog.add(session)

    async def _adopt_rewritten(self, session: Session) -> None:
        """Adopt a rewritten file without a session key: it keeps the key that it had."""
        async with self._store.committer.hold_exclusively(session):
            entry = await self._folders.reread_entry(session, self._retries)
            del self._without_key[session]
        if entry is None or not (session.archived or self._store.catalog.is_current(session)):
            return  # it was removed meanwhile, which the watcher reports
        if entry.known_key != session.key and is_own_key(entry.session_key, session.folder.agent_id):
            self._rename(session, entry)
        else:
            self._handle_rewrite(session, replace(keep_origin(entry, session.entry), session_key=session.stored_key))
        self._store.read_new(session)

    async def _read_backlog(self) -> None:
        while True:
            while self._backlog or self._without_key:
                if self._without_key:
                    await self._adopt_rewritten(next(iter(self._without_key)))
                    continue
                session = next(iter(self._backlog))
                del self._backlog[session]
                await self._parse_ahead(session)
                if not session.in_flight:
                    self._read_step(session)
                await trio.lowlevel.checkpoint()
            await self._work.wait()
            self._work = trio.Event()

    async def _retry(self, session: Session) -> None:
        self._store.read_new(session)
