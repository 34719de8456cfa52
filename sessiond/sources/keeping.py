"""Keep the files of other programs before these delete them, in `<store>/kept/<source>/<id>.jsonl`.

A hard link costs no space and follows what is appended. Where none can be made, as on another file system, the file is
copied, and later what was appended to it. The program's own file stays as it is. Knows open roots and sessions. Does
not know what is shown.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import trio

from sessiond.errors import pluralize, reason_of
from sessiond.model import lax
from sessiond.model.source_facts import FoundFacts
from sessiond.sources.finder import KEPT_PREFIX, SourceFinder, SourceRoot, compile_path, read_beside
from sessiond.sources.root import OpenRoot
from sessiond.store import dirfd, layout
from sessiond.store.catalog import Session
from sessiond.store.finding import Finding
from sessiond.tasks import RunSync

# Many appends to one session are one look at its file.
_KEEP_AFTER_S = 0.2
# So many files are looked at in one go in a thread.
_BATCH = 64
# So many failures are remembered; they usually have one reason.
_MOST_FAILED = 1000
# The ending of a kept file is that of the program's.
_ENDINGS = (".jsonl", ".jsonl.zst", ".json")
_FACTS = ".facts"
_COMPARED_BYTES = 4096
_COPY_BYTES = 256 * 1024
# Why a file system makes no hard link where it can still take a copy.
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})


def kept_roots(store: Path, roots: Iterable[SourceRoot]) -> dict[str, SourceRoot]:
    """Where the files of sources are kept, and how they are found there, by their labels. A database is not kept."""
    pattern = compile_path(r"(?P<id>[^.].*?)\.(?:json|jsonl|jsonl\.zst)")
    names = [root.finder.name for root in roots if root.finder.database is None]
    finders = [SourceFinder(name=name, patterns=(pattern,), is_kept=True, facts_beside=_read_facts) for name in names]
    return {finder.label: SourceRoot(store / layout.KEPT / finder.name, finder) for finder in finders}


def kept_name(session: Session) -> str:
    """The name of a session's kept file."""
    return session.session_id + next((ending for ending in _ENDINGS if session.place.endswith(ending)), _ENDINGS[0])


def _facts_name(session_id: str) -> str:
    """The name of the file beside a kept one with what was known from where the program's file lay, and beside it."""
    return session_id + _FACTS


def _read_facts(kept_fd: int, name: str) -> FoundFacts:
    stem = next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)
    data = read_beside(kept_fd, _facts_name(stem))
    return (lax.decode_fitting(data, FoundFacts) if data else None) or FoundFacts()


class FileKeeper:
    """Keeps the files of the sessions that are noted, if their source has a folder for it in `roots`.

    `run` belongs to a background nursery.
    """

    def __init__(self, roots: Mapping[str, OpenRoot], run_sync: RunSync) -> None:
        self._roots, self._run_sync = roots, run_sync
        self._pending: dict[Session, None] = {}
        self._failed: dict[Session, str] = {}
        # By the name of a source: why it has no folder for kept files.
        self._unusable: dict[str, str] = {}
        self._work = trio.Event()

    def note(self, session: Session) -> None:
        """The session was found, or its file has changed."""
        if self._folder_for(session) is not None:
            self._pending[session] = None
            self._work.set()

    def note_all(self, name: str) -> None:
        """A source has a folder for kept files now."""
        root = self._roots.get(name)
        for session in root.sessions.values() if root is not None else ():
            self.note(session)

    def make_folder(self, store_fd: int, kept: SourceRoot) -> bool:
        """Whether there is a folder for the kept files of a source. It is made where the program has a folder."""
        name = kept.finder.name
        if name not in self._roots:
            return kept.path.is_dir()
        try:
            os.close(dirfd.open_path_dir(store_fd, (layout.KEPT, name), create=True))
        except OSError as error:
            self._unusable[name] = reason_of(error)
            return False
        self._unusable.pop(name, None)
        return True

    def findings(self) -> Iterator[Finding]:
        """What `doctor` says about files that could not be kept."""
        hint = "make room in the store, or correct its mode"
        for name, reason in self._unusable.items():
            yield Finding("warn", f"source {name}", f"its files are not kept: {reason}", hint)
        kinds = Counter((session.folder.source, reason) for session, reason in self._failed.items())
        for (source, reason), count in kinds.items():
            yield Finding("warn", f"source {source}", f"{pluralize(count, 'file')} not kept: {reason}", hint)

    async def run(self) -> None:
        """Keep what is noted, until cancelled; sleeps while there is nothing to do."""
        while True:
            await self._work.wait()
            await trio.sleep(_KEEP_AFTER_S)
            self._work = trio.Event()
            pending, self._pending = list(self._pending), {}
            for begin in range(0, len(pending), _BATCH):
                await self._keep_all(pending[begin : begin + _BATCH])

    async def _keep_all(self, sessions: list[Session]) -> None:
        jobs = [(session, folder) for session in sessions if (folder := self._folder_for(session)) is not None]
        try:
            reasons: list[str | None] = await self._run_sync(_keep_files, jobs)
        except OSError as error:
            reasons = [reason_of(error)] * len(jobs)
        for (session, _), reason in zip(jobs, reasons, strict=True):
            self._failed.pop(session, None)
            if reason is not None and len(self._failed) < _MOST_FAILED:
                self._failed[session] = reason
        if jobs and self._failed and not any(reasons):
            # There is room again.
            self._pending |= dict.fromkeys(self._failed)
            self._failed.clear()
            self._work.set()

    def _folder_for(self, session: Session) -> int | None:
        root = self._roots.get(f"{KEPT_PREFIX}{session.folder.source}")
        return None if root is None or root.folder is session.folder else root.folder.fd


