"""The copies of one machine's sessions: `<store>/machines/<machine>/agents/<agent>/sessions/<session id>.jsonl`.

Each is an exact prefix of its original, whatever comes in whatever order. A range is on disk when `apply` returns. All
below one descriptor; links are never followed. Synchronous, for one worker thread. Does not know messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from sessiond.errors import StorageError, reason_of
from sessiond.link.copy_states import Change, CopyStates
from sessiond.link.failures import LinkError
from sessiond.link.ranges import RANGE_BYTES, ByteSpan, CopyState, judge
from sessiond.store import dirfd, layout, opening

# What one machine may fill here, and what it leaves free on the disk for all else.
MAX_BYTES = 64 << 30
FREE_BYTES = 1 << 30
MAX_SESSIONS = 100_000
# Where there is no place for a new one, this part of them is forgotten at once of those that are gone.
_FORGOTTEN = 100
# Where a copy is made until it is on disk, in the machine's folder. The daemon, which watches the folders of sessions,
# is told of it once then.
_INCOMING = "incoming"
# More files than this are synced together with all else that the file system has to write.
_SYNC_EACH = 8

# written  the copy has grown, or begins anew      known    it has had all of it
# gap      something is missing before it          differs  it has other bytes: one of the two is no prefix
# ended    of a generation that is over            full     it may not grow: see `trouble`
# failed   the disk refused it: see `trouble`
Outcome = Literal["written", "known", "gap", "differs", "ended", "full", "failed"]


class Applied(msgspec.Struct, frozen=True):
    """What became of a range, and how long the copy is now."""

    outcome: Outcome
    size: int


class _OpenCopy:
    """A copy while a batch is written: `was` bytes counted before, `size` now. With `temporary`, a folder and a name,
    it is a new file, which is moved to `name` when it is on disk.
    """

    __slots__ = ("fd", "folder_fd", "mtime_ms", "name", "size", "temporary", "was")

    def __init__(self, folder_fd: int, name: str, fd: int, was: int, temporary: tuple[int, str] | None = None) -> None:
        self.folder_fd, self.name, self.fd, self.was, self.temporary = folder_fd, name, fd, was, temporary
        self.size = 0 if temporary else was
        self.mtime_ms: int | None = None

    def take_back(self) -> None:
        """Undo what was written, as far as the disk lets."""
        with contextlib.suppress(OSError):
            if self.temporary is not None:
                os.unlink(self.temporary[1], dir_fd=self.temporary[0])
            elif self.size > self.was:
                os.ftruncate(self.fd, self.was)


class _Batch(contextlib.ExitStack):
    """What is open while ranges are written together: each folder once. `free` is what the disk has left, None as long
    as nobody has looked; `left` are the agents whose folders may be empty now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[str, _OpenCopy] = {}
        self.folders: dict[str, int] = {}
        self.made_fd: int | None = None
        self.left: set[str] = set()
        self.free: int | None = None

    def keep(self, fd: int) -> int:
        self.callback(os.close, fd)
        return fd


