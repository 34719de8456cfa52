"""The one road: file -> tail -> fold -> entry -> event. For the daemon's own appends and for everyone else's.

The committer pokes the feed after each commit; `folders` tells it of strangers. Knows the store and the bus. Does not
know folders, subscribers' connections, runs or methods.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import structlog
import trio
from msgspec.structs import replace

from sessiond.events.bus import EventBus
from sessiond.events.changes import change_of, changed_event, end_of
from sessiond.events.delayed_retry import DelayedRetry
from sessiond.events.folders import Folders
from sessiond.events.replay import message_event
from sessiond.events.subscription import FollowPlace
from sessiond.events.watch import Watcher
from sessiond.model.entry import Entry
from sessiond.model.event import ChangedEvent, Phase
from sessiond.store import folding, scan, transcript
from sessiond.store.adoption import claim_to_restore, is_own_key, keep_origin
from sessiond.store.catalog import Session
from sessiond.store.folding import Advance, FoldedLine
from sessiond.store.store import SessionStore

# What is read and folded in one go on the loop: a millisecond and a half of small records, and about as much again for
# each subscriber, so that the more there are the less it is.
MAX_STEP_BYTES = 64 * 1024


log = structlog.get_logger("sessiond.feed")


class TranscriptFeed:
    """Keeps entries up to their files and publishes what is new, each record once.

    `changed` is set whenever an entry changed; who waits for it puts a new one in its place. `on_lost(session)` is told
    of every session that left the catalog by somebody else's doing, `on_found(session)` of every one that appeared so,
    is back, or has another transcript under its name.
    """

    def __init__(
        self,
        store: SessionStore,
        bus: EventBus,
        *,
        on_lost: Callable[[Session], None],
        on_found: Callable[[Session], None],
    ) -> None:
        self._store, self._bus = store, bus
        self._on_lost, self._on_found = on_lost, on_found
        self._folders = Folders(store, self)
        # Sessions with more to read than one step takes, and those whose new file does not say its key.
        self._behind: dict[Session, None] = {}
        self._nameless: dict[Session, None] = {}
        # Sessions whose file could not be opened just now.
        self._again = DelayedRetry[Session](self._look_again)
        self._work = trio.Event()
        self.changed = trio.Event()
        store.on_committed = self.poke
        store.on_created = self.session_created
        store.on_folder = self._folders.folder_opened

    @property
    def backend(self) -> str:
        """The watcher's backend, for daemon.status."""
        return self._folders.backend

    async def run(self, watcher: Watcher) -> None:
        """Follow the watcher until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_behind)
            nursery.start_soon(self._again.run)
            nursery.start_soon(self._folders.again.run)
            await self._folders.follow(watcher)

    def poke(self, session: Session) -> bool:
        """Read some of what the file has and the entry has not. Called on the loop, after a commit of the daemon's own.

        Whether something of what the daemon wrote is left to be announced: an append returns when it is. What strangers
        wrote behind it has its turn later.
        """
        more = self._step(session) and session.entry.file.folded_to < session.written_end
        if session.archived:
            # Who is in it still goes on, and when nothing more can come goes over to the key's next session.
            self._bus.wake(session.key)
        return more

    async def read_on(self, session: Session) -> None:
        """Read some of what others wrote into the file."""
        await self._parse_ahead(session)
        if not session.in_flight:  # else its commit reads on
            self.poke(session)

    async def _parse_ahead(self, session: Session) -> None:
        """Parse a long line that comes next, off the loop: there it would take 25 ms and more of one step."""
        folder_fd, entry, name = session.folder.fd, session.entry, session.file_name
        try:
            size = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_size
            if size - entry.file.folded_to < transcript.LONG_LINE or session in self._nameless:
                return
            limit, reach = self._store.record_limit, self._step_bytes(session)
            line = await self._store.run_sync(folding.parse_ahead, folder_fd, entry, name, limit, reach)
        except OSError:
            return  # whoever reads it says so
        if line is not None:
            session.keep_parsed((line,))

    def _step(self, session: Session) -> bool:
        """Read on by one step; whether there is more."""
        if session in self._nameless:
            return False
        entry = session.entry
        # What is kept of a file that was emptied counts until that one says its key again.
        is_kept = bool(entry.file.inode) and not entry.file.folded_to
        base = Entry(session_id=entry.session_id, file=entry.file) if is_kept else entry
        try:
            name, max_bytes = session.file_name, self._step_bytes(session)
            got = folding.advance(
                session.folder.fd, base, name, self._store.record_limit, max_bytes=max_bytes, parsed=session.parsed
            )
        except OSError as error:
            # Moved or removed: the watcher tells, and the caller of the append gets its own error.
            self._again.takes(session, error)
            return False
        if is_kept and not is_own_key(got.entry.session_key, session.folder.agent_id):
            got.entry = replace(keep_origin(got.entry, entry), session_key=session.key)
        self._take(session, got)
        if session.parsed:
            session.keep_parsed(())
        if got.more:
            self._behind[session] = None
            self._work.set()
        return got.more

    def _step_bytes(self, session: Session) -> int:
        return MAX_STEP_BYTES // (1 + self._bus.count_of(session.key))

    def session_created(self, session: Session, steps: list[FoldedLine]) -> None:
        """A session was made by the daemon: announce it and what it began with."""
        self.changed.set()
        self.publish(session, "create", "create")
        self._begin_behind_older(session)
        self._announce(session, steps)
        self._store.read_new(session)  # the watcher's word of it did not count while it was made

    def session_appeared(self, session: Session) -> None:
        """A session appeared that somebody else has made: announce it, and let its followers read all of it."""
        self.changed.set()
        self._on_found(session)
        if session.superseded:
            return
        rivals = self._store.catalog.superseded_sessions(session.key)
        self.publish(session, "reset" if rivals else "create", "found")
        self._begin(session)

    def session_disappeared(self, session: Session, reason: str) -> None:
        """A session is no longer where it was. Where an older one had its key, that one is followed again."""
        self.changed.set()
        self._on_lost(session)
        if session.superseded:
            return
        heir = self._store.catalog.by_key.get(session.key)
        if heir is None:
            self.publish(session, "delete", reason, deleted=True)
        else:
            self.publish(heir, "reset", reason)
            self._bus.begin(session.key, FollowPlace(heir.session_id, 0, 0, "reset"))
            self._store.read_new(heir)
        self._bus.wake(session.key)

    async def fold_again(self, session: Session) -> bool:
        """Make an entry that is wrong anew, from the whole file; no follower is told of a record twice. False where
        that cannot be done just now."""
        store, entry = self._store, folding.begin_anew(session.entry)
        async with store.committer.hold_exclusively(session):
            try:
                entry = (await store.run_sync(self._read_on, session, entry, None)).entry
                # Nobody comes in between any more: what a stranger wrote meanwhile both have now.
                self._step(session)
                entry = self._read_on(session, entry, MAX_STEP_BYTES).entry
            except OSError:
                return False
            known, says_key = session.entry.file, is_own_key(entry.session_key, session.folder.agent_id)
            is_same = (entry.file.inode, entry.file.folded_to) == (known.inode, known.folded_to)
            if not (is_same and says_key and store.catalog.has(session)) or session in self._nameless:
                return False
            self._put_right(session, entry)
        return True

    def _read_on(self, session: Session, entry: Entry, max_bytes: int | None) -> Advance:
        limit, name = self._store.record_limit, session.file_name
        return folding.advance(session.folder.fd, entry, name, limit, max_bytes=max_bytes, collect=False)

    def _put_right(self, session: Session, entry: Entry) -> None:
        self.changed.set()
        if entry.session_key != session.key:
            self._rename(session, entry)
            return
        self._store.catalog.replace(session, entry)
        if self._store.catalog.by_key.get(session.key) is session:
            self.publish(session, "patch", "refolded")

    def publish(self, session: Session, phase: Phase, reason: str | None, *, deleted: bool = False) -> None:
        """Tell of a change to a session that is no record of its transcript, such as a reset."""
        if not self._bus.has_follower(session.key):
            return
        entry = session.entry
        # Who is told that a session begins has had nothing of it.
        begins = phase in ("create", "reset")
        event = ChangedEvent(
            key=session.key,
            session_id=session.session_id,
            phase=phase,
            reason=reason,
            entry=None if deleted else entry,
            after=0 if begins else entry.file.folded_to,
            seq=0 if begins else entry.message_count,
            spawned_by=entry.spawned_by,
        )
        self._bus.publish(event)

    def session_replaced(self, session: Session) -> None:
        """A reset made the session in the place of another: announce it, and let its followers read that one to its
        end, also where it moves meanwhile, and then this one.
        """
        self.changed.set()
        self.publish(session, "reset", None)
        self._begin(session)
        self._store.read_new(session)

    def _begin(self, session: Session) -> None:
        """Let the key's followers read on in a session that is new to them."""
        rivals = self._store.catalog.superseded_sessions(session.key)
        if not rivals:
            self._begin_behind_older(session)
            self._bus.begin(session.key, FollowPlace(session.session_id, 0, 0))
            return
        # The newest of them had the key until now. Everyone has had, or will have, what was read of it.
        self._bus.begin(session.key, end_of(rivals[-1]))
        self._store.read_new(rivals[-1])

    def _begin_behind_older(self, session: Session) -> None:
        """Let those who followed a session that had the key before, and was deleted, finish it first."""
        older = self._store.catalog.older(session.key)
        place = end_of(older[-1]) if older else FollowPlace(session.session_id, 0, 0)
        self._bus.begin(session.key, place, known_only=True)

    def _take(self, session: Session, got: Advance) -> None:
        entry = got.entry
        if entry == session.entry:
            return
        for one in scan.oddities(session.path, got):
            log.warning("passed over", path=one.path, reason=one.reason)
        self.changed.set()
        if entry.session_key != session.key and is_own_key(entry.session_key, session.folder.agent_id):
            self._rename(session, entry)
        elif (got.rewritten or not session.entry.file.folded_to) and claim_to_restore(
            entry, session.entry, session.key, session.folder.agent_id
        ):
            self._nameless[session] = None
            self._work.set()
        elif got.rewritten:
            self._renew(session, entry)
        else:
            self._store.catalog.replace(session, entry)
            # Of one that was deleted the last words may still come. Of one that was reset they are read by the pumps.
            if self._store.catalog.by_key.get(session.key, session) is session:
                self._announce(session, got.steps)

    def _renew(self, session: Session, entry: Entry) -> None:
        """The file was written anew, or is another one under the same name."""
        session.epoch += 1
        self._store.catalog.replace(session, entry)
        live = self._store.catalog.by_key.get(session.key) is session
        self._bus.rewrite(session.key, FollowPlace(session.session_id, 0, 0, "rewritten"), live=live)
        if live:
            self.publish(session, "patch", "rewritten")
            self._on_found(session)

    def _rename(self, session: Session, entry: Entry) -> None:
        """The file says another key than before: one session is gone, another is found, as after a restart."""
        catalog = self._store.catalog
        if session.folder.archived:
            self._take_away(session, entry)
            return
        catalog.remove(session)
        self.session_disappeared(session, f"its transcript is that of {entry.session_key} now")
        session.epoch += 1
        session.key = entry.session_key
        catalog.replace(session, entry)
        catalog.add(session)
        self.session_appeared(session)

    def _take_away(self, session: Session, entry: Entry) -> None:
        """A file in the archive says another key: no follower of the old one reads it."""
        self._store.catalog.remove(session)
        self._bus.wake(session.key)
        session.epoch += 1
        session.key = entry.session_key
        self._store.catalog.replace(session, entry)
        self._store.catalog.add(session)

    async def _claim(self, session: Session) -> None:
        """The new file does not say its key: it is adopted, and keeps the key that it had."""
        async with self._store.committer.hold_exclusively(session):
            entry = await self._folders.read_again(session, self._again)
            del self._nameless[session]
        if entry is None or not (session.archived or self._store.catalog.by_key.get(session.key) is session):
            return  # it went in the meantime; the watcher tells
        if entry.session_key != session.key and is_own_key(entry.session_key, session.folder.agent_id):
            self._rename(session, entry)
        else:
            self._renew(session, replace(keep_origin(entry, session.entry), session_key=session.key))
        self._store.read_new(session)

    def _announce(self, session: Session, steps: list[FoldedLine]) -> None:
        if not self._bus.has_follower(session.key):
            return
        for step in steps:
            record = step.line.record
            if record is None:
                continue
            if record.message is not None:
                self._bus.publish(message_event(self._store, session, step.line, step.seq, step.check))
            if self._bus.watched and (change := change_of(record)) is not None:
                self._bus.publish(changed_event(session, step, *change))

    async def _read_behind(self) -> None:
        while True:
            while self._behind or self._nameless:
                if self._nameless:
                    await self._claim(next(iter(self._nameless)))
                    continue
                session = next(iter(self._behind))
                del self._behind[session]
                await self._parse_ahead(session)
                if not session.in_flight:
                    self._step(session)
                await trio.lowlevel.checkpoint()
            await self._work.wait()
            self._work = trio.Event()

    async def _look_again(self, session: Session) -> None:
        self._store.read_new(session)