def _keep_files(jobs: list[tuple[Session, int]]) -> list[str | None]:
    """Keep files; for each the reason why it could not be, None where it is kept or gone."""
    reasons: list[str | None] = []
    for session, kept_fd in jobs:
        reason = None
        try:
            keep_file(session.folder.fd, session.place, kept_fd, kept_name(session))
            _keep_facts(session, kept_fd)
        except FileNotFoundError:
            pass  # removed meanwhile
        except (OSError, MemoryError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else os.strerror(errno.ENOMEM)
        reasons.append(reason)
    return reasons


def keep_file(root_fd: int, place: str, kept_fd: int, name: str) -> None:
    """Give a file below the root a name in the kept folder as well, or copy what is new there. Raises OSError."""
    with dirfd.closing(dirfd.open_below(root_fd, place)) as fd:
        look, kept = os.fstat(fd), _look_at(kept_fd, name)
        if kept is not None and (kept.st_dev, kept.st_ino) == (look.st_dev, look.st_ino):
            return
        if not _link(root_fd, place, look, kept_fd, name):
            _copy(fd, look, kept_fd, name, kept)


def _keep_facts(session: Session, kept_fd: int) -> None:
    source, name = session.entry.source, _facts_name(session.session_id)
    if source is not None and source.found not in (FoundFacts(), _read_facts(kept_fd, kept_name(session))):
        dirfd.write_atomic(kept_fd, name, msgspec.json.encode(source.found), sync=False)


def _look_at(kept_fd: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=kept_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _link(root_fd: int, place: str, look: os.stat_result, kept_fd: int, name: str) -> bool:
    *folders, file_name = place.split("/")
    temporary = dirfd.TEMP_PREFIX + os.urandom(8).hex()
    with dirfd.closing(dirfd.open_path_dir(root_fd, folders)) as folder_fd:
        try:
            os.link(file_name, temporary, src_dir_fd=folder_fd, dst_dir_fd=kept_fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
    try:
        linked = os.stat(temporary, dir_fd=kept_fd, follow_symlinks=False)
        if (linked.st_dev, linked.st_ino) != (look.st_dev, look.st_ino):
            raise OSError(errno.EBUSY, "it was replaced just now")
        os.rename(temporary, name, src_dir_fd=kept_fd, dst_dir_fd=kept_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=kept_fd)
        raise
    return True


def _copy(fd: int, look: os.stat_result, kept_fd: int, name: str, kept: os.stat_result | None) -> None:
    # A file with more names than one is a link to what was in the program's place before; it is not written to.
    if kept is not None and stat.S_ISREG(kept.st_mode) and kept.st_nlink == 1:
        with dirfd.closing(dirfd.open_file(kept_fd, name, os.O_RDWR)) as copy_fd:
            if _begins_with(fd, look.st_size, copy_fd, kept.st_size):
                os.lseek(copy_fd, kept.st_size, os.SEEK_SET)
                for piece in _read_pieces(fd, kept.st_size, look.st_size):
                    dirfd.write_all(copy_fd, piece)
                os.utime(copy_fd, ns=(look.st_atime_ns, look.st_mtime_ns))
                return
    dirfd.write_atomic(kept_fd, name, _read_pieces(fd, 0, look.st_size), sync=False)
    os.utime(name, ns=(look.st_atime_ns, look.st_mtime_ns), dir_fd=kept_fd, follow_symlinks=False)


def _begins_with(fd: int, size: int, copy_fd: int, copied: int) -> bool:
    """Whether the file is longer than its copy, and the same before its end, as far as both ends of the copy tell."""
    if copied > size:
        return False
    at = max(0, copied - _COMPARED_BYTES)
    return all(
        os.pread(fd, length, begin) == os.pread(copy_fd, length, begin)
        for begin, length in ((0, min(copied, _COMPARED_BYTES)), (at, copied - at))
    )


def _read_pieces(fd: int, begin: int, end: int) -> Iterator[bytes]:
    while begin < end and (piece := os.pread(fd, min(_COPY_BYTES, end - begin), begin)):
        yield piece
        begin += len(piece)
