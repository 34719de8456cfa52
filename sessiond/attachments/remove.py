"""Remove an attachments folder that somebody hostile may be writing to at this moment. Knows descriptors and names.

Nothing is followed and nothing is opened but folders: every name is unlinked first, which takes files, links, FIFOs,
sockets and devices alike; then rmdir, which takes empty folders and says EBUSY of a mount; only what is then left is
opened (O_NOFOLLOW) and emptied. A name that changes its nature in between is looked at again. The path is computed
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

# Descriptors held at once. What lies deeper is moved up to the top folder first, so that depth costs no descriptors.
_MAX_DEPTH = 32
# How often a name that somebody fills or swaps meanwhile is tried before it is left to the next sweep.
_MAX_ROUNDS = 64
# Enough to see what is the matter; a hostile tree must not fill the memory by its names.
_MAX_LEFT = 100

_CHANGED = "it keeps changing"
_MOUNTED = "another file system is mounted there"
_MAY_BE_SWAPPED = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EISDIR})


@dataclass(frozen=True, slots=True)
class RemovalReport:
    """`removed`: it was there, and nothing is left. `missing`: there was nothing; whoever had put it there knows more.

    `left`: path below the workspace, and why; at most 100 of `left_count`. A path is for reading: what is no UTF-8 in
    it is written as `\\xff`.
    """

    removed: bool
    left: tuple[tuple[str, str], ...] = ()
    left_count: int = 0
    missing: bool = False


@dataclass(slots=True)
class _Folder:
    """One open folder on the way down. `names` are still to be looked at, `left_before` is the count on entering."""

    parent_fd: int
    name: str
    path: str
    fd: int
    names: list[str]
    left_before: int
    rounds: int


class _LeaveAlone(Exception):
    """A folder must not be entered; the text is the reason for the report."""


@dataclass(slots=True)
class _Removal:
    device: int
    mount: str | None
    left: list[tuple[str, str]] = field(default_factory=list)
    left_count: int = 0

    def remove(self, dir_fd: int, name: str, path: str) -> None:
        """Remove `name`, whatever it is, with all that is in it."""
        stack: list[_Folder] = []
        try:
            self._try(dir_fd, name, path, 0, stack)
            while stack:
                folder = stack[-1]
                if folder.names:
                    inner = folder.names.pop()
                    self._try(folder.fd, inner, f"{folder.path}/{inner}", 0, stack)
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
        fd = _enter(dir_fd, name)
        if os.fstat(fd).st_dev != self.device or _mount_of(fd) != self.mount:
            os.close(fd)
            raise _LeaveAlone(_MOUNTED)
        return fd

    def _try(self, dir_fd: int, name: str, path: str, rounds: int, stack: list[_Folder]) -> None:
        """Take `name` away at once, or put it on the stack to be emptied, or note why not."""
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
        """Take the emptied folder away. Filled anew, it is emptied once more; what is left in it has its reason."""
        reason = _detach(folder.parent_fd, folder.name)
        if reason is None or self.left_count > folder.left_before:
            return
        if reason == _CHANGED:
            self._try(folder.parent_fd, folder.name, folder.path, folder.rounds, stack)
        else:
            self.note(folder.path, reason)


def remove_attachments(workspace: Path, attachments_id: str) -> RemovalReport:
    """Remove `.openclaw/attachments/<id>` below `workspace`; call it again for what was left.

    A workspace or folder that is not there is missing, not removed: what was moved away is still somewhere. A symlink
    in the place of the folder is removed, one in the place of a parent stays and is reported. Never raises for what it
    finds, only for a bad id (BadComponent).
    """
    dirfd.check_component(attachments_id)
    path = "/".join((*FOLDERS, attachments_id))
    with contextlib.ExitStack() as stack:
        try:
            here = stack.enter_context(dirfd.closing(dirfd.open_root(workspace)))
            for part in FOLDERS:
                here = stack.enter_context(dirfd.closing(_enter(here, part)))
        except FileNotFoundError:
            return RemovalReport(removed=False, missing=True)
        except OSError as error:
            # The reason names no place: which of the parents it was, the sentence tells well enough.
            return RemovalReport(removed=False, left=((path, _sentence(error)),), left_count=1)
        if not _is_there(here, attachments_id):
            return RemovalReport(removed=False, missing=True)
        removal = _Removal(os.fstat(here).st_dev, _mount_of(here))
        removal.remove(here, attachments_id, path)
        # Without it a power cut could bring back what nobody has on record any more.
        with contextlib.suppress(OSError):
            dirfd.fsync_dir(here)
        return RemovalReport(removal.left_count == 0, tuple(removal.left), removal.left_count)


def discard(dir_fd: int, name: str) -> None:
    """Remove `name` in the open folder `dir_fd` as far as it goes: for undoing what was just made there."""
    removal = _Removal(os.fstat(dir_fd).st_dev, _mount_of(dir_fd))
    with contextlib.suppress(OSError):
        removal.remove(dir_fd, name, name)


def _enter(dir_fd: int, name: str) -> int:
    """A descriptor of the folder `name`, which its owner may then list and change, whatever its mode was."""
    try:
        fd = dirfd.open_dir(dir_fd, name)
    except PermissionError:
        dirfd.chmod_below(dir_fd, name, 0o700)
        fd = dirfd.open_dir(dir_fd, name)
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o700 != 0o700:
        # Somebody else's folder stays as it is; it may be empty, or writable all the same.
        with contextlib.suppress(OSError):
            os.fchmod(fd, mode | 0o700)
    return fd


def _detach(dir_fd: int, name: str) -> str | None:
    """Unlink or rmdir `name`. None: it is gone. `_CHANGED`: not empty, or another thing by now. Else the reason."""
    try:
        os.unlink(name, dir_fd=dir_fd)
        return None
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = _sentence(error)
        # Linux says EISDIR of a folder, POSIX EPERM, which is also what an immutable file says.
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


def _is_there(dir_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _move_up(dir_fd: int, name: str, top: _Folder) -> bool:
    """Move a deep folder into the top one, to be emptied from there."""
    new = ".up-" + os.urandom(8).hex()
    for _ in range(2):
        try:
            os.rename(name, new, src_dir_fd=dir_fd, dst_dir_fd=top.fd)
        except PermissionError:
            # Moving a folder writes its `..`, so that it must be writable itself.
            with contextlib.suppress(OSError):
                dirfd.chmod_below(dir_fd, name, 0o700)
        except OSError:
            return False
        else:
            top.names.append(new)
            return True
    return False


def _mount_of(fd: int) -> str | None:
    """The number of the mount that `fd` was opened through: tells a bind mount of the same file system. Linux."""
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
