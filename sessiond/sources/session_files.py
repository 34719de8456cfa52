"""From a file of another program to its session in the catalog: shown, read on, replaced, removed, published.

Knows open roots, the catalog and the feed. Does not know folders or watches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec.structs import replace

from sessiond.errors import reason_of
from sessiond.events.delayed_retry import DelayedRetry
from sessiond.model.entry import Entry
from sessiond.model.event import Phase
from sessiond.sources import machines, reading
from sessiond.sources.finder import KEPT_PREFIX
from sessiond.sources.folding_queue import FoldingQueue
from sessiond.sources.keeping import FileKeeper, kept_name
from sessiond.sources.reading import FileReader, ListedFile, Listing
from sessiond.sources.root import OpenRoot
from sessiond.sources.unpacking import can_unpack
from sessiond.store.catalog import Catalog, Session
from sessiond.store.folding import Advance
from sessiond.tasks import RunSync

# A new file of this size at most is published message by message; a longer one was copied, and is folded first.
_PUBLISHED_BYTES = 1024 * 1024


class SessionNews(Protocol):
    """What gets the news: the feed."""

    def poke(self, session: Session) -> object:
        """The session's file is another one: read a step of it at once."""

    async def read_on(self, session: Session) -> None:
        """The session's file changed: read what is new."""

    def session_appeared(self, session: Session) -> None:
        """The session is new to the catalog."""

    def session_disappeared(self, session: Session, reason: str) -> None:
        """The session has left the catalog."""

    def session_completed(self, session: Session) -> None:
        """All of the session was read, of which only the ends were."""

    def publish(self, session: Session, phase: Phase, reason: str | None) -> None:
        """The session's row changed."""