class MachineFolder:
    """`trouble` is why a range was refused lately, in words; empty if none was. LinkError where the folder cannot be
    used.
    """

    def __init__(
        self,
        store: Path,
        machine: str,
        states: CopyStates,
        *,
        max_bytes: int = MAX_BYTES,
        free_bytes: int = FREE_BYTES,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self.machine = machine
        self.trouble = ""
        self._states = states
        self._known = states.of_machine(machine)
        self._max_bytes, self._free_bytes, self._max_sessions = max_bytes, free_bytes, max_sessions
        try:
            with dirfd.closing(dirfd.open_root(store)) as root_fd:
                self._fd = opening.open_folder(root_fd, (layout.MACHINES, machine))
        except OSError as error:
            place = f"{layout.MACHINES}/{machine} in the store {store}"
            raise LinkError(f"{place} cannot be used: {reason_of(error)}; a folder has to be there") from None
        self._bytes = self._clean_up()

    def close(self) -> None:
        os.close(self._fd)

    @property
    def bytes(self) -> int:
        """What all copies have together."""
        return self._bytes

    @property
    def has_place(self) -> bool:
        """Whether one more session may come. Those that are gone give way to it."""
        return len(self._known) - self._states.count_gone(self.machine) < self._max_sessions

    @property
    def may_know_more(self) -> bool:
        """Whether one more session that is gone may be known."""
        return len(self._known) < self._max_sessions

    @property
    def limit(self) -> str:
        """Which limit the copies have reached, to less than one range, in words; empty where they have reached none."""
        if not self.has_place:
            return f"{self._max_sessions:,} of its sessions are known here, the most that may be; no others are copied"
        if self._bytes > self._max_bytes - RANGE_BYTES:
            return (
                f"its copies have reached {self._max_bytes:,} bytes, the most that one machine may fill here; they do"
                " not grow any more"
            )
        return ""

    def state(self, session: str) -> CopyState | None:
        return self._known.get(session)

    def may_take(self, session: str) -> bool:
        """Whether the session is known, or there is place for it."""
        if session in self._known or self.has_place:
            return True
        self.trouble = f"{self.machine} exports more than {self._max_sessions:,} sessions; the others are not copied"
        return False

    def size(self, session: str) -> int:
        """How long a copy is; 0 where there is none, or its generation has not begun."""
        state = self._known.get(session)
        if state is None or not state.is_begun:
            return 0
        return self._size_of(state.agent, session)

    def sizes(self, sessions: Iterable[str]) -> dict[str, int]:
        """How long these copies are; without those of which there is nothing."""
        by_agent: dict[str, list[str]] = {}
        for session in sessions:
            state = self._known.get(session)
            if state is not None and state.is_begun:
                by_agent.setdefault(state.agent, []).append(session)
        found: dict[str, int] = {}
        for agent, names in by_agent.items():
            with contextlib.suppress(OSError), dirfd.closing(self._open_folder(agent, create=False)) as folder_fd:
                for session in names:
                    with contextlib.suppress(OSError):
                        found[session] = os.stat(_name_of(session), dir_fd=folder_fd, follow_symlinks=False).st_size
        return found

    def apply(self, spans: Sequence[ByteSpan]) -> list[Applied]:
        """Write what can be written, in this order. On disk when it returns."""
        applied: list[Applied] = []
        with _Batch() as batch:
            for span in spans:
                try:
                    applied.append(self._take(span, batch))
                except (OSError, StorageError) as error:
                    applied.append(self._fail(span, error))
            try:
                self._commit(batch.copies)
            except (OSError, StorageError) as error:
                for copy in batch.copies.values():
                    copy.take_back()
                return [self._fail(span, error) for span in spans]
        for agent in batch.left:
            self._remove_folder(agent)
        return applied

    def note_rows(self, states: Iterable[tuple[str, CopyState]]) -> None:
        """Store what rows have said. Copies that are gone have to be removed before. StorageError."""
        try:
            self._states.write([(self.machine, session, state) for session, state in states])
        except StorageError as error:
            self.trouble = f"what {self.machine} says of its sessions is not kept: {error.message}"
            raise

    def remove(self, session: str, agent: str) -> None:
        """Remove a session's file, also one of which nothing is known. `note_rows` says afterwards that it is gone."""
        self._unlink(agent, session)
        self._remove_folder(agent)

    def _unlink(self, agent: str, session: str) -> None:
        with contextlib.suppress(OSError):
            size = self._size_of(agent, session)
            with dirfd.closing(self._open_folder(agent, create=False)) as folder_fd:
                os.unlink(_name_of(session), dir_fd=folder_fd)
            self._bytes -= size

    def _remove_folder(self, agent: str) -> None:
        """Remove an agent's folder if it is empty: a machine may name a new agent in each generation."""
        with contextlib.suppress(OSError):
            with dirfd.closing(dirfd.open_path_dir(self._fd, (layout.AGENTS, agent))) as agent_fd:
                os.rmdir(layout.SESSIONS, dir_fd=agent_fd)
            with dirfd.closing(dirfd.open_path_dir(self._fd, (layout.AGENTS,))) as agents_fd:
                os.rmdir(agent, dir_fd=agents_fd)

    def _take(self, span: ByteSpan, batch: _Batch) -> Applied:
        state, copy = self._known.get(span.session), batch.copies.get(span.session)
        if not self.may_take(span.session):
            return Applied("full", 0)
        if copy is not None and copy.temporary is not None and state is not None:
            state = replace(state, is_begun=True)
        size = copy.size if copy is not None else self.size(span.session)
        verdict = judge(state, size, span)
        if verdict in ("gap", "ended"):
            return Applied("gap" if verdict == "gap" else "ended", size)
        if verdict == "append" and state is not None and state.agent != span.agent:
            return Applied("ended", size)  # a session has one agent; another one needs another generation
        if not self._has_room(batch, span.end - size if verdict == "append" else len(span.data)):
            return Applied("full", size)
        if verdict == "replace":
            copy = batch.copies[span.session] = self._begin(span, copy, batch)
        elif copy is None:
            copy = batch.copies[span.session] = self._open(span, batch)
        return _append(copy, span)

    def _begin(self, span: ByteSpan, before: _OpenCopy | None, batch: _Batch) -> _OpenCopy:
        """A new file for a new generation; it gets its name when it is on disk."""
        state = self._known.get(span.session)
        fresh = CopyState(span.agent, span.generation, is_begun=False, counter=0 if state is None else state.counter)
        was = before.was if before is not None else 0 if state is None else self._size_of(state.agent, span.session)
        if before is not None:
            before.take_back()
        if state is not None and state.generation != span.generation:
            # On disk before the file is replaced: after a crash nothing takes it for one of the other generation.
            self._states.write([(self.machine, span.session, fresh)])
            if state.agent != span.agent:
                self._unlink(state.agent, span.session)
                # Not at once: copies of this batch may still come into the folder.
                batch.left.add(state.agent)
                was = 0
        if state is None and not self.may_know_more:
            self._states.forget_gone(self.machine, max(1, self._max_sessions // _FORGOTTEN))
        self._states.note(self.machine, span.session, fresh)
        folder_fd, made_fd = self._folder_of(span.agent, batch), self._incoming(batch)
        temporary = dirfd.TEMP_PREFIX + os.urandom(8).hex()
        fd = batch.keep(dirfd.open_file(made_fd, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        return _OpenCopy(folder_fd, _name_of(span.session), fd, was, (made_fd, temporary))

    def _open(self, span: ByteSpan, batch: _Batch) -> _OpenCopy:
        folder_fd = self._folder_of(span.agent, batch)
        fd = batch.keep(dirfd.open_file(folder_fd, _name_of(span.session), os.O_RDWR | os.O_CREAT))
        return _OpenCopy(folder_fd, _name_of(span.session), fd, os.fstat(fd).st_size)

    def _folder_of(self, agent: str, batch: _Batch) -> int:
        if agent not in batch.folders:
            batch.folders[agent] = batch.keep(self._open_folder(agent, create=True))
        return batch.folders[agent]

    def _incoming(self, batch: _Batch) -> int:
        if batch.made_fd is None:
            batch.made_fd = batch.keep(opening.open_folder(self._fd, (_INCOMING,)))
        return batch.made_fd

    def _commit(self, opened: dict[str, _OpenCopy]) -> None:
        changed = {name: copy for name, copy in opened.items() if copy.temporary or copy.size > copy.was}
        _sync([copy.fd for copy in changed.values()])
        changes: list[Change] = []
        grown = sum(copy.size - copy.was for copy in changed.values())
        folders: set[int] = set()
        for session, copy in changed.items():
            if copy.mtime_ms is not None:
                os.utime(copy.fd, ns=(copy.mtime_ms * 1_000_000,) * 2)
            if copy.temporary is not None:
                made_fd, temporary = copy.temporary
                os.rename(temporary, copy.name, src_dir_fd=made_fd, dst_dir_fd=copy.folder_fd)
                copy.temporary = None
                folders.add(copy.folder_fd)
                changes.append((self.machine, session, replace(self._known[session], is_begun=True, is_gone=False)))
        # Before it is said that a generation has begun: the name must not be that of the one before after a power cut.
        for folder_fd in folders:
            dirfd.fsync_dir(folder_fd)
        self._states.write(changes)
        self._bytes += grown

    def _fail(self, span: ByteSpan, error: OSError | StorageError) -> Applied:
        self.trouble = f"the copy of {span.session} from {self.machine} cannot be written: {reason_of(error)}"
        return Applied("failed", self.size(span.session))

    def _has_room(self, batch: _Batch, more: int) -> bool:
        if batch.free is None:
            batch.free = _free_on(self._fd)
        if more > 0 and self._bytes + more > self._max_bytes:
            self.trouble = (
                f"the copies of {self.machine} have reached {self._max_bytes:,} bytes, the most that one machine may"
                " fill here; they do not grow any more"
            )
        elif more > 0 and batch.free - more < self._free_bytes:
            self.trouble = (
                f"the disk has less than {self._free_bytes:,} bytes left; the copies of {self.machine} do not grow"
                " until there is more"
            )
        else:
            batch.free -= max(0, more)
            return True
        return False

    def _open_folder(self, agent: str, *, create: bool) -> int:
        parts = (layout.AGENTS, agent, layout.SESSIONS)
        return opening.open_folder(self._fd, parts) if create else dirfd.open_path_dir(self._fd, parts)

    def _size_of(self, agent: str, session: str) -> int:
        try:
            return dirfd.status_below(
                self._fd, "/".join((layout.AGENTS, agent, layout.SESSIONS, _name_of(session)))
            ).st_size
        except OSError:
            return 0

    def _clean_up(self) -> int:
        """Remove what a crash left half made; the size of all copies."""
        total = 0
        with contextlib.suppress(OSError), dirfd.closing(dirfd.open_dir(self._fd, _INCOMING)) as made_fd:
            for name in os.listdir(made_fd):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=made_fd)
        with contextlib.suppress(FileNotFoundError):
            for _, _, files, folder_fd in os.fwalk(layout.AGENTS, dir_fd=self._fd):
                for name in files:
                    with contextlib.suppress(OSError):
                        if name.startswith(dirfd.TEMP_PREFIX):
                            os.unlink(name, dir_fd=folder_fd)
                        else:
                            total += os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_size
        return total


def _append(copy: _OpenCopy, span: ByteSpan) -> Applied:
    overlap = min(copy.size, span.end) - span.begin
    if overlap > 0 and os.pread(copy.fd, overlap, span.begin) != span.data[:overlap]:
        return Applied("differs", copy.size)
    rest, done = memoryview(span.data)[max(0, overlap) :], 0
    if not rest and copy.temporary is None:
        return Applied("known", copy.size)
    try:
        while done < len(rest):
            done += os.pwrite(copy.fd, rest[done:], copy.size + done)
    except OSError:
        os.ftruncate(copy.fd, copy.size)
        raise
    copy.size += len(rest)
    copy.mtime_ms = span.mtime_ms
    return Applied("written", copy.size)


def _name_of(session: str) -> str:
    return session + layout.SUFFIX


def _free_on(fd: int) -> int:
    found = os.fstatvfs(fd)
    return found.f_bavail * found.f_frsize


def _sync(fds: Sequence[int]) -> None:
    """All of them on disk when it returns."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if len(fds) > _SYNC_EACH else None
    if call is not None and call(fds[0]) == 0:
        return
    for fd in fds:
        os.fdatasync(fd)
