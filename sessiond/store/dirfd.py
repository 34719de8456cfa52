"""Open, create and replace files below a directory descriptor, never following a symlink.

Knows descriptors and single path components. Does not know the layout of the store. Errors of the kernel are raised as
OSError, untranslated; three cases have their own types: `SymlinkRefused`, `NotRegularFile` and `BadComponent`.

The caller of a function that returns a descriptor has to close it (`with closing(fd):`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

Data = bytes | bytearray | memoryview

MAX_COMPONENT_BYTES = 255
# The prefix of temporary files, which a crash between write and rename leaves behind. Nothing else begins with it.
TEMP_PREFIX = ".tmp-"

_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO in the place of a file must not block. It has no effect on regular files.
_FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_RENAME_NOREPLACE = 1
# Temporary errors, which are about the kernel or the disk and not about the file.
_PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ETIMEDOUT}
)
# Those among them that mean a lack of descriptors, processes or memory.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})


class SymlinkRefused(OSError):
    """A component is a symbolic link. `errno` is ELOOP and `filename` the component, never a whole path."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.ELOOP, "a symbolic link stands where none is followed", name)


class NotRegularFile(OSError):
    """A component is a FIFO, socket, device or folder instead of a file. `errno` is EINVAL."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", name)


class BadComponent(ValueError):
    """A name is no single path component. Raised before any call to the file system."""


def is_passing(error: OSError | MemoryError) -> bool:
    """Whether the error may be temporary: no free descriptor, an unreadable disk, no memory. The file may still exist,
    so the access is retried, and the file does not count as removed.
    """
    return isinstance(error, MemoryError) or error.errno in _PASSING


def is_shortage(error: OSError) -> bool:
    """Whether the machine lacks descriptors, processes or memory, so that a retry in a second may succeed."""
    return error.errno in _SHORTAGES


def check_component(name: str) -> str:
    """`name`, if it is one path component: 1-255 bytes, no slash, no NUL, neither `.` nor `..`."""
    try:
        size = len(name) if name.isascii() else len(os.fsencode(name))
    except UnicodeEncodeError:
        raise BadComponent("a path component must be encodable") from None
    if not 1 <= size <= MAX_COMPONENT_BYTES:
        raise BadComponent(f"a path component has 1 to {MAX_COMPONENT_BYTES} bytes, not {size}")
    if name in (".", "..") or "/" in name or "\0" in name:
        raise BadComponent("a path component is one name, without a slash or a NUL")
    return name


class _Closing:
    """No generator: opening one file of another program enters ten of them."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def closing(fd: int) -> _Closing:
    """Close `fd` on the way out."""
    return _Closing(fd)


def open_root(path: str | os.PathLike[str]) -> int:
    """A descriptor of the store's root folder. The only path that may be a symlink."""
    return os.open(path, _DIR_FLAGS)


def open_dir(dir_fd: int, name: str) -> int:
    """A descriptor of the folder `name` in `dir_fd`. SymlinkRefused, FileNotFoundError, NotADirectoryError."""
    check_component(name)
    try:
        return os.open(name, _DIR_FLAGS | os.O_NOFOLLOW, dir_fd=dir_fd)
    except OSError as error:
        # With O_DIRECTORY Linux reports ENOTDIR for a link, not ELOOP.
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and is_symlink(dir_fd, name):
            raise SymlinkRefused(name) from None
        raise


