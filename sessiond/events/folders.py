"""The agents' folders: which transcripts appear, change and disappear in them. Tells the feed which session to read.

Watches every folder, lists it afterwards, and adopts what other programs put there. Knows the store and the watcher.
Does not know events or subscribers.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Protocol
from weakref import WeakValueDictionary

import structlog
import trio

from sessiond.events.delayed_retry import DelayedRetry
from sessiond.events.other_indexes import OtherIndexes
from sessiond.events.watch import Watcher
from sessiond.events.watch_backend import NameChanged, NameGone, Rescan
from sessiond.model.entry import Entry
from sessiond.store import folding, layout, scan
from sessiond.store.catalog import Folder, Session
from sessiond.store.presence import exists, is_at
from sessiond.store.store import SessionStore

log = structlog.get_logger("sessiond.feed")


class FolderListener(Protocol):
    """What gets the news: the feed."""

    async def read_on(self, session: Session) -> None:
        """The session's file changed: read what is new."""

    def changed_in_flight(self, session: Session) -> None:
        """The session's file changed while the daemon appends to it."""

    def session_appeared(self, session: Session) -> None:
        """The session is new to the catalog."""

    def session_disappeared(self, session: Session, reason: str) -> None:
        """The session has left the catalog."""


class Folders:
    """Every agent's folder, by the path under which the watcher reports it."""

    def __init__(self, store: SessionStore, news: FolderListener) -> None:
        self._store, self._listener = store, news
        self._agents = str(store.path / layout.AGENTS)
        self._root = os.path.realpath(store.path)
        self._watcher: Watcher | None = None
        self._by_path: dict[str, Folder] = {}
        # The agents whose folder was watched before the store was read: whatever changes after that is an event.
        self._watched_early: set[str] = set()
        # Copies of one transcript under several agents have the same session id, by which the catalog has only one.
        self._twins: dict[tuple[str, str], Session] = {}
        # Sessions whose file was removed, while a run still refers to them: it goes on if the file comes back.
        self._removed: WeakValueDictionary[tuple[str, str], Session] = WeakValueDictionary()
        self._indexes = OtherIndexes(lambda: store.settings)
        self._retired: list[Folder] = []
        self._adopt_lock = trio.Lock()
        # By (agent id, file name). An empty name is the folder itself, an empty agent id everything.
        self.retries = DelayedRetry[tuple[str, str]](self._retry)

    @property
    def backend(self) -> str:
        return self._watcher.backend if self._watcher is not None else "none"

    def folder_opened(self, folder: Folder) -> None:
        """Watch a folder that the store opened or created."""
        path = self._path(folder.agent_id)
        self._by_path[path] = folder
        if self._watcher is not None:
            with contextlib.suppress(OSError):
                self._watcher.add(self._parent(folder.agent_id))
                self._watcher.add(path)

    def watch_early(self, watcher: Watcher) -> None:
        """Watch every folder before the store is read. Then `follow` need not look at every file again."""
        self._watcher = watcher
        names: list[str] = []
        # What cannot be watched, such as an agent without sessions, `follow` looks at file by file.
        with contextlib.suppress(OSError):
            watcher.add(self._root)
            watcher.add(self._agents)
            names = os.listdir(self._agents)
        for agent_id in filter(layout.is_agent_folder, names):
            with contextlib.suppress(OSError):
                watcher.add(self._parent(agent_id))
                watcher.add(self._path(agent_id))
                self._watched_early.add(agent_id)

    async def follow(self, watcher: Watcher) -> None:
        """Follow the watcher until cancelled."""
        self._watcher = watcher
        self._by_path = {self._path(agent_id): folder for agent_id, folder in self._store.folders.items()}
        self._find_twins()
        try:
            await self._check_everything()
            self._watched_early.clear()
            async for batch in watcher:
                lost = any(
                    isinstance(event, Rescan) or (isinstance(event, NameGone) and not event.name) for event in batch
                )
                is_news = lost
                for event in batch:
                    match event:
                        case NameChanged(directory, name):
                            is_news |= await self._on_changed(directory, name)
                        case NameGone(directory, name):
                            self._on_gone(directory, name)
                            is_news = True
                        case Rescan():
                            pass
                if lost:
                    await self._check_everything()
                if not is_news:
                    watcher.rest()
        finally:
            for folder in self._retired:
                os.close(folder.fd)

    async def _retry(self, what: tuple[str, str]) -> None:
        agent_id, name = what
        folder = self._store.folders.get(agent_id)
        if name and folder is not None:
            await self._check_file(folder, name)
        elif agent_id:
            await self._scan_folder(agent_id)
        else:
            await self._check_everything()

    async def reread_entry(self, session: Session, again: DelayedRetry[Session]) -> Entry | None:
        """The entry of a session whose rewritten file has no session key: the file is adopted again. None where there
        is no file. A file without a header, such as an empty one, gives an entry without a key.
        """
        folder, name = session.folder, session.file_name

        def read() -> Entry:
            found = scan.read_session(
                folder, name, session.entry, self._indexes.rows(folder), self._store.settings, problems=[]
            )
            if found is not None:
                return found.entry
            limit, dialect = self._store.record_limit, folder.dialect
            return folding.advance(folder.fd, session.entry, name, limit, collect=False, dialect=dialect).entry

        try:
            entry: Entry = await self._store.run_for_feed(read)
        except OSError as error:
            again.retry_if_passing(session, error)
            return None
        return entry

    def _path(self, agent_id: str) -> str:
        return f"{self._agents}/{agent_id}/{layout.SESSIONS}"

    def _parent(self, agent_id: str) -> str:
        return f"{self._agents}/{agent_id}"

    async def _on_changed(self, directory: str, name: str) -> bool:
        """Look at what changed; False where it was the daemon's own doing."""
        folder = self._by_path.get(directory)
        if folder is not None:
            return await self._check_file(folder, name)
        if directory == self._agents:
            if layout.is_agent_folder(name):
                await self._scan_folder(name)
        elif name == layout.SESSIONS and directory != self._root:
            await self._scan_folder(os.path.basename(directory))
        return True

    async def _scan_folder(self, agent_id: str) -> None:
        """A folder appeared, or may have changed unnoticed: watch it, then check every file in it."""
        assert self._watcher is not None
        try:
            self._watcher.add(self._parent(agent_id))
            self._watcher.add(self._path(agent_id))
            folder = self._store.folder(agent_id)
            is_read = agent_id in self._watched_early and folder.left_out is not None
            names = sorted(folder.left_out or ()) if is_read else os.listdir(folder.fd)
            if layout.INDEX in folder.waiting:
                await self._read_index(folder)
        except OSError as error:
            self.retries.retry_if_passing((agent_id, ""), error)
            return
        for count, name in enumerate(names):
            if count % 256 == 0:
                await trio.lowlevel.checkpoint()
            await self._check_file(folder, name)

    async def _check_file(self, folder: Folder, name: str) -> bool:
        """Look at a file; False where nobody but the daemon changed it, or that is yet to be seen."""
        session_id = layout.session_id_of(name)
        if session_id is None or name in self._store.busy_names:
            return False
        session = self._session(folder, session_id)
        if session is None:
            await self._adopt(folder, name)
        elif session.in_flight:
            self._listener.changed_in_flight(session)
            return False
        else:
            try:
                look = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            except FileNotFoundError:
                self._drop(session)  # some systems report a change and a removal in any order
            except OSError as error:
                self.retries.retry_if_passing((folder.agent_id, name), error)
            else:
                is_folded = folding.is_current(session.entry.file, look, session.dialect)
                # An append of the daemon is reported too; so is a rewrite right after it, with the same size and time.
                if is_folded and not self._store.committer.files.has_another_end(session, look):
                    return False
                await self._listener.read_on(session)
        return True

    def _session(self, folder: Folder, session_id: str) -> Session | None:
        """The session of a file in this folder."""
        session = self._store.catalog.by_id.get(session_id)
        if session is not None and session.folder is not folder:
            return self._twins.get((folder.agent_id, session_id))
        return session

    async def _adopt(self, folder: Folder, name: str) -> None:
        problems: list[scan.Problem] = []

        def read() -> Session | None:
            rows = self._indexes.rows(folder)
            return scan.read_session(folder, name, None, rows, self._store.settings, problems=problems)

        try:
            # One at a time: two concurrent calls would adopt the same file twice.
            async with self._adopt_lock:
                if self._session(folder, name[: -len(layout.SUFFIX)]) is not None:
                    return
                session: Session | None = await self._store.run_for_feed(read)
        except OSError as error:
            is_retried = self.retries.retry_if_passing((folder.agent_id, name), error)
            if not is_retried and not isinstance(error, FileNotFoundError):
                problem = scan.problem_of(scan.path_of(folder, name), error)
                log.warning("passed over", path=problem.path, reason=problem.reason)
            return  # removed again, or not readable, which `doctor` reports
        for one in problems:
            log.warning("passed over", path=one.path, reason=one.reason)
        folder.waiting.discard(name)
        if session is None or name in self._store.busy_names or self._session(folder, session.session_id) is not None:
            return  # no transcript, or not complete yet; or the daemon has created it meanwhile
        session = self._returning_session(session)
        catalog = self._store.catalog
        namesake = catalog.by_id.get(session.session_id)
        if namesake is not None and not namesake.folder.archived:
            for twin in (namesake, session):
                self._twins[twin.folder.agent_id, twin.session_id] = twin
        elif namesake is not None and not exists(namesake.folder.fd, name):
            catalog.remove(namesake)  # taken out of the archive
            namesake.folder.dirty = True
        catalog.add(session)
        folder.dirty = True
        self._listener.session_appeared(session)

    def _returning_session(self, read: Session) -> Session:
        """The earlier `Session` object of a file that was removed and is back, if a run still has it; else `read`.

        The file may have another name now: renaming a transcript must not take it from those who write to it.
        """
        self._drop_renamed(read)
        place = (read.folder.agent_id, read.session_id)
        known = self._removed.get(place)
        if known is None:
            known = next((left for left in self._removed.values() if _is_renamed(left, read)), None)
        if known is None or known.key != read.key or self._store.catalog.has(known):
            return read
        del self._removed[known.folder.agent_id, known.session_id]
        known.restore_from(read)
        return known

    def _drop_renamed(self, read: Session) -> None:
        """Drop the session under the old name of a renamed file, since some watchers report the new name first."""
        holder = self._store.catalog.by_key.get(read.key)
        if holder is not None and _is_renamed(holder, read) and not exists(holder.folder.fd, holder.file_name):
            self._drop(holder)

    async def _read_index(self, folder: Folder) -> None:
        """Read an index that could not be read at the start, for the sessions that only it knows."""
        async with self._adopt_lock:
            found: list[Session] = await self._store.run_for_feed(self._indexes.read_sessions, folder, [])
            folder.waiting.discard(layout.INDEX)
            folder.dirty = True
            for session in found:
                self._store.catalog.add(session)
                self._listener.session_appeared(session)

    def _on_gone(self, directory: str, name: str) -> None:
        folder = self._by_path.get(directory)
        if folder is None:
            return
        if not name:
            self._folder_gone(folder)
            return
        session_id = layout.session_id_of(name)
        session = self._session(folder, session_id) if session_id is not None else None
        if session is not None and name not in self._store.busy_names and not exists(folder.fd, name):
            self._drop(session)
        elif session is None:
            folder.waiting.discard(name)

    def _drop(self, session: Session) -> None:
        self._store.catalog.remove(session)
        self._twins.pop((session.folder.agent_id, session.session_id), None)
        self._removed[session.folder.agent_id, session.session_id] = session
        session.folder.dirty = True
        self._listener.session_disappeared(session, "file removed")

    def _folder_gone(self, folder: Folder) -> None:
        """The folder was removed or moved away, with everything in it."""
        store = self._store
        # There may be another folder of the same name already: creating sessions waits until that was checked.
        store.presence.mark_unknown()
        del self._by_path[self._path(folder.agent_id)]
        removed = [store.folders.pop(folder.agent_id)]
        if folder.agent_id in store.archives:
            removed.append(store.archives.pop(folder.agent_id))
        for session in [*store.catalog.by_id.values(), *self._twins.values()]:
            if session.folder in removed:
                self._drop(session)
        # A worker thread may still be using a descriptor: closed now, its number could become another file's.
        self._retired += removed

    def recheck_store_path(self) -> None:
        """Check again: a folder is no longer at its path. A move of a folder above the store triggers no watcher."""
        if self._watcher is not None:
            self.retries.retry_if_passing(("", ""), OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))

    async def _check_everything(self) -> None:
        """Compare everything with the disk: at the start, after missed events, and after a folder was removed."""
        await self._store.presence.wait_until_back(self._rescan)

    async def _rescan(self) -> None:
        assert self._watcher is not None
        # The root is watched too, because the removal of a folder is reported only to a watch of its own or its parent.
        with contextlib.suppress(NotADirectoryError):
            self._watcher.add(self._root)
        self._watcher.add(self._agents)
        for path, folder in list(self._by_path.items()):
            if not is_at(path, folder.fd):
                self._folder_gone(folder)
        try:
            for agent_id in filter(layout.is_agent_folder, sorted(os.listdir(self._agents))):
                await self._scan_folder(agent_id)
        except OSError as error:
            if not self.retries.retry_if_passing(("", ""), error):
                raise
            return
        if self._watched_early.issuperset(self._store.folders):
            return
        for count, session in enumerate([*self._store.catalog.by_id.values(), *self._twins.values()]):
            if count % 256 == 0:
                await trio.lowlevel.checkpoint()
            folder = session.folder
            if not (folder.archived or folder.agent_id in self._watched_early):
                self._on_gone(self._path(folder.agent_id), session.file_name)

    def _find_twins(self) -> None:
        by_id = self._store.catalog.by_id
        if not self._store.catalog.has_twins:
            return
        for session in self._store.catalog.by_key.values():
            if session.folder.source is not None:
                continue
            namesake = by_id[session.session_id]
            if namesake is not session:
                for twin in (session, namesake):
                    self._twins[twin.folder.agent_id, twin.session_id] = twin


def _is_renamed(before: Session, read: Session) -> bool:
    """Whether what was read is the transcript of `before` under another name."""
    same_folder = before.folder is read.folder and before.key == read.key
    return same_folder and before.entry.file.inode == read.entry.file.inode != 0
