"""The agents' folders: which transcripts appear in them, change and go. Tells the feed which session to look at.

Watches every folder, lists it afterwards, and adopts what strangers put there. Knows the store and the watcher. Does
not know events or subscribers.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Protocol
from weakref import WeakValueDictionary

import structlog
import trio

from sessiond.events.delayed_retry import DelayedRetry
from sessiond.events.watch import Watcher
from sessiond.events.watch_backend import NameChanged, NameGone, Rescan
from sessiond.model.entry import Entry
from sessiond.store import folding, index, layout, scan
from sessiond.store.catalog import Folder, Session
from sessiond.store.presence import exists, stands_at
from sessiond.store.store import SessionStore

log = structlog.get_logger("sessiond.feed")
Foreign = dict[str, dict[str, Any]]


class FolderListener(Protocol):
    """Who is told."""

    async def read_on(self, session: Session) -> None:
        """The session's file changed."""

    def session_appeared(self, session: Session) -> None:
        """The session is new to the catalog."""

    def session_disappeared(self, session: Session, reason: str) -> None:
        """The session has left the catalog."""


class Folders:
    """Every agent's folder, under the path by which the watcher names it."""

    def __init__(self, store: SessionStore, news: FolderListener) -> None:
        self._store, self._news = store, news
        self._agents = str(store.path / layout.AGENTS)
        self._root = os.path.realpath(store.path)
        self._watcher: Watcher | None = None
        self._by_path: dict[str, Folder] = {}
        # Copies of a transcript under several agents share its id; the catalog finds one of them by it.
        self._twins: dict[tuple[str, str], Session] = {}
        # Those whose file went, for as long as somebody holds them: a run goes on when the file is there again.
        self._left: WeakValueDictionary[tuple[str, str], Session] = WeakValueDictionary()
        self._indexes: dict[str, tuple[tuple[int, ...], index.Index]] = {}
        self._retired: list[Folder] = []
        self._adopting = trio.Lock()
        # By agent and file; no file is the folder itself, no agent all of them.
        self.again = DelayedRetry[tuple[str, str]](self._look_again)
        store.on_displaced = self._look_for_it

    @property
    def backend(self) -> str:
        return self._watcher.backend if self._watcher is not None else "none"

    def folder_opened(self, folder: Folder) -> None:
        """The store opened a folder, or made it: watch it."""
        path = self._path(folder.agent_id)
        self._by_path[path] = folder
        if self._watcher is not None:
            with contextlib.suppress(OSError):
                self._watcher.add(self._parent(folder.agent_id))
                self._watcher.add(path)

    async def follow(self, watcher: Watcher) -> None:
        """Follow the watcher until cancelled."""
        self._watcher = watcher
        self._by_path = {self._path(agent_id): folder for agent_id, folder in self._store.folders.items()}
        self._find_twins()
        try:
            await self._look_around()
            async for batch in watcher:
                lost = any(
                    isinstance(event, Rescan) or (isinstance(event, NameGone) and not event.name) for event in batch
                )
                for event in batch:
                    match event:
                        case NameChanged(directory, name):
                            await self._on_changed(directory, name)
                        case NameGone(directory, name):
                            self._on_gone(directory, name)
                        case Rescan():
                            pass
                if lost:
                    await self._look_around()
        finally:
            for folder in self._retired:
                os.close(folder.fd)

    async def _look_again(self, what: tuple[str, str]) -> None:
        agent_id, name = what
        folder = self._store.folders.get(agent_id)
        if name and folder is not None:
            await self._look_at(folder, name)
        elif agent_id:
            await self._look_into(agent_id)
        else:
            await self._look_around()

    async def read_again(self, session: Session, again: DelayedRetry[Session]) -> Entry | None:
        """The entry of a session whose file was written anew without saying its key: adopted once more. None where
        there is no file. One that was emptied, or has no header, gets an entry without a key.
        """
        folder, name = session.folder, session.file_name

        def read() -> Entry:
            made = scan.read_session(
                folder, name, session.entry, self._foreign(folder), self._store.settings, problems=[]
            )
            if made is not None:
                return made.entry
            return folding.advance(folder.fd, session.entry, name, self._store.record_limit, collect=False).entry

        try:
            entry: Entry = await self._store.run_sync(read)
        except OSError as error:
            again.takes(session, error)
            return None
        return entry

    def _path(self, agent_id: str) -> str:
        return f"{self._agents}/{agent_id}/{layout.SESSIONS}"

    def _parent(self, agent_id: str) -> str:
        return f"{self._agents}/{agent_id}"

    async def _on_changed(self, directory: str, name: str) -> None:
        folder = self._by_path.get(directory)
        if folder is not None:
            await self._look_at(folder, name)
        elif directory == self._agents:
            if layout.is_agent_folder(name):
                await self._look_into(name)
        elif name == layout.SESSIONS and directory != self._root:
            await self._look_into(os.path.basename(directory))

    async def _look_into(self, agent_id: str) -> None:
        """A folder appeared, or may have changed unseen: watch it, then list it."""
        assert self._watcher is not None
        try:
            self._watcher.add(self._parent(agent_id))
            self._watcher.add(self._path(agent_id))
            folder = self._store.folder(agent_id)
            names = os.listdir(folder.fd)
            if layout.INDEX in folder.waiting:
                await self._read_index(folder)
        except OSError as error:
            self.again.takes((agent_id, ""), error)
            return
        for count, name in enumerate(names):
            if count % 256 == 0:
                await trio.lowlevel.checkpoint()
            await self._look_at(folder, name)

    async def _look_at(self, folder: Folder, name: str) -> None:
        session_id = layout.session_id_of(name)
        if session_id is None or name in self._store.busy_names:
            return
        session = self._session(folder, session_id)
        if session is None:
            await self._adopt(folder, name)
        elif not session.in_flight:  # else its commit reads on
            try:
                look = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            except FileNotFoundError:
                self._drop(session)  # some systems tell of a change and a removal in no order
            except OSError as error:
                self.again.takes((folder.agent_id, name), error)
            else:
                if not folding.is_current(session.entry.file, look):
                    await self._news.read_on(session)

    def _session(self, folder: Folder, session_id: str) -> Session | None:
        """The session of a file in this folder."""
        session = self._store.catalog.by_id.get(session_id)
        if session is not None and session.folder is not folder:
            return self._twins.get((folder.agent_id, session_id))
        return session

    async def _adopt(self, folder: Folder, name: str) -> None:
        problems: list[scan.Problem] = []

        def read() -> Session | None:
            return scan.read_session(folder, name, None, self._foreign(folder), self._store.settings, problems=problems)

        try:
            # One at a time: two who look at a file at once would both adopt it.
            async with self._adopting:
                if self._session(folder, name[: -len(layout.SUFFIX)]) is not None:
                    return
                session: Session | None = await self._store.run_sync(read)
        except OSError as error:
            if not self.again.takes((folder.agent_id, name), error) and not isinstance(error, FileNotFoundError):
                told = scan.problem_of(scan.path_of(folder, name), error)
                log.warning("passed over", path=told.path, reason=told.reason)
            return  # gone again, or not ours to read; doctor looks more closely
        for one in problems:
            log.warning("passed over", path=one.path, reason=one.reason)
        folder.waiting.discard(name)
        if session is None or name in self._store.busy_names or self._session(folder, session.session_id) is not None:
            return  # no transcript, or not yet; or the daemon has made it in the meantime
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
        self._news.session_appeared(session)

    def _returning_session(self, read: Session) -> Session:
        """The session that left and is back, as those know it who still hold it; else the one that was read.

        Under another name as well: whoever renames a transcript takes nothing from those who write to it.
        """
        self._drop_renamed(read)
        place = (read.folder.agent_id, read.session_id)
        known = self._left.get(place)
        if known is None:
            known = next((left for left in self._left.values() if _is_renamed(left, read)), None)
        if known is None or known.key != read.key or self._store.catalog.has(known):
            return read
        del self._left[known.folder.agent_id, known.session_id]
        known.come_back(read)
        return known

    def _drop_renamed(self, read: Session) -> None:
        """Some watchers tell of the new name first."""
        holder = self._store.catalog.by_key.get(read.key)
        if holder is not None and _is_renamed(holder, read) and not exists(holder.folder.fd, holder.file_name):
            self._drop(holder)

    def _foreign(self, folder: Folder) -> Foreign | None:
        """What another program's index says, None where that is not known yet; read once for many files that come
        together."""
        try:
            look = os.stat(layout.INDEX, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return {}
        mark = (look.st_ino, look.st_mtime_ns, look.st_size)
        known = self._indexes.get(folder.agent_id)
        if known is None or known[0] != mark or known[1].unread:
            known = self._indexes[folder.agent_id] = mark, index.load(folder.fd)
            folder.has_torn_index = known[1].torn
        return scan.foreign_of(known[1], folder, self._store.settings)

    async def _read_index(self, folder: Folder) -> None:
        """The index could not be read at the start: read it now, for the sessions that it alone knows."""
        problems: list[scan.Problem] = []

        def read() -> list[Session]:
            foreign = self._foreign(folder)
            if foreign is None:
                raise scan.IndexUnknown(layout.INDEX)
            return scan.settings_only(folder, foreign, self._store.settings, problems)

        async with self._adopting:
            made: list[Session] = await self._store.run_sync(read)
            folder.waiting.discard(layout.INDEX)
            folder.dirty = True
            for session in made:
                self._store.catalog.add(session)
                self._news.session_appeared(session)

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
        self._left[session.folder.agent_id, session.session_id] = session
        session.folder.dirty = True
        self._news.session_disappeared(session, "file removed")

    def _folder_gone(self, folder: Folder) -> None:
        """The folder was removed or moved away, with everything in it."""
        store = self._store
        # A copy may stand there already: whoever makes a session now waits until that was looked at.
        store.standing.doubt()
        del self._by_path[self._path(folder.agent_id)]
        gone = [store.folders.pop(folder.agent_id)]
        if folder.agent_id in store.archives:
            gone.append(store.archives.pop(folder.agent_id))
        for session in [*store.catalog.by_id.values(), *self._twins.values()]:
            if session.folder in gone:
                self._drop(session)
        # A worker thread may still be using a descriptor: closed now, its number could become another file's.
        self._retired += gone

    def _look_for_it(self) -> None:
        """Somebody found a folder in another place. Where a folder above the store was moved, no watcher tells."""
        if self._watcher is not None:
            self.again.takes(("", ""), OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))

    async def _look_around(self) -> None:
        """Look by path at what there is: at the start, when the watcher missed something, and when a folder went."""
        await self._store.standing.regain(self._rescan)

    async def _rescan(self) -> None:
        assert self._watcher is not None
        # Where it goes, everything goes: the watcher tells of a folder's own end only where that is watched.
        with contextlib.suppress(NotADirectoryError):
            self._watcher.add(self._root)
        self._watcher.add(self._agents)
        for path, folder in list(self._by_path.items()):
            if not stands_at(path, folder.fd):
                self._folder_gone(folder)
        try:
            for agent_id in filter(layout.is_agent_folder, sorted(os.listdir(self._agents))):
                await self._look_into(agent_id)
        except OSError as error:
            if not self.again.takes(("", ""), error):
                raise
            return
        for count, session in enumerate([*self._store.catalog.by_id.values(), *self._twins.values()]):
            if count % 256 == 0:
                await trio.lowlevel.checkpoint()
            if not session.folder.archived:
                self._on_gone(self._path(session.folder.agent_id), session.file_name)

    def _find_twins(self) -> None:
        by_id = self._store.catalog.by_id
        for session in self._store.catalog.by_key.values():
            namesake = by_id[session.session_id]
            if namesake is not session:
                for twin in (session, namesake):
                    self._twins[twin.folder.agent_id, twin.session_id] = twin


def _is_renamed(before: Session, read: Session) -> bool:
    """Whether what was read is the transcript of `before` under another name."""
    same_folder = before.folder is read.folder and before.key == read.key
    return same_folder and before.entry.file.inode == read.entry.file.inode != 0
