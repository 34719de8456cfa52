"""Create a transcript atomically: it gets its name when it is on disk and was read back.

Until then it has a temporary name. A crash in between leaves the temporary file, which the next start removes. Knows
files; does not know sessions.
"""

from __future__ import annotations

import contextlib
import os
import re

from sessiond.model.entry import Entry
from sessiond.store import dirfd, folding, layout, transcript
from sessiond.store.catalog import Folder
from sessiond.store.folding import Advance
from sessiond.store.presence import require_place

_TEMPORARY = re.compile(re.escape(dirfd.TEMP_PREFIX) + r"[0-9a-f]{16}")


def temporary_name() -> str:
    """A unique name for a file that the next start removes if it is left behind."""
    return dirfd.TEMP_PREFIX + os.urandom(8).hex()


def create_file(folder: Folder, name: str, data: bytes, record_limit: int, sync: bool) -> Advance:
    """Create the transcript `name` and read it back; with `sync` it is on disk when this returns.

    FileExistsError where the name is taken, StoreDisplaced where the folder was moved away. After an error the file
    does not exist.
    """
    temporary = temporary_name()
    fd = dirfd.open_file(folder.fd, temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
    with dirfd.closing(fd):
        try:
            transcript.append(fd, data)
            # Read through the same descriptor: opening the file again might fail after it was created.
            entry = Entry(session_id=name[: -len(layout.SUFFIX)])
            got = folding.advance_open(fd, entry, record_limit, dialect=folder.dialect)
            if sync:
                os.fdatasync(fd)
            put_in_place(folder.fd, temporary, folder, name, fd, sync=sync)
        except BaseException:
            remove(folder.fd, temporary, fd)
            raise
    return got


def put_in_place(source_fd: int, temporary: str, folder: Folder, name: str, fd: int, *, sync: bool) -> None:
    """Rename the temporary file, open as `fd`, to `name`; on disk when this returns. After an error it has no name."""
    try:
        dirfd.rename(source_fd, temporary, folder.fd, name, replace=False)
        if sync:
            dirfd.fsync_dir(folder.fd)
        require_place(folder)
    except BaseException:
        remove(folder.fd, name, fd)
        raise


def remove(folder_fd: int, name: str, fd: int) -> None:
    """Unlink `name` if it is the file open as `fd`, and sync the folder. Errors are ignored."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(name, dir_fd=folder_fd, follow_symlinks=False), os.fstat(fd)):
            try:
                os.unlink(name, dir_fd=folder_fd)
            except OSError:
                os.ftruncate(fd, 0)  # an empty file is no session
                os.fsync(fd)
            dirfd.fsync_dir(folder_fd)


def remove_leftovers(folder_fd: int) -> None:
    """Remove the temporary files of a killed process. Call it right after locking the store."""
    with contextlib.suppress(OSError), os.scandir(folder_fd) as entries:
        for item in entries:
            remove_if_leftover(folder_fd, item)


def remove_if_leftover(folder_fd: int, item: os.DirEntry[str]) -> None:
    """Remove what is in the folder under this name, if it is a temporary file of a killed process."""
    if _TEMPORARY.fullmatch(item.name):
        with contextlib.suppress(OSError):
            if item.is_file(follow_symlinks=False):
                os.unlink(item.name, dir_fd=folder_fd)


def remove_leftovers_of_backups(root_fd: int) -> None:
    """The same in every folder of `backups/`, for a repair that was killed."""
    with contextlib.suppress(OSError), dirfd.closing(dirfd.open_dir(root_fd, layout.BACKUPS)) as backups_fd:
        for name in os.listdir(backups_fd):
            with contextlib.suppress(OSError), dirfd.closing(dirfd.open_dir(backups_fd, name)) as backup_fd:
                remove_leftovers(backup_fd)
