"""SessionStore: the async door to the files.

Owns the lock, the folders, the catalog and the committer. Knows transcripts and entries; does not know callers, runs or
subscribers. Whoever wants to see appends sets `on_committed` and `on_created`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import trio

from sessiond.clock import Clock, Ids
from sessiond.errors import LimitExceeded, StorageError
from sessiond.model import record as records
from sessiond.model.entry import Entry
from sessiond.model.keys import KeyRules
from sessiond.model.record import Record
from sessiond.store import dirfd, folding, index, layout, opening, scan, transcript
from sessiond.store.catalog import Catalog, Folder, Session
from sessiond.store.committer import Committer, RunSync, storage_error
from sessiond.store.cursor import Cursors, Position
from sessiond.store.transcript import Page


class Message(msgspec.Struct, frozen=True):
    """A `message` record to append; a Raw body keeps its bytes."""

    body: msgspec.Raw | dict[str, Any]


class Custom(msgspec.Struct, frozen=True):
    """A `custom` record to append."""

    type: str
    data: dict[str, Any]


Part = Message | Custom


class Written(msgspec.Struct, frozen=True):
    """Where a record came to stand."""

    id: str
    offset: int
    end: int


class SessionStore:
    """All transcripts and their entries. Build it with `open_store`."""

    def __init__(
        self, opened: opening.Opened, *, durable: bool, record_limit: int, clock: Clock, ids: Ids, run_sync: RunSync
    ) -> None:
        self.path = opened.path
        self.root_fd = opened.root_fd
        self.secret = opened.secret
        self.catalog = Catalog()
        self.cursors = Cursors(opened.secret)
        self.problems: list[scan.Problem] = []
        self.folders: dict[str, Folder] = {}
        self.archives: dict[str, Folder] = {}
        self.rules = KeyRules()
        self.record_limit = record_limit
        self.run_sync = run_sync
        self.on_committed: Callable[[Session], None] = lambda session: None
        self.on_created: Callable[[Session, list[folding.Step]], None] = lambda session, steps: None
        # Files the daemon is making or moving right now: the watcher's news of them are its own doing.
        self.busy_names: set[str] = set()
        self.on_folder: Callable[[Folder], None] = lambda folder: None
        self._clock, self._ids, self._durable = clock, ids, durable
        self.committer = Committer(sync=durable, run_sync=run_sync, on_committed=self._committed)

    def _committed(self, session: Session) -> None:
        self.on_committed(session)

    @property
    def settings(self) -> scan.ScanSettings:
        """What reading a file needs."""
        return scan.ScanSettings(self.rules, self.record_limit, self._clock, self._ids, self._durable)

    def load(self, progress: scan.Progress) -> None:
        """Find every session. Blocks; call it in a worker thread."""
        for agent_id in opening.agent_folders(self.root_fd, self.problems):
            folder = self.folder(agent_id)
            self.catalog.load(scan.scan_folder(folder, self.settings, progress, self.problems))
            archive = self.archive_folder(agent_id)
            for session in scan.scan_folder(archive, self.settings, progress, self.problems):
                self.catalog.add(session)

    def folder(self, agent_id: str) -> Folder:
        """The agent's sessions folder, made when needed."""
        if agent_id not in self.folders:
            fd = dirfd.open_path_dir(self.root_fd, (layout.AGENTS, agent_id, layout.SESSIONS), create=True)
            self.folders[agent_id] = Folder(agent_id, fd)
            self.on_folder(self.folders[agent_id])
        return self.folders[agent_id]

    def archive_folder(self, agent_id: str) -> Folder:
        """The agent's archive, made when needed."""
        if agent_id not in self.archives:
            fd = dirfd.open_path_dir(self.folder(agent_id).fd, (layout.ARCHIVE,), create=True)
            self.archives[agent_id] = Folder(agent_id, fd, archived=True)
        return self.archives[agent_id]

    async def create(
        self,
        key: str,
        agent_id: str,
        parts: Sequence[Part] = (),
        *,
        cwd: str = "",
        spawned_by: str | None = None,
        session_id: str | None = None,
    ) -> tuple[Session, list[Written]]:
        """A new session for the key, its header and `parts` on disk in one write."""
        session_id = session_id or self._ids.uuid()
        now = self._clock.wall_ms()
        header = records.header_line(session_id, key, agent_id, now, cwd=cwd, spawned_by=spawned_by)
        lines, ids, _ = self._compose(parts, None, now)
        data = header + b"".join(lines)
        name = session_id + layout.SUFFIX
        self.busy_names.add(name)
        try:
            folder = self.folder(agent_id)
            made = await self.run_sync(self._create, folder, name, data)
            session = Session(key=key, entry=made.entry, folder=folder)
            self.catalog.add(session)
            folder.dirty = True
        except OSError as error:
            raise storage_error(error, key) from None
        finally:
            self.busy_names.discard(name)
        self.on_created(session, made.steps)
        return session, _written(ids, lines, len(header))

    def _create(self, folder: Folder, name: str, data: bytes) -> folding.Advance:
        scan.create_file(folder.fd, name, data, self._durable)
        empty = Entry(session_id=name[: -len(layout.SUFFIX)])
        return folding.advance(folder.fd, empty, name, self.record_limit)

    async def append(self, session: Session, parts: Sequence[Part]) -> list[Written]:
        """Append records in one write. Returns once they are on disk, folded and announced."""
        parent = session.names_next_parent if session.in_flight else session.entry.file.last_id
        lines, ids, last = self._compose(parts, parent, self._clock.wall_ms())
        session.names_next_parent = last
        offset = await self.committer.append(session, b"".join(lines))
        return _written(ids, lines, offset)

    def _compose(
        self, parts: Sequence[Part], parent: str | None, now: int
    ) -> tuple[list[bytes], list[str], str | None]:
        lines: list[bytes] = []
        ids: list[str] = []
        for part in parts:
            record_id = self._ids.record()
            match part:
                case Message(body):
                    line = records.message_line(record_id, parent, now, body)
                case Custom(custom_type, data):
                    line = records.custom_line(record_id, parent, now, custom_type, data)
            if len(line) - 1 > self.record_limit:
                raise LimitExceeded(
                    f"the record is {len(line) - 1} bytes long, the limit is {self.record_limit} (limits.maxRecordBytes)",
                    limit="limits.maxRecordBytes",
                    value=self.record_limit,
                )
            lines.append(line)
            ids.append(record_id)
            parent = record_id
        return lines, ids, parent

    async def page(
        self,
        session: Session,
        wanted: Callable[[Record], bool],
        *,
        limit: int,
        max_bytes: int,
        before: Position | None = None,
    ) -> Page:
        """The newest `limit` wanted messages (before a position), oldest first."""
        end = before or Position(session.entry.file.folded_to, session.entry.message_count)
        return await self.read(session, _read_page, end, wanted, limit, max_bytes, self.record_limit)  # type: ignore[no-any-return]

    async def read(self, session: Session, function: Callable[..., Any], *args: Any) -> Any:
        """`function(fd, *args)` in a worker thread, on the session's open file."""

        def work() -> Any:
            fd = dirfd.open_file(session.folder.fd, session.file_name, os.O_RDONLY)
            try:
                return function(fd, *args)
            finally:
                os.close(fd)

        try:
            return await self.run_sync(work)
        except OSError as error:
            raise StorageError(
                f"could not read the transcript of {session.key}: {os.strerror(error.errno or 5)}"
            ) from None

    def cursor(self, session: Session, offset: int, seq: int) -> str:
        """The cursor behind a line of this session."""
        return self.cursors.text(session.session_id, session.entry.file.inode, offset, seq)

    def position(self, session: Session, text: str, field: str = "$.cursor") -> Position:
        """What a cursor says. InvalidParams where it is not this session's."""
        facts = session.entry.file
        return self.cursors.read(text, session.session_id, facts.inode, facts.folded_to, field=field)

    async def archive(self, session: Session) -> None:
        """Move the transcript to the archive, by rename; on disk when this returns. The session leaves the live ones."""
        archive = self.archive_folder(session.folder.agent_id)
        self.busy_names.add(session.file_name)
        try:
            await self.run_sync(_move, session.folder.fd, archive.fd, session.file_name, self._durable)
        except OSError as error:
            raise storage_error(error, session.key) from None
        finally:
            self.busy_names.discard(session.file_name)
        self.catalog.remove(session)
        session.folder.dirty = True
        session.folder = archive
        archive.dirty = True
        self.catalog.add(session)

    def dirty(self) -> list[Folder]:
        """The folders whose index is behind."""
        return [folder for folder in (*self.folders.values(), *self.archives.values()) if folder.dirty]

    async def save(self, folder: Folder) -> None:
        """Save the index of a folder, a chunk at a time so that nobody waits long."""
        folder.dirty = False
        mine = [session for session in self.catalog.by_id.values() if session.folder is folder]
        pieces: list[bytes] = []
        for piece in index.lines(mine):
            pieces.append(piece)
            await trio.lowlevel.checkpoint()
        try:
            await self.run_sync(index.save, folder.fd, pieces)
        except OSError as error:
            folder.dirty = True
            raise StorageError(
                f"could not save the index of agent {folder.agent_id}: {os.strerror(error.errno or 5)}"
            ) from None


