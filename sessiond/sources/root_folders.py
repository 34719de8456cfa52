"""The roots that are open, and the folders above those that are missing. Opens, closes, lists and watches them.

Knows watches and folders. Does not know files or sessions, beyond telling `SessionFiles` of what it closes and lists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import trio

from sessiond.events.delayed_retry import DelayedRetry
from sessiond.model.dialects import TranscriptDialect
from sessiond.sources import reading
from sessiond.sources.finder import SourceRoot
from sessiond.sources.keeping import FileKeeper
from sessiond.sources.reading import ListedFile
from sessiond.sources.root import OpenRoot
from sessiond.sources.session_files import SessionFiles
from sessiond.sources.watching import FolderWatches
from sessiond.store.store import SessionStore
from sessiond.tasks import RunSync

# A root and one of the files below it.
RootFile = tuple[OpenRoot, ListedFile]


class RootFolders:
    """Keeps `by_label`, the roots that are open, as they are wanted and there. Not for several
    tasks at once; `watches` and `nursery` are set before it is used."""

    watches: FolderWatches
    nursery: trio.Nursery

    def __init__(
        self,
        by_label: dict[str, OpenRoot],
        store: SessionStore,
        files: SessionFiles,
        run_sync: RunSync,
        *,
        home: Path,
        dialects: Mapping[str, TranscriptDialect],
        keeper: FileKeeper,
        retries: DelayedRetry[tuple[str, str]],
    ) -> None:
        self.by_label, self._store, self._files = by_label, store, files
        self._run_sync, self._home, self._dialects = run_sync, home, dialects
        self._keeper, self._retries = keeper, retries
        # For a root without a folder: the nearest folder above it, which is watched, and the name that is missing.
        self._missing: dict[str, tuple[str, str]] = {}

    def waits_in(self, directory: str, name: str | None = None) -> bool:
        """Whether a folder is missing that would appear in a directory, under a name."""
        return any(directory == above and name in (None, missing) for above, missing in self._missing.values())

    async def update(self, expected: Mapping[str, SourceRoot]) -> list[RootFile]:
        """Close the roots that are not wanted any more, open those that are there; the files in these."""
        for name, known in list(self.by_label.items()):
            if known.configured != expected.get(name):
                await self.close(known, "its source was switched off", is_gone=False)
        for name in [name for name in self._missing if name not in expected]:
            self._stop_waiting(name)
        found: list[RootFile] = []
        opened: set[str] = set()
        for name, wanted in expected.items():
            root = self.by_label.get(name)
            if root is None:
                root = self._open_root(name, wanted)
            elif not (root.is_kept and root.name in opened):
                continue  # else the program may have another folder now, without some of the files
            if root is not None:
                opened.add(name)
                found += [(root, file) for file in await self.list_below(root, "")]
        return found

    def _open_root(self, name: str, wanted: SourceRoot) -> OpenRoot | None:
        self._stop_waiting(name)
        if wanted.finder.is_kept and not self._keeper.make_folder(self._store.root_fd, wanted):
            return None
        try:
            root = OpenRoot(wanted, self._dialects[wanted.finder.name], self._store.record_limit)
        except (OSError, ValueError) as error:
            if not (isinstance(error, OSError) and self._retries.retry_if_passing((name, ""), error)):
                self._watch_above(name, wanted.path)
                if isinstance(error, FileNotFoundError) and os.path.exists("/".join(self._missing.get(name, ()))):
                    return self._open_root(name, wanted)
            return None
        self.by_label[name] = root
        if root.is_kept:
            self._keeper.note_all(root.name)
        if root.follows_parent(self._home):
            root.watch_parent(self.watches)
        return root

    def _watch_above(self, name: str, path: Path) -> None:
        """Watch the nearest folder above a missing root, in which the next one will appear, or has by then."""
        while path != path.parent:
            above = os.path.realpath(path.parent)
            try:
                if not self._is_watched(above):
                    self.watches.add(above, names_only=True)
            except OSError:
                path = path.parent
                continue
            self._missing[name] = above, path.name
            return

    def _stop_waiting(self, name: str) -> None:
        above, _ = self._missing.pop(name, ("", ""))
        if above and not self._is_watched(above):
            self.watches.forget(above)

    def _is_watched(self, path: str) -> bool:
        """Whether a folder is watched for another reason too."""
        return any(path == above for above, _ in self._missing.values()) or any(
            (path == root.parent and root.is_parent_watched) or root.place_of(path) in root.watched
            for root in self.by_label.values()
        )

    async def close(self, root: OpenRoot, reason: str, *, is_gone: bool = True) -> None:
        """Show nothing of a root any more; what is kept of it stays where it `is_gone`."""
        del self.by_label[root.label]
        if not self._is_watched(root.parent):
            self.watches.forget(root.parent)
        for folder in root.watched:
            self.watches.forget(root.path_of(folder))
        try:
            for count, session in enumerate(list(root.sessions.values()), 1):
                if count % 64 == 0:  # others have their turn: there may be thousands
                    await trio.lowlevel.checkpoint()
                if not (is_gone and self._files.show_kept(root, session)):
                    self._files.remove(root, session, reason)
        finally:
            self.nursery.start_soon(root.close_later)

    async def list_below(self, root: OpenRoot, folder: str) -> list[ListedFile]:
        """Watch a folder and those below it, and list the files. Watched first, so that nothing is missed."""
        try:
            if folder not in root.watched:
                self._watch_all(root, await self._run_sync(root.find_folders, folder))
            listing: reading.Listing = await self._run_sync(root.list_below, folder)
            while self._watch_all(root, listing.folders):
                listing = await self._run_sync(root.list_below, folder)
        except OSError as error:  # there is no thread
            listing = reading.Listing([], [], [], [(folder, error)])
        self._files.note_listed(root, listing)
        return listing.files

    def _watch_all(self, root: OpenRoot, folders: list[str]) -> bool:
        """Watch the folders that are not watched yet; whether there were any."""
        fresh = [one for one in folders if one not in root.watched]
        return bool([one for one in fresh if self.watch(root, one)])

    def watch(self, root: OpenRoot, folder: str) -> bool:
        """Whether a folder below a root is watched now; one that is gone is watched if it comes back."""
        try:
            self.watches.add(root.path_of(folder))
        except OSError as error:
            self._retries.retry_if_passing((root.label, folder), error)
            return False
        root.watched.add(folder)
        return True

    def close_all(self) -> None:
        """Close their descriptors. Nothing may read below them any more."""
        for root in self.by_label.values():
            root.close()