class SessionFiles:
    """The sessions in the files below the roots. `note_change` is called when the snapshot is not up to date any more.

    `roots` are those that are open now, by their labels; `keeper` is told of every file to keep. Files with temporary
    errors are looked at again through `retries`, by the labels of their roots and their paths. `is_busy` tells, in any
    thread, whether somebody waits for the disk: then folding pauses.
    """

    def __init__(
        self,
        catalog: Catalog,
        news: SessionNews,
        roots: Mapping[str, OpenRoot],
        run_sync: RunSync,
        *,
        keeper: FileKeeper,
        note_change: Callable[[], None],
        is_busy: Callable[[], bool],
        retries: DelayedRetry[tuple[str, str]],
    ) -> None:
        self._catalog, self._news, self._roots = catalog, news, roots
        self._run_sync, self._keeper, self._note_change, self._retries = run_sync, keeper, note_change, retries
        self.queue = FoldingQueue(
            run_sync,
            reader_of=self._reader_of,
            on_folded=self._on_folded,
            on_failed=self._on_failed,
            is_busy=is_busy,
        )

    def add(
        self, root: OpenRoot, file: ListedFile, entry: Entry, *, publish: bool, read: Entry | None = None
    ) -> Session | None:
        """Show a session. None where another file, or a session of ours, is shown in its place. `read` is what was read
        of it by now, if that is not shown yet.
        """
        place = file.place
        if place in root.sessions:
            return None
        root.odd.pop(place, None)
        if not root.finder.is_ours and self._catalog.carrier_of(entry.session_id) is not None:
            root.covered[place] = entry.session_id
            return None
        rival = self._catalog.by_key.get(entry.session_key)
        kept = self._root_of(rival) if rival is not None else None
        if rival is not None and kept is not None and kept.is_kept and kept is not root:
            self._move(rival, kept, root, place)  # the program's file is back
            return rival
        if rival is not None and root.is_kept:
            return None
        if rival is not None and not self._gives_way(root, rival, file, read or entry):
            root.shadowed[place] = entry.session_key
            return None
        session = Session(entry.session_key, entry, root.folder, place=place)
        root.sessions[place] = session
        self._catalog.add(session)
        self._keeper.note(session)
        if session.is_partial and can_unpack(place):
            self.queue.add((session,))
        if publish:
            self._news.session_appeared(session)
        self._note_change()
        return session

    def add_read(self, root: OpenRoot, file: ListedFile, read: Entry | OSError, *, publish: bool) -> None:
        """Show what was read of a file that is one of many, or note why it could not be."""
        if isinstance(read, FileNotFoundError):
            pass  # removed meanwhile
        elif isinstance(read, OSError):
            self.note_failure(root, file.place, read)
        else:
            session = self.add(root, file, read, publish=False)
            if session is not None and publish:
                # That it is there, not what is in it: many were moved here.
                self._news.publish(session, "create", "found")

    def _gives_way(self, root: OpenRoot, rival: Session, file: ListedFile, entry: Entry) -> bool:
        """Whether another file of the same session or key is older, has no messages, or is gone; then its session is
        removed.

        Gemini CLI makes a file without messages each time that it goes on with a session in its older file.
        """
        try:
            look = root.look_at_name(rival.place)
        except OSError:
            look = None
        if look is not None:
            # After a reset there the newer transcript has the key, before anything is said in it.
            by = (lambda one: one.created_at) if root.finder.is_ours else _may_have_messages
            if (by(rival.entry), look.mtime_ns) >= (by(entry), file.mtime_ns):
                return False
        self.remove(root, rival, "a newer file has this session")
        if look is not None:
            root.shadowed[rival.place] = rival.key
        return True

    def remove(self, root: OpenRoot, session: Session, reason: str) -> None:
        """Show a session no more."""
        root.forget(session.place)
        self.queue.drop(session)
        if self._catalog.by_key.get(session.key) is session:
            self._catalog.remove(session)
            self._news.session_disappeared(session, reason)
        self._note_change()

    async def check(self, root: OpenRoot, place: str, *, grew: bool = False) -> None:
        """Something may have happened to a file: read on, show it, or remove it. It `grew`: more of it is known now."""
        try:
            # What is no file of lines is put together first.
            file = await self._run_sync(root.look_at, place) if root.makes(place) else root.look_at(place)
        except OSError as error:
            self.note_failure(root, place, error)
            return
        session = root.sessions.get(place)
        if file is None:
            await self._drop(root, place)
        elif session is None and self.shows_original(root, file):
            return
        elif session is None:
            await self._show(root, file)
        elif session.is_partial:
            if can_unpack(place):
                self.queue.add((session,), first=True)
        elif await self._is_another(root, session, file, grew=grew):
            self.remove(root, session, "another file stands in its place")
            await self._show(root, file)
            await self._check_kept(root, session)
        elif (session.entry.file.mtime_ns, session.entry.file.bytes) != (file.mtime_ns, file.size):
            await self._news.read_on(session)
            self._keeper.note(session)
            self._note_change()

    async def _is_another(self, root: OpenRoot, session: Session, file: ListedFile, *, grew: bool) -> bool:
        """Whether a file may be that of another session now: it was replaced, perhaps by one with another id or key in
        its first line; or it `grew`, and its key has come.
        """
        facts = session.entry.file
        is_replaced = facts.inode not in (0, file.inode)
        if not root.finder.is_ours:
            return is_replaced and root.finder.id_in_head
        if not is_replaced and not ((grew or facts.bytes != file.size) and machines.is_provisional(session)):
            return False
        try:
            entry: Entry | None = await self._run_sync(root.reader.identify, file)
        except OSError:
            return False  # reading it raises the same error, which is handled there
        return entry is None or entry.session_key != session.key

    async def _drop(self, root: OpenRoot, place: str) -> None:
        session = root.sessions.get(place)
        reason = root.odd.get(place)
        if session is None:
            root.forget(place)
        else:
            others = [other for other, key in root.shadowed.items() if key == session.key]
            if others or not self.show_kept(root, session):
                self.remove(root, session, "file removed")
            for other in others:
                del root.shadowed[other]
                await self.check(root, other)
            if others:
                await self._check_kept(root, session)
        if reason is not None:
            root.note_odd(place, reason)

    # Kept files.

    def shows_original(self, root: OpenRoot, file: ListedFile) -> bool:
        """Whether a file was kept whose session is shown from the program's own one, or as a session of ours."""
        if not root.is_kept:
            return False
        native_id = file.found.native_id
        is_ours = self._catalog.carrier_of(native_id) is not None
        return not is_ours and f"{root.name}:{native_id}" in self._catalog.by_key

    def show_kept(self, root: OpenRoot, session: Session) -> bool:
        """The file of a session is gone: show it from the one that was kept. False where there is none."""
        kept = self._roots.get(f"{KEPT_PREFIX}{root.name}")
        if kept is None or kept is root:
            return False
        place = kept_name(session)
        try:
            file = kept.look_at_name(place)
        except OSError as error:
            self.note_failure(kept, place, error)
            return False
        if file is None:
            return False
        self._move(session, root, kept, place)
        if file.inode != session.entry.file.inode:
            self._news.poke(session)  # a copy
        return True

    async def _check_kept(self, root: OpenRoot, session: Session) -> None:
        """A session was removed, and perhaps shown again: show it from its kept file if not."""
        kept = self._roots.get(f"{KEPT_PREFIX}{root.name}")
        if kept is not None and kept is not root and session.key not in self._catalog.by_key:
            await self.check(kept, kept_name(session))

    def _has_file(self, root: OpenRoot, session: Session) -> bool:
        try:
            return root.look_at_name(session.place) is not None
        except OSError:
            return False

    def _move(self, session: Session, root: OpenRoot, other: OpenRoot, place: str) -> None:
        """The file of a session is found elsewhere from now on."""
        root.forget(session.place)
        session.folder, session.place, session.activity.row = other.folder, place, None
        other.forget(place)
        other.sessions[place] = session
        self._keeper.note(session)
        self._news.publish(session, "patch", "moved")
        self._note_change()

    def _root_of(self, session: Session) -> OpenRoot | None:
        """The open root that has the session's file."""
        source = session.folder.source or ""
        for label in (source, f"{KEPT_PREFIX}{source}"):
            root = self._roots.get(label)
            if root is not None and root.sessions.get(session.place) is session:
                return root
        return None

    async def _show(self, root: OpenRoot, file: ListedFile) -> None:
        """A file is new: show it. What stands in a short one is published."""
        root.covered.pop(file.place, None)
        root.shadowed.pop(file.place, None)
        is_short = file.size <= _PUBLISHED_BYTES and not file.found.is_compressed
        try:
            entry: Entry | None = await self._run_sync(root.reader.identify, file)
            read = entry
            if entry is not None and (not is_short or entry.session_key in self._catalog.by_key):
                read = await self._run_sync(root.reader.read_ends, file, entry)
        except OSError as error:
            self.note_failure(root, file.place, error)
            return
        if entry is None or read is None or self._roots.get(root.label) is not root:
            return
        session = self.add(root, file, entry if is_short else read, publish=True, read=read)
        if session is not None and is_short:
            await self._news.read_on(session)

    async def describe(self, root: OpenRoot, place: str) -> None:
        """A file beside a session changed, which says its title."""
        session = root.sessions.get(place)
        if session is None:
            return
        found = await self._run_sync(root.finder.facts_beside, root.folder.fd, place)
        source = session.entry.source
        if root.sessions.get(place) is not session or source is None or found == source.found:
            return
        begun = reading.begin_again(replace(session.entry, source=replace(source, found=found))).source
        if begun is not None and begun.title is not None and begun.title_rank >= source.title_rank:
            source = replace(source, title=begun.title, title_rank=begun.title_rank)
        self._catalog.replace(session, replace(session.entry, source=replace(source, found=found)))
        self._news.publish(session, "patch", "title")
        self._keeper.note(session)
        self._note_change()

    async def check_native(self, native_id: str) -> None:
        """A session of ours has begun or ceased to carry a native id."""
        for root in list(self._roots.values()):
            if self._catalog.carrier_of(native_id) is None:
                for place in [place for place, known in root.covered.items() if known == native_id]:
                    await self.check(root, place)
                continue
            session = self._catalog.by_key.get(f"{root.name}:{native_id}")
            if session is not None and root.sessions.get(session.place) is session:
                self.remove(root, session, "it is shown as a session of ours")
                root.covered[session.place] = native_id

    def _reader_of(self, session: Session) -> FileReader | None:
        root = self._root_of(session)
        return root.reader if root is not None else None

    async def _on_folded(self, session: Session, got: Advance) -> None:
        self._catalog.replace(session, got.entry)
        self._news.session_completed(session)
        self._note_change()
        root = self._root_of(session)
        if root is not None:
            await self.check(root, session.place, grew=True)  # what was appended meanwhile

    def _on_failed(self, session: Session, error: OSError) -> bool:
        root = self._root_of(session)
        if root is None:
            return False
        if isinstance(error, FileNotFoundError) and (self._has_file(root, session) or self.show_kept(root, session)):
            return True
        self.note_failure(root, session.place, error)
        return False

    def note_listed(self, root: OpenRoot, listing: Listing) -> None:
        """Note what could not be used, or not be read, when a folder was listed."""
        root.note_listed(listing)
        for place, error in listing.failed:
            self.note_failure(root, place, error)

    def note_failure(self, root: OpenRoot, place: str, error: OSError) -> None:
        """A file or folder cannot be read: it is looked at again soon, or `doctor` names it."""
        if not self._retries.retry_if_passing((root.label, place), error):
            root.note_odd(place, reason_of(error))


def _may_have_messages(entry: Entry) -> bool:
    """Whether a session has messages, or may have some where little of it was read."""
    return entry.message_count > 0 or not entry.file.folded_to
