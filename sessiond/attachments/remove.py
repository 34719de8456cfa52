"""Remove an attachments folder while a hostile program may be writing to it. Works on descriptors and names.

No link is followed and only folders are opened. Each name is first unlinked, which removes files, links, FIFOs, sockets
and devices; then rmdir is tried, which removes empty folders and fails with EBUSY for a mount; only what is left then
is opened (O_NOFOLLOW) and emptied. A name that becomes something else in between is tried again. The path is computed
from the workspace and the id, never stored. Source: runs.md, "Removal".
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from sessiond.store import dirfd

FOLDERS = (".openclaw", "attachments")

# How many folders are open at once. Deeper folders are moved up into the top folder first, so that any depth is
# possible.
_MAX_DEPTH = 32
# How often a name that another program refills or exchanges is tried before it is left to the next sweep.
_MAX_ROUNDS = 64
# How many leftovers are reported by name, so that a hostile tree cannot fill the memory.
_MAX_LEFT = 100

_CHANGED = "it keeps changing"
_MOUNTED = "another file system is mounted there"
_MAY_BE_SWAPPED = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EISDIR})


@dataclass(frozen=True, slots=True)
class RemovalReport:
    """`removed`: the folder existed and is gone. `missing`: it did not exist.

    `left`: `(path below the workspace, reason)` of what could not be removed, at most 100 of `left_count`. The paths
    are for people: bytes that are not UTF-8 are written as `\\xff`.
    """

    removed: bool
    left: tuple[tuple[str, str], ...] = ()
    left_count: int = 0
    missing: bool = False


@dataclass(slots=True)
class _Folder:
    """One open folder on the way down. `names` are to be removed; `left_before` is the `left_count` at its opening."""

    parent_fd: int
    name: str
    path: str
    fd: int
    names: list[str]
    left_before: int
    rounds: int


class _LeaveAlone(Exception):
    """A folder must not be entered; the message is the reason for the report."""


@dataclass(slots=True)
class _Removal:
    device: int
    mount: str | None
    left: list[tuple[str, str]] = field(default_factory=list)
    left_count: int = 0

    def remove(self, dir_fd: int, name: str, path: str) -> None:
        """Remove `name`, whatever it is, with everything in it."""
        stack: list[_Folder] = []
        try:
            self._remove_or_push(dir_fd, name, path, 0, stack)
            while stack:
                folder = stack[-1]
                if folder.names:
                    inner = folder.names.pop()
                    self._remove_or_push(folder.fd, inner, f"{folder.path}/{inner}", 0, stack)
                else:
                    stack.pop()
                    os.close(folder.fd)
                    self._finish(folder, stack)
        finally:
            for folder in stack:
                os.close(folder.fd)

    def note(self, path: str, reason: str) -> None:
        self.left_count += 1
        if len(self.left) < _MAX_LEFT:
            self.left.append((_readable(path), reason))

    def _open_folder(self, dir_fd: int, name: str) -> int:
        fd = _open_writable_dir(dir_fd, name)
        if os.fstat(fd).st_dev != self.device or _mount_of(fd) != self.mount:
            os.close(fd)
            raise _LeaveAlone(_MOUNTED)
        return fd

    def _remove_or_push(self, dir_fd: int, name: str, path: str, rounds: int, stack: list[_Folder]) -> None:
        """Remove `name` at once, or push it on the stack to be emptied, or note why neither is possible."""
        while rounds < _MAX_ROUNDS:
            rounds += 1
            reason = _detach(dir_fd, name)
            if reason is None:
                return
            if reason == _MOUNTED or not _is_folder(dir_fd, name):
                if reason != _CHANGED:
                    self.note(path, reason)
                    return
                continue
            if len(stack) >= _MAX_DEPTH and _move_up(dir_fd, name, stack[0]):
                return
            try:
                fd = self._open_folder(dir_fd, name)
            except _LeaveAlone as leave:
                self.note(path, str(leave))
                return
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno in _MAY_BE_SWAPPED:
                    continue
                self.note(path, _sentence(error))
                return
            stack.append(_Folder(dir_fd, name, path, fd, self._names(fd, path), self.left_count, rounds))
            return
        self.note(path, _CHANGED)

    def _names(self, fd: int, path: str) -> list[str]:
        try:
            return os.listdir(fd)
        except OSError as error:
            self.note(path, _sentence(error))
            return []

    def _finish(self, folder: _Folder, stack: list[_Folder]) -> None:
        """Remove the emptied folder. If another program has refilled it, empty it again."""
        reason = _detach(folder.parent_fd, folder.name)
        if reason is None or self.left_count > folder.left_before:
            return
        if reason == _CHANGED:
            self._remove_or_push(folder.parent_fd, folder.name, folder.path, folder.rounds, stack)
        else:
            self.note(folder.path, reason)


def remove_attachments(workspace: Path, attachments_id: str) -> RemovalReport:
    """Remove `.openclaw/attachments/<id>` below `workspace`; call it again for what was left.

    A workspace or folder that does not exist is reported as missing, not as removed, because it may have been moved
    away. A symlink instead of the folder is removed; a symlink instead of one of its parents stays and is reported.
    Raises nothing but BadComponent, for a malformed id.
    """
    dirfd.check_component(attachments_id)
    path = "/".join((*FOLDERS, attachments_id))
    with contextlib.ExitStack() as stack:
        try:
            here = stack.enter_context(dirfd.closing(dirfd.open_root(workspace)))
            for part in FOLDERS:
                here = stack.enter_context(dirfd.closing(_open_writable_dir(here, part)))
        except FileNotFoundError:
            return RemovalReport(removed=False, missing=True)
        except OSError as error:
            # Reported for the whole path, although one of the parents caused it.
            return RemovalReport(removed=False, left=((path, _sentence(error)),), left_count=1)
        if not _exists(here, attachments_id):
            return RemovalReport(removed=False, missing=True)
        removal = _Removal(os.fstat(here).st_dev, _mount_of(here))
        removal.remove(here, attachments_id, path)
        # Without the sync a power cut could bring back files that no record mentions any more.
        with contextlib.suppress(OSError):
            dirfd.fsync_dir(here)
        return RemovalReport(removal.left_count == 0, tuple(removal.left), removal.left_count)


def discard(dir_fd: int, name: str) -> None:
    """Remove `name` in the open folder `dir_fd` as far as possible, to undo its creation after an error."""
    removal = _Removal(os.fstat(dir_fd).st_dev, _mount_of(dir_fd))
    with contextlib.suppress(OSError):
        removal.remove(dir_fd, name, name)


def _open_writable_dir(dir_fd: int, name: str) -> int:
    """A descriptor of the folder `name`. Its mode is changed so that its owner can list and change it."""
    try:
        fd = dirfd.open_dir(dir_fd, name)
    except PermissionError:
        dirfd.chmod_below(dir_fd, name, 0o700)
        fd = dirfd.open_dir(dir_fd, name)
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o700 != 0o700:
        # The folder of another user cannot be changed; it may be empty or writable anyway.
        with contextlib.suppress(OSError):
            os.fchmod(fd, mode | 0o700)
    return fd


def _detach(dir_fd: int, name: str) -> str | None:
    """Unlink or rmdir `name`. None: it is gone. `_CHANGED`: not empty, or exchanged meanwhile. Else the reason."""
    try:
        os.unlink(name, dir_fd=dir_fd)
        return None
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = _sentence(error)
        # For a folder Linux says EISDIR and POSIX EPERM, which is also the error for an immutable file.
        if error.errno != errno.EISDIR and not _is_folder(dir_fd, name):
            return reason
    try:
        os.rmdir(name, dir_fd=dir_fd)
        return None
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EBUSY:
            return _MOUNTED
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return _CHANGED
        return _sentence(error)


def _is_folder(dir_fd: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _exists(dir_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _move_up(dir_fd: int, name: str, top: _Folder) -> bool:
    """Move a deep folder into the top one, to be emptied from there; whether that succeeded."""
    new = ".up-" + os.urandom(8).hex()
    for _ in range(2):
        try:
            os.rename(name, new, src_dir_fd=dir_fd, dst_dir_fd=top.fd)
        except PermissionError:
            # Moving a folder changes its `..`, so it must be writable itself.
            with contextlib.suppress(OSError):
                dirfd.chmod_below(dir_fd, name, 0o700)
        except OSError:
            return False
        else:
            top.names.append(new)
            return True
    return False


def _mount_of(fd: int) -> str | None:
    """The mount id of `fd`, which also tells bind mounts of the same file system apart. None except on Linux."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as info:
            for line in info:
                if line.startswith(b"mnt_id:"):
                    return line[7:].strip().decode()
    except OSError:
        pass
    return None


def _sentence(error: OSError) -> str:
    match error.errno:
        case errno.EPERM:
            return "not permitted (immutable, or somebody else's)"
        case errno.EBUSY:
            return _MOUNTED
        case errno.ELOOP:
            return "a symbolic link stands there"
    return os.strerror(error.errno or errno.EIO)


def _readable(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")
