"""The sessions of other programs: find them, keep them up to date with their files, publish what changes.

What a program appends goes to the feed, as for our own sessions. Nothing is ever written below a root. Knows roots and
their folders. Does not know formats.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import trio

from sessiond.config.settings import SourcesConfig
from sessiond.errors import NoThread, reason_of
from sessiond.events.delayed_retry import DelayedRetry
from sessiond.events.feed import TranscriptFeed
from sessiond.events.watch import Kind
from sessiond.events.watch_backend import NameChanged, NameGone, WatchEvent
from sessiond.model.dialects import DIALECTS, TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.keys import MACHINE
from sessiond.sources import findings, keeping, machines, reading, snapshot, table
from sessiond.sources.crowds import LEAST_CROWD, look_at_crowd, sort_into_batches
from sessiond.sources.finder import SourceRoot
from sessiond.sources.first_reading import read_all
from sessiond.sources.root import OpenRoot
from sessiond.sources.root_folders import RootFile, RootFolders
from sessiond.sources.session_files import SessionFiles
from sessiond.sources.snapshot import SnapshotSaver
from sessiond.sources.watching import POLL_S, FolderWatches, open_watches
from sessiond.store.catalog import Session
from sessiond.store.finding import Finding
from sessiond.store.refusals import read_error
from sessiond.store.store import SessionStore
from sessiond.tasks import own_threads

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
        by_label: dict[str, OpenRoot] = {}
        self._snapshot: snapshot.Snapshot = {}
        # Held while roots and folders are opened, closed and looked through.
        self._changing = trio.Lock()
        self._natives: dict[str, None] = {}
        self._requested = trio.Event()
        self._watches: FolderWatches
        self._retries = DelayedRetry[tuple[str, str]](self._retry)
        self.listed = trio.Event()
        saver = self._saver = SnapshotSaver(store, self._run_sync, self.listed.is_set)
        self._keeper = keeping.FileKeeper(by_label, self._run_sync)
        self._files = SessionFiles(
            store.catalog,
            feed,
            by_label,
            self._run_sync,
            keeper=self._keeper,
            note_change=saver.note_change,
            is_busy=self._is_busy,
            retries=self._retries,
        )
        self._roots = RootFolders(
            by_label,
            store,
            self._files,
            self._run_sync,
            home=self._home,
            dialects=dialects,
            keeper=self._keeper,
            retries=self._retries,
        )

    def _is_busy(self) -> bool:
        """Whether somebody waits for the disk. May be asked in any thread."""
        return self._store.committer.is_busy

    @property
    def partial_count(self) -> int:
        """How many sessions were not read whole yet."""
        return sum(session.is_partial for session in self._store.catalog.foreign.values())

    async def complete(self, session: Session) -> None:
        """Return when the session was read whole and can be opened at once. StorageError or Unsupported where not."""
        reading.refuse_compressed(session)
        await self._files.queue.complete(session)
        if session.folder.makes(session.place):
            try:
                await self._store.run_sync(session.folder.status_of, session.place)
            except OSError as error:
                raise read_error(error, session) from None

    def key_of(self, path: str, native_id: str) -> str | None:
        """The key of the session that a program keeps in this file, which need not be there yet; None where no program
        would keep the session with this id there.
        """
        if os.path.normpath(path) != path:
            return None
        for root in self._find_wanted(self._settings()).values():
            finder = root.finder
            if finder.is_kept or finder.is_ours or finder.database is not None:
                continue
            for folder in dict.fromkeys((str(root.path), os.path.realpath(root.path))):
                if path.startswith(folder + "/") and finder.names(path[len(folder) + 1 :], native_id):
                    return f"{finder.name}:{native_id}"
        return None

    async def save(self) -> None:
        """Save what was read, for the next start."""
        await self._saver.save()

    def findings(self) -> list[Finding]:
        """What `doctor` says about the sources."""
        config = self._settings()
        polled = len(self._watches.polled) if self.listed.is_set() else 0
        found = findings.describe(config, self._roots.by_label, self._find_wanted(config), polled)
        return [*found, *self._keeper.findings()]

    def name_first_bad_lines(self, found: list[Finding], record_limit: int) -> Iterator[None]:
        """See `findings.name_first_bad_lines`."""
        sessions = [session for root in self._roots.by_label.values() for session in root.sessions.values()]
        return findings.name_first_bad_lines(found, sessions, record_limit)

    def reconfigure(self) -> None:
        """The configuration has changed: sources are opened and closed accordingly."""
        self._requested.set()

    async def run(self) -> None:
        """Show the sessions of other programs and follow their folders, until cancelled."""
        async with open_watches(self._kind, self._most_watches) as self._watches:
            self._roots.watches = self._watches
            try:
                async with trio.open_nursery() as nursery:
                    self._roots.nursery = nursery
                    await self._list_and_follow(nursery)
            finally:
                # Only now: no thread reads below them any more.
                self._roots.close_all()

    async def _list_and_follow(self, nursery: trio.Nursery) -> None:
        self._store.catalog.natives.changed = self._note_native
        if self._find_wanted(self._settings()):
            with contextlib.suppress(OSError):  # then the files are read
                self._snapshot = await self._run_sync(snapshot.load, self._store.root_fd)
        async with self._changing:
            found = await self._update_roots()
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
                found = await self._update_roots()
            await self._add_listed(found)

    # Roots.

    def _find_wanted(self, config: SourcesConfig) -> dict[str, SourceRoot]:
        """Where the sources lie that are not switched off, and what is kept of them."""
        programs = table.find_roots(config, self._environ, self._home)
        found = {name: root for name, root in programs.items() if root.finder.name in self._dialects}
        kept = keeping.kept_roots(self._store.path, found.values()) if config.keep else {}
        # Which machines there are is said elsewhere in the configuration, and by their folders.
        elsewhere = {MACHINE: machines.find_root(self._store.path)} if MACHINE in self._dialects else {}
        return found | kept | elsewhere

    async def _update_roots(self) -> list[RootFile]:
        return await self._roots.update(self._find_wanted(self._settings()))

    async def _add_listed(self, found: list[RootFile]) -> None:
        """Show the sessions of roots that were opened. What happens to a file while it is read is looked at afterwards,
        when its session is known.
        """
        if self.listed.is_set() and len(found) <= _MOST_PUBLISHED:
            for root, file in found:
                async with self._changing:
                    await self._files.check(root, file.place)
            return
        for batch in await self._sort_into_batches(found):
            async with self._changing:
                await self._add_batch(batch)

    async def _sort_into_batches(self, found: list[RootFile]) -> list[list[RootFile]]:
        """As `sort_into_batches`, in a thread: of ten thousand it would take the loop ten milliseconds."""
        try:
            batches: list[list[RootFile]] = await self._run_sync(sort_into_batches, found, self._snapshot)
        except NoThread:
            return sort_into_batches(found, self._snapshot)
        return batches

    async def _add_batch(self, found: list[RootFile]) -> None:
        """Show sessions that are some of many. At the start nothing is published."""
        batch = [one for one in found if not self._files.shows_original(*one)]
        try:
            entries: list[Entry | OSError | None] = await self._run_sync(read_all, batch, self._snapshot, self._is_busy)
        except OSError as error:  # there is no thread
            entries = [error] * len(batch)
        for (root, file), entry in zip(batch, entries, strict=True):
            if entry is not None and self._roots.by_label.get(root.label) is root:
                self._files.add_read(root, file, entry, publish=self.listed.is_set())

    async def _follow(self) -> None:
        while True:
            events = await self._watches.next_batch()
            seen = await self._add_crowd(events)
            for event in events:
                if isinstance(event, NameChanged) and f"{event.directory}/{event.name}" in seen:
                    continue  # what happens to it from now on has another event
                async with self._changing:
                    found = await self._handle(event)
                await self._add_listed(found)

    async def _add_crowd(self, events: list[WatchEvent]) -> set[str]:
        """Show the sessions in many new files together; the paths of these, none where there are only a few."""
        if len(events) <= LEAST_CROWD:
            return set()
        try:
            roots = list(self._roots.by_label.values())
            found: list[RootFile] = await self._run_sync(look_at_crowd, roots, events)
        except OSError:  # there is no thread
            return set()
        await self._add_listed(found)
        return {root.path_of(file.place) for root, file in found if file.place in root.sessions}

    async def _handle(self, event: WatchEvent) -> list[RootFile]:
        """Look at what an event is about; the files of roots that were opened because of it."""
        if not isinstance(event, NameChanged | NameGone):
            return await self._look_again()
        self._watches.note_activity(event.directory)
        found: list[RootFile] = []
        if self._roots.waits_in(event.directory, event.name):
            found = await self._update_roots()
        for root in list(self._roots.by_label.values()):
            folder = root.place_of(event.directory)
            if folder == "" and isinstance(event, NameGone) and not root.is_kept:
                # Its removal may follow, which the root itself is not told of as long as it is open.
                root.watch_parent(self._watches)
            if root.is_lost(event.directory):
                await self._roots.close(root, "its folder was moved away")
                found += await self._update_roots()
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
        files, known = await self._roots.list_below(root, folder), set(root.places_below(folder))
        listed = {file.place for file in files}
        gone = known - listed
        if len(listed - known) > _MOST_PUBLISHED:
            for batch in await self._sort_into_batches([(root, file) for file in files if file.place not in known]):
                await self._add_batch(batch)
        # Of a hundred thousand most are as they were.
        changed = sorted(file.place for file in files if not root.has_read(file))
        await self._check_all(root, [*changed, *sorted(gone)])

    async def _on_gone(self, root: OpenRoot, place: str, *, is_folder: bool) -> list[RootFile]:
        if is_folder:
            root.watched.discard(place)
            self._watches.forget(root.path_of(place))
            if not place:
                await self._roots.close(root, "its folder was removed")
                return await self._update_roots()
            # A root that was opened anew may have watched it already: it may be there again.
            await self._check_folder(root, place)
            return []
        await self._check_all(root, root.places_below(place))
        return []

    async def _check_all(self, root: OpenRoot, places: Iterable[str]) -> None:
        """Look at files of which something may be known. Others have their turn after a few."""
        for count, place in enumerate(places, 1):
            if count % 64 == 0:
                await trio.lowlevel.checkpoint()
            await self._files.check(root, place)

    async def _look_again(self) -> list[RootFile]:
        """Events were missed: look at everything."""
        found = await self._update_roots()
        for root in list(self._roots.by_label.values()):
            await self._check_folder(root, "")
        return found

    async def _retry(self, what: tuple[str, str]) -> None:
        name, place = what
        async with self._changing:
            root = self._roots.by_label.get(name)
            if root is None:
                found = await self._update_roots()
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
                await self._look_at_polled(path)
            if not self._watches.polled:
                self._watches.has_polled = trio.Event()

    async def _look_at_polled(self, path: str) -> None:
        found: list[RootFile] = []
        async with self._changing:
            if self._roots.waits_in(path):
                found = await self._update_roots()
            for root in list(self._roots.by_label.values()):
                folder = root.place_of(path)
                if folder is not None:
                    await self._check_folder(root, folder)
        await self._add_listed(found)