def _read_page(
    fd: int, end: Position, wanted: Callable[[Record], bool], limit: int, max_bytes: int, record_limit: int
) -> Page:
    return transcript.page_backwards(
        fd, end.offset, end.seq, wanted=wanted, limit=limit, max_bytes=max_bytes, record_limit=record_limit
    )


def _move(source_fd: int, target_fd: int, name: str, sync: bool) -> None:
    dirfd.rename(source_fd, name, target_fd, name)
    if sync:
        dirfd.fsync_dir(target_fd)
        dirfd.fsync_dir(source_fd)


def _written(ids: list[str], lines: list[bytes], offset: int) -> list[Written]:
    made: list[Written] = []
    for record_id, line in zip(ids, lines, strict=True):
        made.append(Written(record_id, offset, offset + len(line)))
        offset += len(line)
    return made


@asynccontextmanager
async def open_store(
    path: Path,
    *,
    durable: bool,
    record_limit: int,
    rules: KeyRules,
    clock: Clock | None = None,
    ids: Ids | None = None,
    run_sync: RunSync = trio.to_thread.run_sync,
    progress: scan.Progress = lambda done, total, agent_id: None,
) -> AsyncIterator[SessionStore]:
    """The store at `path`, locked, with its sessions loaded and commits running. StoreInUse where another holds it."""
    clock, ids = clock or Clock(), ids or Ids()
    with opening.opened(path, clock) as opened:
        store = SessionStore(
            opened, durable=durable, record_limit=record_limit, clock=clock, ids=ids, run_sync=run_sync
        )
        store.rules = rules
        await run_sync(store.load, progress)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(store.committer.run)
                yield store
                nursery.cancel_scope.cancel()
        finally:
            for folder in (*store.folders.values(), *store.archives.values()):
                os.close(folder.fd)
