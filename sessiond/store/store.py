"""SessionStore: the async door to the files.

Owns the lock, the folders, the catalog and the committer. Knows transcripts and entries; does not know callers, runs or
subscribers. Whom it tells of its own changes is its `StoreListener`: the feed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from sessiond.clock import Clock, Ids
from sessiond.errors import StorageError, reason_of
from sessiond.model import record as records
from sessiond.model.keys import KeyRules
from sessiond.model.record import RecordDraft
from sessiond.store import dirfd, index, layout, making, opening, scan
from sessiond.store.agent_folders import AgentFolders
from sessiond.store.catalog import Catalog, Folder, Session
from sessiond.store.commit_job import MakeThreads
from sessiond.store.commit_threads import CommitThreads
from sessiond.store.committer import AppendPlace, Committer
from sessiond.store.folding import Advance
from sessiond.store.key_cursors import CursorPlaces
from sessiond.store.listener import StoreListener
from sessiond.store.loading import load_sessions
from sessiond.store.machine_presence import MachinePresence
from sessiond.store.new_records import Custom, Message, Part, Written, drafts_of, lines_of, locate_written
from sessiond.store.presence import StorePresence
from sessiond.store.reading_threads import ReadingThreads
from sessiond.store.refusals import StoreDisplaced, require_own, storage_error
from sessiond.store.session_reader import SessionReader
from sessiond.store.writing import Sync
from sessiond.tasks import LONG_BYTES, DiskThreads, RunSync, compute, own_threads, run_in_thread, run_off_loop

__all__ = ["Custom", "Message", "Part", "SessionStore", "Written", "open_store"]

T = TypeVar("T")


_WRITING_THREADS = 4  # what creates, moves and saves; commits have threads of their own
# Of these so many more may hang, on a network disk that does not answer, before others wait: as with commits.
_MOST_STUCK_WRITES = 124


class SessionStore:
    """All transcripts and their entries. Build it with `open_store`.

    `listener` finds the listener, which is built on the store; it is not called before the store has something to tell.
    """

    def __init__(
        self,
        opened: opening.OpenStore,
        *,
        listener: Callable[[], StoreListener],
        rules: KeyRules,
        record_limit: int,
        clock: Clock,
        ids: Ids,
        run_sync: RunSync | None,
        threads: MakeThreads,
        sync: Sync | None,
    ) -> None:
        self.path = opened.path
        self.root_fd = opened.root_fd
        self.secret = opened.secret
        self.presence = StorePresence(opened.path, opened.root_fd)
        self.catalog = Catalog()
        places = CursorPlaces(opened.secret, self.catalog)
        self.cursor, self.cursors = places.cursor, places.cursors
        self.position, self.locate = places.position, places.locate
        self.sign = places.sign
        self.problems: list[scan.Problem] = []
        opened_folders = AgentFolders(opened.root_fd, opened.path, lambda folder: listener().folder_opened(folder))
        self.folders, self.archives = opened_folders.live, opened_folders.archives
        self.folder, self.archive_folder = opened_folders.find, opened_folders.find_archive
        self._opened_folders = opened_folders
        self.rules = rules
        self.record_limit = record_limit
        self._listener = listener
        self.run_sync = run_sync or run_in_thread
        self._run_compute = run_sync or compute
        # What clients read keeps neither writes nor the feed waiting.
        self.reading = ReadingThreads()
        self.writing = DiskThreads(_WRITING_THREADS, _MOST_STUCK_WRITES)
        self._run_write: RunSync = run_sync or self.writing
        self.run_for_feed = run_sync or own_threads(2)
        # Files that the daemon is creating or moving just now, for which the watcher's events are ignored.
        self.busy_names: set[str] = set()
        self._clock, self._ids, self._durable = clock, ids, sync is not None
        self.opened_at_ms = clock.wall_ms()
        self.machines = MachinePresence(clock.wall_ms, self.opened_at_ms)
        self.committer = Committer(
            sync=sync,
            record_limit=record_limit,
            on_committed=lambda session: listener().poke(session),
            on_refused=self._report_displaced,
            threads=threads,
        )
        reader = SessionReader(self.reading, run_sync, self.committer.files, record_limit)
        self.page, self.shown_page = reader.page, reader.shown_page
        self.read, self.read_each = reader.read, reader.read_each

    def now_ms(self) -> int:
        """The time on the wall, in milliseconds since 1970."""
        return self._clock.wall_ms()

    @property
    def settings(self) -> scan.ScanSettings:
        """The settings for reading and adopting files."""
        return scan.ScanSettings(self.rules, self.record_limit, self._clock, self._ids, self._durable)

    def load(self, progress: scan.Progress | None) -> None:
        """Find every session. Blocks; `loading.load_sessions` calls it in a worker thread."""
        making.remove_leftovers(self.root_fd)
        making.remove_leftovers_of_backups(self.root_fd)
        folders = self._opened_folders
        for agent_id in opening.agent_folders(self.root_fd, self.problems):
            path = f"{layout.AGENTS}/{agent_id}/{layout.SESSIONS}"
            for where, opened in ((path, folders.open), (f"{path}/{layout.ARCHIVE}", folders.open_archive)):
                try:
                    self.catalog.load(scan.scan_folder(opened(agent_id), self.settings, progress, self.problems))
                except OSError as error:
                    self.problems.append(scan.problem_of(where, error))

    async def create(
        self,
        key: str,
        agent_id: str,
        parts: Sequence[Part] = (),
        *,
        cwd: str = "",
        spawned_by: str | None = None,
        attends: str | None = None,
        session_id: str | None = None,
        after_ms: int = 0,
        announce: bool = True,
    ) -> tuple[Session, list[Written]]:
        """A new session for the key, its header and `parts` on disk in one write.

        Its header is younger than `after_ms`. Without `announce` the caller tells of it. One that `attends` another
        program's session is known under the key of that one.
        """
        session_id = session_id or self._ids.uuid()
        # Younger than every session that had the key before, also where the clock was put back.
        now = max(self._clock.wall_ms(), after_ms + 1, self.catalog.newest_of(key) + 1)
        header = records.header_line(session_id, key, agent_id, now, cwd=cwd, spawned_by=spawned_by, attends=attends)
        drafts = drafts_of(parts, self._ids, now, self.record_limit)
        lines = lines_of(drafts, self.record_limit, None)
        name = session_id + layout.SUFFIX
        self.busy_names.add(name)
        try:
            self.presence.require()
            folder = self.folder(agent_id)
            data = header + b"".join(lines)
            make = partial(making.create_file, folder, name, data, self.record_limit, self._durable)
            made: Advance = await self._run_write(self.committer.files.retry_with_room, make)
            if self.folders.get(agent_id) is not folder:
                raise StoreDisplaced
            session = Session(key=attends or key, entry=made.entry, folder=folder)
            self.catalog.add(session)
            folder.dirty = True
        except OSError as error:
            self._report_displaced(error)
            raise storage_error(error, key) from None
        finally:
            self.busy_names.discard(name)
        if announce:
            self._listener().session_created(session, made.steps)
        return session, locate_written(len(header), drafts, lines)

    async def append(self, session: Session, parts: Sequence[Part]) -> list[Written]:
        """Append records in one write. Returns when they are on disk, folded and published."""
        if not parts:
            return []
        drafts = self.make_drafts(parts)
        places = await self.committer.append(session, partial(lines_of, drafts, self.record_limit), drafts[-1].id)
        return [Written(draft.id, offset, end) for draft, (offset, end) in zip(drafts, places, strict=True)]

    async def append_made(self, session: Session, size: int, make: Callable[[], list[RecordDraft]]) -> list[str]:
        """Append the drafts, at least one, that `make` makes of so many bytes; their ids. See `tasks.run_off_loop`.

        What is appended to the session meanwhile comes behind them.
        """
        ended = trio.Event()
        refusal: StorageError | None = None

        def tell(_ids: list[str], error: StorageError | None) -> None:
            nonlocal refusal
            refusal = error
            ended.set()

        if size <= LONG_BYTES:
            drafts = make()
            self.append_later(session, drafts, tell)
        else:
            with self.committer.take_place(session) as place:
                drafts = await run_off_loop(size, make, run_sync=self._run_compute)
                self.append_later(place, drafts, tell)
        await ended.wait()
        if refusal is not None:
            raise refusal
        return [draft.id for draft in drafts]

    def make_drafts(self, parts: Sequence[Part]) -> list[RecordDraft]:
        """Drafts of the records. LimitExceeded or InvalidParams for one that readers would refuse.

        May be called in a worker thread, since long records take long.
        """
        return drafts_of(parts, self._ids, self._clock.wall_ms(), self.record_limit)

    def append_later(self, to: Session | AppendPlace, drafts: Sequence[RecordDraft], tell: Callable[..., None]) -> None:
        """As `append`, for at least one draft, without waiting: `tell(ids, None)` or `tell([], error)` is called on the
        event loop. `to` may be a place that was taken before, with `committer.take_place`.
        """

        def tell_ids(places: list[tuple[int, int]], error: StorageError | None) -> None:
            tell([draft.id for draft in drafts] if places else [], error)

        append = to.fill if isinstance(to, AppendPlace) else partial(self.committer.append_later, to)
        append(partial(lines_of, drafts, self.record_limit), drafts[-1].id, tell_ids)

    def read_new(self, session: Session) -> None:
        """Let the feed read what is new in the file."""
        # Unsynced records may still be removed, so they are not read; the feed is called after their commit.
        if not session.in_flight:
            self._listener().poke(session)

    async def archive(self, session: Session, *, on_leave: Callable[[], None] | None = None) -> bool:
        """Move the transcript to the archive, by rename; on disk when this returns. False where it does not exist.

        Then the session is no longer the current one of its key; `on_leave` is called right before that. Appends that
        were called before this are written before the move.
        """
        require_own(session)
        name = session.file_name
        await self.committer.wait_written(session)
        self.busy_names.add(name)
        try:
            async with self.committer.hold_exclusively(session):
                archive = self.archive_folder(session.folder.agent_id)
                moved = await self._run_write(dirfd.move, session.folder.fd, archive.fd, name, self._durable)
                session.folder.dirty = True
                if moved:
                    session.folder = archive
                    # Followers read it to its end, with what other programs wrote right before the move.
                    self.read_new(session)
                if on_leave is not None:
                    on_leave()
                self.catalog.remove(session)
                if moved:
                    archive.dirty = True
                    self.catalog.add(session)
        except OSError as error:
            raise storage_error(error, session.key) from None
        finally:
            self.busy_names.discard(name)
        return bool(moved)

    def _report_displaced(self, error: OSError) -> None:
        if isinstance(error, StoreDisplaced):
            self._listener().store_displaced()

    def dirty_folders(self) -> list[Folder]:
        """The folders whose index has to be saved."""
        return [folder for folder in self._opened_folders.every() if folder.dirty and not folder.waiting]

    def close(self) -> None:
        """Close the folders."""
        self._opened_folders.close()

    async def save(self, folder: Folder) -> int:
        """Save the index of a folder; its size in bytes. Other tasks run between the chunks."""
        folder.dirty = False
        saved = False
        try:
            mine = [session for session in self.catalog.by_id.values() if session.folder is folder]
            pieces: list[bytes] = []
            for piece in index.encode_index(mine):
                pieces.append(piece)
                await trio.lowlevel.checkpoint()
            kept_at_ms = self._clock.wall_ms() if folder.has_torn_index else None
            await self._run_write(index.save, folder.fd, pieces, kept_at_ms)
            folder.has_torn_index, saved = False, True
            return sum(map(len, pieces))
        except (OSError, MemoryError) as error:
            raise StorageError(f"could not save the index of agent {folder.agent_id}: {reason_of(error)}") from None
        finally:
            folder.dirty = folder.dirty or not saved


@asynccontextmanager
async def open_store(
    path: Path,
    *,
    listener: Callable[[], StoreListener],
    durable: bool,
    record_limit: int,
    rules: KeyRules,
    clock: Clock | None = None,
    ids: Ids | None = None,
    run_sync: RunSync | None = None,
    threads: MakeThreads = CommitThreads,
    sync: Sync = os.fdatasync,
    progress: scan.Progress | None = None,
    loads: bool = True,
) -> AsyncIterator[SessionStore]:
    """The store at `path`, locked, with its sessions loaded and commits running. StoreInUse where another holds it.

    Without `loads` the caller awaits `load_sessions` before it uses them.
    `listener` finds what is told of its changes; it is asked for the first time after `open_store` gave the store.
    """
    clock, ids = clock or Clock(), ids or Ids()
    with opening.open_locked(path, clock) as opened:
        given: dict[str, Any] = {"clock": clock, "ids": ids, "run_sync": run_sync, "threads": threads}
        given |= {"sync": sync if durable else None, "rules": rules, "record_limit": record_limit}
        store = SessionStore(opened, listener=listener, **given)
        try:
            if loads:
                await load_sessions(store, progress)
            async with trio.open_nursery() as nursery:
                await nursery.start(store.committer.run)
                nursery.start_soon(store.writing.watch)
                nursery.start_soon(store.reading.watch)
                yield store
                nursery.cancel_scope.cancel()
        finally:
            store.close()
