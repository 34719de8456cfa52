"""The sessions of other programs: find them, keep them up to date with their files, publish what changes.

What a program appends goes to the feed, as for our own sessions. Nothing is ever written below a root. Knows roots and
their folders. Does not know formats.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
import trio

from sessiond.config.settings import SourcesConfig
from sessiond.errors import reason_of
from sessiond.events.delayed_retry import DelayedRetry
from sessiond.events.feed import TranscriptFeed
from sessiond.events.watch import Kind
from sessiond.events.watch_backend import NameChanged, NameGone, WatchEvent
from sessiond.model.dialects import DIALECTS, TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.sources import findings, keeping, reading, snapshot, table
from sessiond.sources.finder import SourceRoot
from sessiond.sources.reading import ListedFile
from sessiond.sources.root import OpenRoot
from sessiond.sources.session_files import SessionFiles
from sessiond.sources.snapshot import SnapshotSaver
from sessiond.sources.watching import POLL_S, FolderWatches, open_watches
from sessiond.store.catalog import Session
from sessiond.store.checks import Finding
from sessiond.store.store import SessionStore
from sessiond.tasks import own_threads

log = structlog.get_logger("sessiond.sources")

# Read in one go in a thread before others have their turn.
_BATCH = 16
# The messages in a folder that appears later are published if it has no more sessions; of more, which were moved there,
# only that they are there.
_MOST_PUBLISHED = 100


class Sources:
    """All sources. `run` belongs to the background nursery, after our own sessions were loaded.

    `settings` gives the current configuration; `reconfigure` is called when it has changed. `listed` is set when the
    sessions that were there at the start are in the catalog.
    """

    def __init__(
        self,
        store: SessionStore,
        feed: TranscriptFeed,
        settings: Callable[[], SourcesConfig],
        *,
        environ: Mapping[str, str],
        kind: Kind,
        dialects: Mapping[str, TranscriptDialect] = DIALECTS,
        most_watches: int | None = None,
    ) -> None:
        self._store, self._settings = store, settings
        self._environ, self._kind = environ, kind
        self._home = Path(environ.get("HOME") or "/")
        self._dialects, self._most_watches = dialects, most_watches
        self._run_sync = own_threads(1)
        self._roots: dict[str, OpenRoot] = {}
        # For a source without a folder: the nearest folder above it, which is watched, and the name that is missing.
        self._missing: dict[str, tuple[str, str]] = {}
        self._snapshot: snapshot.Snapshot = {}
        # Held while roots and folders are opened, closed and looked through.
        self._changing = trio.Lock()
        self._natives: dict[str, None] = {}
        self._requested = trio.Event()
        self._watches: FolderWatches
        self._nursery: trio.Nursery
        self._retries = DelayedRetry[tuple[str, str]](self._retry)
        self.listed = trio.Event()
        saver = self._saver = SnapshotSaver(store, self._run_sync, self.listed.is_set)
        self._keeper = keeping.FileKeeper(self._roots, self._run_sync)
        shared = (store.catalog, feed, self._roots, self._run_sync)
        self._files = SessionFiles(*shared, keeper=self._keeper, note_change=saver.note_change, retries=self._retries)

    @property
    def partial_count(self) -> int:
        """How many sessions were not read whole yet."""
        return sum(session.is_partial for session in self._store.catalog.foreign.values())

    async def complete(self, session: Session) -> None:
        """Return when the session was read whole. StorageError or Unsupported where it cannot be read."""
        reading.refuse_compressed(session)
        await self._files.queue.complete(session)

    async def save(self) -> None:
        """Save what was read, for the next start."""
        await self._saver.save()

    def findings(self) -> list[Finding]:
        """What `doctor` says about the sources."""
        config = self._settings()
        polled = len(self._watches.polled) if self.listed.is_set() else 0
        return [*findings.describe(config, self._roots, self._find_wanted(config), polled), *self._keeper.findings()]

    def reconfigure(self) -> None:
        """The configuration has changed: sources are opened and closed accordingly."""
        self._requested.set()

    async def run(self) -> None:
        """Show the sessions of other programs and follow their folders, until cancelled."""
        async with open_watches(self._kind, self._most_watches) as self._watches:
            try:
                async with trio.open_nursery() as self._nursery:
                    await self._list_and_follow(self._nursery)
            finally:
                # Only now: no thread reads below them any more.
                for root in self._roots.values():
                    root.close()

    async def _list_and_follow(self, nursery: trio.Nursery) -> None:
        self._store.catalog.natives.changed = self._note_native
        if self._find_wanted(self._settings()):
            with contextlib.suppress(OSError):  # then the files are read
                self._snapshot = await self._run_sync(snapshot.load, self._store.root_fd)
        async with self._changing:
            found = await self._open_roots()
        nursery.start_soon(self._follow)
        nursery.start_soon(self._retries.run)
        nursery.start_soon(self._poll)
        await self._add_listed(found)
        self._snapshot = {}
        self.listed.set()
        nursery.start_soon(self._files.queue.run)
        nursery.start_soon(self._saver.run)
        nursery.start_soon(self._keeper.run)
        await self._apply_requests()

    def _note_native(self, native_id: str) -> None:
        self._natives[native_id] = None
        self._requested.set()

    async def _apply_requests(self) -> None:
        while True:
            await self._requested.wait()
            self._requested = trio.Event()
            async with self._changing:
                natives, self._natives = list(self._natives), {}
                for native_id in natives:
                    await self._files.check_native(native_id)
                found = await self._open_roots()
            await self._add_listed(found)

    # Roots.

    def _find_wanted(self, config: SourcesConfig) -> dict[str, SourceRoot]:
        """Where the sources lie that are not switched off, and what is kept of them."""
        found = table.find_roots(config, self._environ, self._home)
        found = {name: root for name, root in found.items() if root.finder.name in self._dialects}
        return found | (keeping.kept_roots(self._store.path, found.values()) if config.keep else {})

    async def _open_roots(self) -> list[tuple[OpenRoot, ListedFile]]:
        """Close the roots that are not wanted any more, open those that are there; the files in these."""
        expected = self._find_wanted(self._settings())
        for name, known in list(self._roots.items()):
            if known.configured != expected.get(name):
                self._close_root(known, "its source was switched off", is_gone=False)
        for name in [name for name in self._missing if name not in expected]:
            self._stop_waiting(name)
        found: list[tuple[OpenRoot, ListedFile]] = []
        opened: set[str] = set()
        for name, wanted in expected.items():
            root = self._roots.get(name)
            if root is None:
                root = self._open_root(name, wanted)
            elif not (root.is_kept and root.name in opened):
                continue  # else the program may have another folder now, without some of the files
            if root is not None:
                opened.add(name)
                found += [(root, file) for file in await self._list(root, "")]
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
        self._roots[name] = root
        if root.is_kept:
            self._keeper.note_all(root.name)
        if root.follows_parent(self._home):
            root.watch_parent(self._watches)
        return root

    def _watch_above(self, name: str, path: Path) -> None:
        """Watch the nearest folder above a missing root, in which the next one will appear, or has by then."""
        while path != path.parent:
            above = os.path.realpath(path.parent)
            try:
                if not self._is_watched(above):
                    self._watches.add(above, names_only=True)
            except OSError:
                path = path.parent
                continue
            self._missing[name] = above, path.name
            return

    def _stop_waiting(self, name: str) -> None:
        above, _ = self._missing.pop(name, ("", ""))
        if above and not self._is_watched(above):
            self._watches.forget(above)

    def _is_watched(self, path: str) -> bool:
        """Whether a folder is watched for another reason too."""
        return any(path == above for above, _ in self._missing.values()) or any(
            (path == root.parent and root.is_parent_watched) or root.place_of(path) in root.watched
            for root in self._roots.values()
        )

    def _close_root(self, root: OpenRoot, reason: str, *, is_gone: bool = True) -> None:
        del self._roots[root.label]
        if not self._is_watched(root.parent):
            self._watches.forget(root.parent)
        for folder in root.watched:
            self._watches.forget(root.path_of(folder))
        for session in list(root.sessions.values()):
            if not (is_gone and self._files.show_kept(root, session)):
                self._files.remove(root, session, reason)
        self._nursery.start_soon(root.close_later)

    async def _list(self, root: OpenRoot, folder: str) -> list[ListedFile]:
        """Watch a folder and those below it, and list the files. Watched first, so that nothing is missed."""
        while True:
            try:
                listing: reading.Listing = await self._run_sync(root.list_below, folder)
            except OSError as error:  # there is no thread
                listing = reading.Listing([], [], [], [(folder, error)])
            fresh = [one for one in listing.folders if one not in root.watched]
            if not [one for one in fresh if self._watch(root, one)]:
                break
        self._files.note_listed(root, listing)
        return listing.files

    def _watch(self, root: OpenRoot, folder: str) -> bool:
        """Whether it is watched now; a folder that is gone is watched if it comes back."""
        try:
            self._watches.add(root.path_of(folder))
        except OSError as error:
            self._retries.retry_if_passing((root.label, folder), error)
            return False
        root.watched.add(folder)
        return True

    async def _add_listed(self, found: list[tuple[OpenRoot, ListedFile]]) -> None:
        """Show the sessions of roots that were opened, newest first. At the start nothing is published."""
        if self.listed.is_set() and len(found) <= _MOST_PUBLISHED:
            for root, file in found:
                await self._files.check(root, file.place)
            return
        # What was kept comes last, of which most is there in the program's folder.
        found.sort(key=lambda one: (one[0].is_kept, -one[1].mtime_ns))
        for begin in range(0, len(found), _BATCH):
            batch = [one for one in found[begin : begin + _BATCH] if not self._files.shows_original(*one)]
            try:
                entries: list[Entry | OSError | None] = await self._run_sync(
                    self._files.read_all, batch, self._snapshot
                )
            except OSError as error:  # there is no thread
                entries = [error] * len(batch)
            for (root, file), entry in zip(batch, entries, strict=True):
                if entry is not None and self._roots.get(root.label) is root:
                    self._files.add_read(root, file, entry, publish=self.listed.is_set())

    async def _follow(self) -> None:
        while True:
            for event in await self._watches.next_batch():
                async with self._changing:
                    found = await self._handle(event)
                await self._add_listed(found)

    async def _handle(self, event: WatchEvent) -> list[tuple[OpenRoot, ListedFile]]:
        """Look at what an event is about; the files of roots that were opened because of it."""
        if not isinstance(event, NameChanged | NameGone):
            return await self._look_again()
        self._watches.note_activity(event.directory)
        found: list[tuple[OpenRoot, ListedFile]] = []
        if (event.directory, event.name) in self._missing.values():
            found = await self._open_roots()
        for root in list(self._roots.values()):
            folder = root.place_of(event.directory)
            if folder == "" and isinstance(event, NameGone) and not root.is_kept:
                # Its removal may follow, which the root itself is not told of as long as it is open.
                root.watch_parent(self._watches)
            if root.is_lost(event.directory):
                self._close_root(root, "its folder was moved away")
                found += await self._open_roots()
                continue
            if folder is None:
                continue
            place = f"{folder}/{event.name}" if folder and event.name else folder or event.name
            if isinstance(event, NameChanged):
                await self._on_changed(root, place)
            else:
                found += await self._on_gone(root, place, is_folder=not event.name)
        return found

    async def _on_changed(self, root: OpenRoot, place: str) -> None:
        if root.files is not None:
            await self._check_database(root, place)
            return
        described = root.finder.find_described(place)
        if described is not None:
            try:
                await self._files.describe(root, described)
            except OSError as error:
                self._retries.retry_if_passing((root.label, place), error)
        elif root.names_session(place) or not root.finder.enters(place):
            await self._files.check(root, place)
        else:
            await self._check_folder(root, place)

    async def _check_database(self, root: OpenRoot, place: str) -> None:
        """Something happened in the folder of a database: look at the sessions that have changed."""
        try:
            changed: list[str] = await self._run_sync(root.find_changed, place)
        except OSError as error:
            if not self._retries.retry_if_passing((root.label, place), error):
                root.note_odd(place if root.files is None else root.files.name, reason_of(error))
            return
        for one in changed:
            await self._files.check(root, one)

    async def _check_folder(self, root: OpenRoot, folder: str) -> None:
        """A folder is new, or may have changed unnoticed: look at everything in it."""
        if root.files is not None:
            await self._check_database(root, "")
            return
        files, known = await self._list(root, folder), set(root.places_below(folder))
        listed = {file.place for file in files}
        gone = known - listed
        if len(listed - known) > _MOST_PUBLISHED:
            await self._add_listed([(root, file) for file in files if file.place not in known])
        for count, place in enumerate([*sorted(listed), *sorted(gone)]):
            if count % 64 == 0:
                await trio.lowlevel.checkpoint()
            await self._files.check(root, place)

    async def _on_gone(self, root: OpenRoot, place: str, *, is_folder: bool) -> list[tuple[OpenRoot, ListedFile]]:
        if is_folder:
            root.watched.discard(place)
            self._watches.forget(root.path_of(place))
            if not place:
                self._close_root(root, "its folder was removed")
                return await self._open_roots()
            # A root that was opened anew may have watched it already: it may be there again.
            await self._check_folder(root, place)
            return []
        for known in root.places_below(place):
            await self._files.check(root, known)
        return []

    async def _look_again(self) -> list[tuple[OpenRoot, ListedFile]]:
        """Events were missed: look at everything."""
        found = await self._open_roots()
        for root in list(self._roots.values()):
            await self._check_folder(root, "")
        return found

    async def _retry(self, what: tuple[str, str]) -> None:
        name, place = what
        async with self._changing:
            root = self._roots.get(name)
            if root is None:
                found = await self._open_roots()
            else:
                found = []
                await self._on_changed(root, place)
        await self._add_listed(found)

    async def _poll(self) -> None:
        """Look now and then at the folders that cannot be watched."""
        while True:
            await self._watches.has_polled.wait()
            await trio.sleep(POLL_S)
            for path in list(self._watches.polled):
                async with self._changing:
                    for root in list(self._roots.values()):
                        folder = root.place_of(path)
                        if folder is not None:
                            await self._check_folder(root, folder)
            if not self._watches.polled:
                self._watches.has_polled = trio.Event()
