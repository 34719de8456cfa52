"""The sessions that the owner has marked for other machines with `sessiond link share`. One small file,
`<store>/link/shares.json`; the command line writes it, the running link looks whether it has changed.

Sessions are marked by their canonical key, so that a mark outlives a reset.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from sessiond.errors import reason_of
from sessiond.link.failures import LinkError
from sessiond.store import dirfd, layout, opening

SHARES = "shares.json"
LOCK = "shares.lock"
# Stands for all machines.
EVERYBODY = "*"
_MAX_BYTES = 16 << 20

_Marks = dict[str, tuple[str, ...]]


class _NotReadNow(LinkError):
    """The file may be read in a moment: there is no free descriptor, say."""


class SharesFile:
    """The marks as they were when they were last read; `refresh` reads them again where the file has changed."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path = os.path.join(store, layout.LINK, SHARES)  # it is looked at for each session of a list
        self._marks: Mapping[str, AbstractSet[str]] = {}
        self._seen: tuple[int, int, int] | None = None
        self.refresh()

    def peers_of(self, key: str) -> AbstractSet[str]:
        """The machines for which the session is marked, or `*`."""
        return self._marks.get(key, frozenset())

    @property
    def marks(self) -> Mapping[str, AbstractSet[str]]:
        return self._marks

    def refresh(self) -> bool:
        """Whether the marks are other ones than before. Costs one call of stat(2)."""
        try:
            status = os.lstat(self._path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            seen = (0, 0, 0)
        if seen == self._seen:
            return False
        # A file that is changed while it is read has another state at the next look.
        self._seen = seen
        try:
            found = _read(self._store)
        except _NotReadNow:
            self._seen = None  # or what was taken away would count until the file is changed again
            raise
        before, self._marks = self._marks, {key: frozenset(machines) for key, machines in found.items()}
        return before != self._marks


def mark(store: Path, key: str, machine: str = EVERYBODY) -> bool:
    """Mark a session for a machine. Whether it was not marked before."""
    with _Changing(store) as marks:
        machines = marks.get(key, ())
        if machine in machines:
            return False
        marks[key] = (*machines, machine)
        return True


def unmark(store: Path, key: str, machine: str | None = None) -> bool:
    """Take away a mark, or all marks of the session. Whether there was one."""
    with _Changing(store) as marks:
        machines = marks.pop(key, ())
        left = tuple(one for one in machines if machine is not None and one != machine)
        if left:
            marks[key] = left
        return left != machines


class _Changing:
    """The marks of a store to be changed, with nobody else changing them; written where they have changed."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._fds: list[int] = []

    def __enter__(self) -> _Marks:
        try:
            self._fds.append(dirfd.open_root(self._store))
            self._fds.append(opening.open_folder(self._fds[0], (layout.LINK,)))
            self._fds.append(dirfd.open_file(self._fds[1], LOCK, os.O_RDWR | os.O_CREAT))
            fcntl.flock(self._fds[2], fcntl.LOCK_EX)
            self._marks = _read(self._store)
        except OSError as error:
            self._close()
            raise LinkError(f"the marks in the store {self._store} cannot be changed: {reason_of(error)}") from None
        except LinkError:
            self._close()
            raise
        self._before = dict(self._marks)
        return self._marks

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None and self._marks != self._before:
                text = msgspec.json.format(msgspec.json.encode(self._marks), indent=1) + b"\n"
                dirfd.write_atomic(self._fds[1], SHARES, text)
        finally:
            self._close()

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def _read(store: Path) -> _Marks:
    """The marks in the file. LinkError where it is damaged: then nothing is exported by a mark that nobody made."""
    try:
        with dirfd.closing(dirfd.open_root(store)) as root_fd:
            fd = dirfd.open_below(root_fd, f"{layout.LINK}/{SHARES}")
            with dirfd.closing(fd):
                data = dirfd.read_file(fd, _MAX_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        failure = _NotReadNow if dirfd.is_passing(error) else LinkError
        raise failure(f"{layout.LINK}/{SHARES} in the store {store} cannot be read: {reason_of(error)}") from None
    try:
        return msgspec.json.decode(data or b"", type=_Marks)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LinkError(
            f"{layout.LINK}/{SHARES} in the store {store} is damaged; remove it, and mark the sessions again with "
            '"sessiond link share"'
        ) from None
