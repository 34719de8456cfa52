"""One program's folder while it is open: its descriptor, and what is known of the files below it. Reads no files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import trio

from sessiond.model.dialects import TranscriptDialect
from sessiond.sources import reading, unpacking
from sessiond.sources.event_files import EventFiles
from sessiond.sources.finder import BadName, SourceRoot, is_text
from sessiond.sources.reading import UNKNOWN_SIZE, FileReader, ListedFile, Listing, describe_unusable
from sessiond.sources.unpacked_files import UnpackedFiles
from sessiond.sources.watching import FolderWatches
from sessiond.store import dirfd
from sessiond.store.catalog import Session
from sessiond.store.folder import Folder
from sessiond.store.presence import is_at

# So many files with something wrong are remembered for `doctor`.
MAX_ODD = 1000
# How long a thread may still use the descriptor of a root that was closed.
_CLOSE_AFTER_S = 60.0


class OpenRoot:
    """The root of a source. `path` has no symlink in it, so that its folders can be watched.

    By their paths below the root: `sessions`; `covered`, with the native ids that sessions of ours carry; `shadowed`,
    with the keys whose session lies in a newer file; `odd`, with the reason why they are no sessions.
    """

    def __init__(self, root: SourceRoot, dialect: TranscriptDialect, record_limit: int) -> None:
        """Open it. Raises OSError; BadName where its path is no text, which clients could not be told."""
        self.configured = root
        self.finder = root.finder
        if root.finder.is_ours and root.path.is_symlink():
            raise dirfd.SymlinkRefused(root.path.name)  # as everything else in the store
        self.path = os.path.realpath(root.path)
        if not is_text(self.path):
            raise BadName("its path is not UTF-8 text")
        self.parent = os.path.dirname(self.path)
        name, database = root.finder.name, root.finder.database
        fd = dirfd.open_root(self.path)
        self.files = EventFiles(fd, self.path, database) if database is not None else None
        self._made = self.files or UnpackedFiles(fd)
        self.folder = Folder("", fd, dialect, path=self.path, source=name, made=self._made)
        self.reader = FileReader(self.folder, root.finder, record_limit)
        self.sessions: dict[str, Session] = {}
        self.covered: dict[str, str] = {}
        self.shadowed: dict[str, str] = {}
        self.odd: dict[str, str] = {}
        self.watched: set[str] = set()
        self.is_parent_watched = False

    @property
    def name(self) -> str:
        return self.finder.name

    @property
    def label(self) -> str:
        return self.finder.label

    @property
    def is_kept(self) -> bool:
        return self.finder.is_kept

    def place_of(self, directory: str) -> str | None:
        """The path below the root of a watched folder, empty for the root; None where it is elsewhere."""
        if directory == self.path:
            return ""
        return directory[len(self.path) + 1 :] if directory.startswith(self.path + "/") else None

    def follows_parent(self, home: Path) -> bool:
        """Whether the folder above it is to be watched, as a root moved together with that is not told of it. Not a
        home: too much goes on in it, and nobody moves it.
        """
        return not self.is_kept and self.parent != os.path.realpath(home)

    def watch_parent(self, watches: FolderWatches) -> None:
        """Watch the folder above it."""
        with contextlib.suppress(OSError):
            watches.add(self.parent, names_only=True)
            self.is_parent_watched = True

    def is_lost(self, directory: str) -> bool:
        """Whether the root is not at its path any more, which an event in this folder may mean."""
        may_be = self.is_parent_watched and directory in (self.parent, self.path)
        return may_be and not is_at(self.path, self.folder.fd)

    def path_of(self, place: str) -> str:
        """The absolute path of what is at a path below the root."""
        return f"{self.path}/{place}" if place else self.path

    def names_session(self, place: str) -> bool:
        """Whether the path is that of a session's file, or of one that would be if its name were an id."""
        try:
            return self.finder.session_of(place) is not None
        except BadName:
            return True

    def makes(self, place: str) -> bool:
        """Whether the file at a path is put together in memory, so that looking at it may take a while."""
        return self._made.makes(place)

    def has_read(self, file: ListedFile) -> bool:
        """Whether a session was read whole from the file as it is now."""
        session = self.sessions.get(file.place)
        if session is None or session.is_partial:
            return False
        facts = session.entry.file
        return (facts.inode, facts.mtime_ns, facts.bytes) == (file.inode, file.mtime_ns, file.size)

    def look_at(self, place: str) -> ListedFile | None:
        """The session's file at a path as it is read, None where there is no usable one, and then `doctor` is told why.

        Raises OSError except where it is gone. Blocks if it `makes` the file.
        """
        if self.files is None:
            file = self.look_at_name(place)
            if file is None or not self.makes(place) or not unpacking.can_unpack(place):
                return file
        return self._look(place, self.folder.status_of)

    def look_at_name(self, place: str) -> ListedFile | None:
        """As `look_at`, but what is packed is not unpacked for it."""
        if self.files is not None:
            return self._look(place, self.folder.status_of)
        return self._look(place, lambda name: dirfd.status_below(self.folder.fd, name))

    def _look(self, place: str, status_of: Callable[[str], os.stat_result]) -> ListedFile | None:
        self.odd.pop(place, None)
        if not self.names_session(place):
            return None
        try:
            look = status_of(place)
            found = self.finder.session_of(place)
        except (FileNotFoundError, NotADirectoryError, dirfd.SymlinkRefused):
            return None
        except BadName as error:
            self.note_odd(place, str(error))
            return None
        if found is None:
            return None
        reason = describe_unusable(look) if self.files is None else None
        if reason is not None:
            self.note_odd(place, reason)
            return None
        return reading.describe_file(place, found, look)

    def find_folders(self, folder: str) -> list[str]:
        """The folders in which sessions may lie, a folder below the root and those below it. Blocks."""
        if self.files is not None:
            return [""]
        return reading.list_folder(self.folder.fd, self.finder, folder, with_files=False).folders

    def list_below(self, folder: str) -> Listing:
        """Everything in a folder below the root (the root itself if empty). Blocks."""
        if self.files is None:
            return reading.list_folder(self.folder.fd, self.finder, folder)
        listing = Listing([""], [], [], [])
        try:
            sessions = self.files.list_sessions()
        except FileNotFoundError:
            return listing  # it has not been used yet
        except OSError as error:
            listing.failed.append((self.files.name, error))
            return listing
        for session in sessions:
            place = f"{self.files.name}/{session.session_id}"
            try:
                found = self.finder.session_of(place)
            except BadName as error:
                listing.odd.append((place, str(error)))
                continue
            if found is not None:
                # How long it is turns out when it is put together.
                listing.files.append(ListedFile(place, found, session.mtime_ns, UNKNOWN_SIZE, 1))
        return listing

    def find_changed(self, place: str) -> list[str]:
        """The sessions of the database that a change at a path may concern. Blocks; raises OSError."""
        if self.files is None or (place and "/" not in place and not self.files.holds(place)):
            return []
        if "/" in place:
            return [place]
        changed = self.files.find_changed()
        for one in changed:
            # Put together here, off the event loop, which then appends no more than a few rows.
            with contextlib.suppress(OSError):
                self.files.status(one)
        self.odd.pop(self.files.name, None)
        return changed

    def close(self) -> None:
        """Close what is open of it."""
        self._made.close()
        os.close(self.folder.fd)

    async def close_later(self) -> None:
        """Close it when no thread uses it any more: closed at once, the number of its descriptor could become another
        file's.
        """
        try:
            await trio.sleep(_CLOSE_AFTER_S)
        finally:
            self.close()

    def note_odd(self, place: str, reason: str) -> None:
        """Remember for `doctor` what is wrong with a file."""
        if place in self.odd or len(self.odd) < MAX_ODD:
            self.odd[place] = reason

    def note_listed(self, listing: Listing) -> None:
        """Remember for `doctor` what cannot be used of what was listed."""
        for folder in listing.folders:
            self.odd.pop(folder, None)
        for place, reason in listing.odd:
            self.note_odd(place, reason)

    def forget(self, place: str) -> None:
        """There is nothing at this path any more."""
        self.sessions.pop(place, None)
        self.covered.pop(place, None)
        self.shadowed.pop(place, None)
        self.odd.pop(place, None)

    def places_below(self, place: str) -> list[str]:
        """Every path at `place` or below it that is known to have a session, shown or not; all of them if empty."""
        if place and not self.finder.enters(place):
            return [place]  # a file: looking through all that is known takes too long for each of many
        known = [*self.sessions, *self.covered, *self.shadowed, *self.odd]
        prefix = f"{place}/" if place else ""
        return [one for one in known if one == place or one.startswith(prefix)]