def make_dir(dir_fd: int, name: str, mode: int = 0o700) -> int:
    """Make the folder `name` with exactly `mode`, whatever the umask, and open it. FileExistsError if it is there."""
    check_component(name)
    os.mkdir(name, mode, dir_fd=dir_fd)
    try:
        fd = open_dir(dir_fd, name)
    except PermissionError:
        # With a umask that removes the owner's own bits (0o700) the new folder cannot be opened yet.
        chmod_below(dir_fd, name, mode)
        fd = open_dir(dir_fd, name)
    try:
        _set_mode(fd, mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def open_path_dir(root_fd: int, relparts: Sequence[str], *, create: bool = False) -> int:
    """A descriptor of the folder at `relparts` below `root_fd`; with `create` what is missing is made.

    No parts at all give a second descriptor of the root itself.
    """
    fd = -1
    for part in relparts:
        parent_fd = root_fd if fd < 0 else fd
        try:
            fd = _open_or_make_dir(parent_fd, part) if create else open_dir(parent_fd, part)
        finally:
            if parent_fd != root_fd:
                os.close(parent_fd)
    return os.dup(root_fd) if fd < 0 else fd


def open_file(dir_fd: int, name: str, flags: int, mode: int = 0o600) -> int:
    """A descriptor of the regular file `name`. A created one has exactly `mode`, whatever the umask.

    O_NOFOLLOW, O_CLOEXEC and O_NONBLOCK are added to `flags`. Raises SymlinkRefused, NotRegularFile, OSError.
    """
    check_component(name)
    if not flags & os.O_CREAT:
        return _open_regular(dir_fd, name, flags, mode)
    while True:
        # Two steps, to know whether this call created the file: only then its mode is set.
        with contextlib.suppress(FileNotFoundError):
            if not flags & os.O_EXCL:
                return _open_regular(dir_fd, name, flags & ~os.O_CREAT, mode)
        try:
            fd = _open_regular(dir_fd, name, flags | os.O_EXCL, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            continue
        try:
            _set_mode(fd, mode)
        except OSError:
            os.close(fd)
            raise
        return fd


_READ_BYTES = 64 * 1024


def open_below(root_fd: int, relative: str) -> int:
    """A descriptor, for reading, of the regular file at a relative path below `root_fd`. Follows no symlink anywhere.

    Raises as `open_dir` and `open_file` do; BadComponent for `..`, an empty part and a path that begins with a slash.
    """
    folder_fd, name = _open_parent(root_fd, relative)
    try:
        return open_file(folder_fd, name, os.O_RDONLY)
    finally:
        os.close(folder_fd)


def status_below(root_fd: int, relative: str) -> os.stat_result:
    """The status of what stands at a relative path below `root_fd`. Follows no symlink anywhere."""
    folder_fd, name = _open_parent(root_fd, relative)
    with closing(folder_fd):
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)


def _open_parent(root_fd: int, relative: str) -> tuple[int, str]:
    *parts, name = relative.split("/")
    check_component(name)
    if len(parts) == 1:  # as most programs have it: a search opens hundreds, and need not open their root each time
        return open_dir(root_fd, parts[0]), name
    return open_path_dir(root_fd, parts), name


def read_file(fd: int, limit: int) -> bytes | None:
    """The content of an open file; None where it is larger than `limit` bytes, so not the daemon's."""
    size, done = os.fstat(fd).st_size, 0
    if size > limit:
        return None
    pieces: list[bytes] = []
    while done <= limit:
        # Usually the first read gets everything, and the second one says that it was all.
        piece = os.read(fd, min(max(size, _READ_BYTES), limit + 1 - done))
        if not piece:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.append(piece)
        done += len(piece)
    return None


def write_atomic(dir_fd: int, name: str, data: Data | Iterable[Data], *, sync: bool = True) -> None:
    """Replace the file `name` atomically, also in case of a power cut (without `sync`: of a crash of the process).

    `data` is a bytes-like object or an iterable of them. A symlink at `name` is replaced, not followed. After an
    error the old file is unchanged and the temporary one removed.
    """
    check_component(name)
    temporary = TEMP_PREFIX + os.urandom(8).hex()
    fd = open_file(dir_fd, temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with closing(fd):
            for chunk in (data,) if isinstance(data, Data) else data:
                write_all(fd, chunk)
            if sync:
                os.fsync(fd)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=dir_fd)
        raise
    if sync:
        fsync_dir(dir_fd)


def write_all(fd: int, data: Data) -> None:
    """Write every byte of `data`; a short write goes on where it ended."""
    view = memoryview(data).cast("B")
    while len(view):
        view = view[os.write(fd, view) :]


def rename(src_dir_fd: int, src: str, dst_dir_fd: int, dst: str, *, replace: bool = True) -> None:
    """Move `src` to `dst`. Without `replace` an existing `dst` is FileExistsError and stays. Follows no link."""
    check_component(src)
    check_component(dst)
    if replace:
        os.rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        return
    code = _renameat2(src_dir_fd, src, dst_dir_fd, dst)
    if code in (errno.ENOSYS, errno.EINVAL):
        # The call or its flag is not supported. A crash between the two calls leaves both names.
        os.link(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=False)
        os.unlink(src, dir_fd=src_dir_fd)
    elif code:
        raise OSError(code, os.strerror(code), src, None, dst)


def move(source_fd: int, target_fd: int, name: str, sync: bool) -> bool:
    """Move `name` from one folder to another, on disk when this returns; False where it does not exist.

    After an error it is back in its place. If it cannot be moved back, it counts as moved and no error is raised,
    although it may not survive a power cut.
    """
    try:
        # Never replace an archived file of the same name.
        rename(source_fd, name, target_fd, name, replace=False)
    except FileNotFoundError:
        return False
    if not sync:
        return True
    try:
        fsync_dir(target_fd)
        fsync_dir(source_fd)
    except OSError:
        # The error means "not moved", so move it back.
        try:
            rename(target_fd, name, source_fd, name, replace=False)
        except OSError:
            return True
        # The disk may have the first move already; sync that it was undone.
        for fd in (source_fd, target_fd):
            with contextlib.suppress(OSError):
                fsync_dir(fd)
        raise
    return True


def fsync_dir(dir_fd: int) -> None:
    """Sync the names in a folder. Without this a new file may be lost in a power cut."""
    os.fsync(dir_fd)


def is_symlink(dir_fd: int, name: str) -> bool:
    """Whether `name` is a symbolic link now. For error messages only, since it may be replaced at any time."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except OSError:
        return False


def chmod_below(dir_fd: int, name: str, mode: int) -> None:
    """Set the mode of the folder `name` without opening it for reading and without following a link.

    For a folder that its owner cannot open (mode 000). On Linux through an O_PATH descriptor, since fchmodat with
    AT_SYMLINK_NOFOLLOW only exists from 6.6 on; elsewhere the C library knows it.
    """
    check_component(name)
    path_flag = getattr(os, "O_PATH", None)
    if path_flag is None:
        os.chmod(name, mode, dir_fd=dir_fd, follow_symlinks=False)
        return
    with closing(os.open(name, path_flag | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)) as fd:
        kind = os.fstat(fd).st_mode
        if stat.S_ISLNK(kind):
            raise SymlinkRefused(name)
        if not stat.S_ISDIR(kind):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        os.chmod(f"/proc/self/fd/{fd}", mode)


def _open_or_make_dir(dir_fd: int, name: str) -> int:
    while True:
        with contextlib.suppress(FileNotFoundError):
            return open_dir(dir_fd, name)
        with contextlib.suppress(FileExistsError):
            return make_dir(dir_fd, name)


def _open_regular(dir_fd: int, name: str, flags: int, mode: int) -> int:
    try:
        fd = os.open(name, flags | _FILE_FLAGS, mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP and is_symlink(dir_fd, name):
            raise SymlinkRefused(name) from None
        # ENXIO: a socket, or a FIFO that nobody reads. EISDIR: a folder opened for writing.
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise NotRegularFile(name) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegularFile(name)
    return fd


def _set_mode(fd: int, mode: int) -> None:
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.fchmod(fd, mode)


@cache
def _libc() -> Any:
    import ctypes  # 6 ms that most starts do not need

    return ctypes.CDLL(None, use_errno=True)


def _renameat2(src_dir_fd: int, src: str, dst_dir_fd: int, dst: str) -> int:
    """0, or an errno. ENOSYS where the C library has no such call."""
    call = getattr(_libc(), "renameat2", None)
    if call is None:
        return errno.ENOSYS
    import ctypes

    result = call(src_dir_fd, os.fsencode(src), dst_dir_fd, os.fsencode(dst), _RENAME_NOREPLACE)
    return ctypes.get_errno() if result else 0


def inode_of(status: os.stat_result) -> int:
    """The inode of a file; 1 for one that has no name, since it was put together in memory and is so each time anew."""
    return status.st_ino if status.st_nlink else 1
