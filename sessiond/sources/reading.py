"""Read the files of another program: list them, look at both ends of one, fold one in slices.

Synchronous; called in worker threads. Opens regular files below the root for reading only, and follows no symlink.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from sessiond.errors import Unsupported
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry, FileFacts
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.keys import NATIVE_ID
from sessiond.model.lax import whole_ms
from sessiond.model.line_facts import FIRST_WORDS
from sessiond.model.source_facts import SourceFacts
from sessiond.sources import unpacking
from sessiond.sources.finder import BadName, FoundFile, SourceFinder
from sessiond.store import dirfd, folding, transcript
from sessiond.store.catalog import Session
from sessiond.store.folder import Folder
from sessiond.tasks import let_others_run

# So much of each end of a file is read for its row until the file is folded whole; shorter files are folded at once.
END_BYTES = 48 * 1024
BLOCK_BYTES = 32 * 1024
# After so much of a processor's time others have their turn. Most dialects fold 32 KiB in it.
_TURN_S = 0.001
# A commit takes a few milliseconds, and needs the interpreter three times in them. Where one follows the other without
# end, a file is folded all the same.
_MOST_PAUSES = 10
_LEAST_PIECE_BYTES, _MOST_PIECE_BYTES = 2 * 1024, 32 * 1024
# The size of a file in memory that was not put together yet.
UNKNOWN_SIZE = 2**53


class ListedFile(msgspec.Struct, frozen=True, gc=False):
    """A file that is a session, by its path below the root. `size` and `inode` are those of the file that is read: a
    packed one has no inode, and `UNKNOWN_SIZE` until it is unpacked.
    """

    place: str
    found: FoundFile
    mtime_ns: int
    size: int
    inode: int


class Listing(msgspec.Struct):
    """What lies below a root: the folders to watch, the files, and what cannot be used, with the reason.

    `failed` are folders that could not be read, or not to their end; the error may be a passing one.
    """

    folders: list[str]
    files: list[ListedFile]
    odd: list[tuple[str, str]]
    failed: list[tuple[str, OSError]]


def list_folder(root_fd: int, finder: SourceFinder, folder: str = "", *, with_files: bool = True) -> Listing:
    """Everything in a folder below the root (the root itself if empty) and below it, in no particular order; without
    the files, which takes a tenth of the time.
    """
    listing = Listing([], [], [], [])
    stack = [folder]
    while stack:
        one = stack.pop()
        try:
            _list_one(root_fd, finder, one, stack, listing, with_files=with_files)
        except (FileNotFoundError, dirfd.SymlinkRefused):
            continue  # removed meanwhile
        except OSError as error:
            listing.failed.append((one, error))
        except dirfd.BadComponent as error:
            listing.odd.append((one, str(error)))
    return listing


def _list_one(
    root_fd: int, finder: SourceFinder, folder: str, stack: list[str], listing: Listing, *, with_files: bool
) -> None:
    with dirfd.closing(dirfd.open_path_dir(root_fd, folder.split("/") if folder else ())) as fd:
        listing.folders.append(folder)
        with os.scandir(fd) as items:
            for item in items:
                place = f"{folder}/{item.name}" if folder else item.name
                if item.is_dir(follow_symlinks=False):
                    if finder.enters(place):
                        stack.append(place)
                elif with_files:
                    _list_file(fd, finder, place, item.name, listing)


def _list_file(folder_fd: int, finder: SourceFinder, place: str, name: str, listing: Listing) -> None:
    try:
        found = finder.session_of(place)
        if found is None:
            return
        look = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except BadName as error:
        listing.odd.append((place, str(error)))
        return
    except OSError:
        return  # removed meanwhile
    reason = describe_unusable(look)
    if reason is not None:
        listing.odd.append((place, reason))
    else:
        listing.files.append(describe_file(place, found, look))


def describe_file(place: str, found: FoundFile, look: os.stat_result) -> ListedFile:
    """A file with this status, that of what is on the disk or that of what was put together in memory."""
    is_packed = unpacking.is_packed(place) and look.st_nlink > 0
    size = UNKNOWN_SIZE if is_packed and look.st_size else look.st_size
    return ListedFile(place, found, look.st_mtime_ns, size, 1 if is_packed else dirfd.inode_of(look))


def describe_unusable(look: os.stat_result) -> str | None:
    """Why a file with this status is not opened; None if it may be."""
    if stat.S_ISLNK(look.st_mode):
        return "a symlink; it is not followed"
    return None if stat.S_ISREG(look.st_mode) else "not a regular file"


def refuse_compressed(session: Session) -> None:
    """Unsupported for a session that is known only by its name, because its file is compressed."""
    if not unpacking.can_unpack(session.place):
        raise Unsupported(
            f"the transcript of {session.key} is compressed with zstd, which this sessiond cannot read:"
            f" install the package `{unpacking.PACKAGE}` beside it (`sessiond[zst]`), or unpack the file with `unzstd`",
            code="compressed",
            package=unpacking.PACKAGE,
        )


def fit_piece(piece: int, spent_s: float) -> int:
    """How many bytes to fold in the next turn, where the last one folded `piece` of them in that time."""
    fitting = int(piece * _TURN_S / max(spent_s, _TURN_S / 8))
    return min(_MOST_PIECE_BYTES, max(_LEAST_PIECE_BYTES, fitting))


class ThreadTurn:
    """What a worker thread may do until others have their turn: a millisecond of a processor's time. They have it while
    `is_busy` says so. A pause that nobody needs takes a third as long as the turn before it.
    """

    __slots__ = ("_began", "_is_busy")

    def __init__(self, is_busy: Callable[[], bool] = lambda: True) -> None:
        self._began, self._is_busy = time.thread_time(), is_busy

    def pause_when_over(self) -> None:
        """Give up the interpreter for a moment, where that time is over and others need it."""
        if time.thread_time() - self._began > _TURN_S:
            if self._is_busy():
                let_others_run()
            self._began = time.thread_time()


class FileReader:
    """Reads the sessions below one root."""

    def __init__(self, folder: Folder, finder: SourceFinder, record_limit: int) -> None:
        self.folder, self.finder, self._limit = folder, finder, record_limit

    @property
    def _dialect(self) -> TranscriptDialect:
        return self.folder.dialect

    def identify(self, file: ListedFile) -> Entry | None:
        """The entry of a file of which nothing is read but its id, where the first line has it. None where there is no
        first line yet. Raises OSError.
        """
        native_id = file.found.native_id
        if file.size == 0:
            return None
        if self.finder.id_in_head and not file.found.is_compressed:
            with dirfd.closing(self.folder.open_file(file.place)) as fd:
                first = next(self._lines(fd, 0, self._limit + 1), None)
            if first is None:
                return None
            facts = first.record.facts if first.record is not None else None
            said = facts.native_id if facts is not None else None
            native_id = said if said is not None and NATIVE_ID.fullmatch(said) else native_id
        source = self._facts(file)
        return begin_foreign(source, native_id) if source.found.key is not None or not self.finder.is_ours else None

    def read_ends(self, file: ListedFile, entry: Entry, turn: ThreadTurn | None = None) -> Entry:
        """The entry of a file of which both ends were read; all of a short one. Raises OSError. `turn` is that of the
        thread, where it reads several.
        """
        if file.found.is_compressed:
            return _mark_partial(entry, file)
        if file.size <= 2 * END_BYTES:
            return self.fold_slice(file.place, entry, file.size).entry
        with dirfd.closing(self.folder.open_file(file.place)) as fd:
            turn = turn or ThreadTurn()
            head = self._fold_end(fd, 0, END_BYTES, entry, turn)
            begin = file.size - END_BYTES
            tail = self._fold_end(fd, begin + _first_line(fd, begin), file.size, head, turn)
        return _mark_partial(_join_ends(head, tail), file)

    def _fold_end(self, fd: int, begin: int, stop: int, entry: Entry, turn: ThreadTurn) -> Entry:
        for line in self._lines(fd, begin, stop):
            if line.record is not None:
                entry = self._dialect.fold(entry, line.record, line.offset, 0)
            turn.pause_when_over()
        return entry

    def fold_slice(
        self, place: str, entry: Entry, max_bytes: int, is_busy: Callable[[], bool] = lambda: False
    ) -> folding.Advance:
        """The entry after some more bytes of a file. While others are busy it pauses, but not for long.

        Raises OSError.
        """
        begin, piece = entry.file.folded_to, _MOST_PIECE_BYTES
        with dirfd.closing(self.folder.open_file(place)) as fd:
            while True:
                turn = time.thread_time()
                got = folding.read_on_open(fd, self.folder, entry, self._limit, max_bytes=piece, collect=False)
                entry = got.entry
                if not got.more or entry.file.folded_to - begin >= max_bytes:
                    return got
                piece = fit_piece(piece, time.thread_time() - turn)
                let_others_run()
                for _ in range(_MOST_PAUSES):
                    if not is_busy():
                        break
                    let_others_run()

    def _facts(self, file: ListedFile) -> SourceFacts:
        found = self.finder.facts_beside(self.folder.fd, file.place)
        if found.parent is None and file.found.parent is not None:
            found = replace(found, parent=file.found.parent)
        return SourceFacts(name=self.finder.name, found=found)

    def _lines(self, fd: int, begin: int, stop: int) -> Iterator[transcript.Line]:
        return transcript.read_lines(fd, begin, self._limit, dialect=self._dialect, stop=stop, block=BLOCK_BYTES)


def begin_again(entry: Entry) -> Entry:
    """The entry to fold a whole file into, of which only the ends were read."""
    assert entry.source is not None
    return begin_foreign(entry.source, entry.session_id)


def _first_line(fd: int, begin: int) -> int:
    """How many bytes behind `begin` a line begins; all bytes read there if none does."""
    data = os.pread(fd, END_BYTES, begin)
    newline = data.find(b"\n")
    return newline + 1 if newline >= 0 else len(data)


def _join_ends(head: Entry, tail: Entry) -> Entry:
    """What both ends say. The first words of a person are in the head, or not known yet."""
    assert head.source is not None and tail.source is not None
    source = tail.source
    if head.source.title is None and source.title_rank == FIRST_WORDS:
        source = replace(source, title=None)
    return replace(tail, created_at=head.created_at, source=source)


def _mark_partial(entry: Entry, file: ListedFile) -> Entry:
    """The entry with what is known for sure, and no counts."""
    assert entry.source is not None
    source = entry.source
    return replace(
        begin_foreign(source, entry.session_id),
        created_at=entry.created_at,
        updated_at=entry.updated_at or whole_ms(file.mtime_ns // 1_000_000) or 0,
        spawned_by=entry.spawned_by,
        cwd=entry.cwd,
        model=entry.model,
        model_provider=entry.model_provider,
        file=FileFacts(),
        source=SourceFacts(
            name=source.name,
            found=source.found,
            title=source.title,
            title_rank=source.title_rank,
            forked_from=source.forked_from,
            partial=True,
        ),
    )
