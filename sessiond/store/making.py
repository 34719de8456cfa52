"""A new transcript: whole under its name, taken on by whoever made it, or not there at all.

It is written under a temporary name and renamed when it is on disk and was read back. A crash before leaves a temporary
file, which the next start removes. Knows files; does not know sessions.
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
    """A name that nothing else has, and that the next start removes where it is left over."""
    return dirfd.TEMP_PREFIX + os.urandom(8).hex()


def create_file(folder: Folder, name: str, data: bytes, record_limit: int, sync: bool) -> Advance:
    """Make the transcript `name` and read it back, on disk when this returns (with `sync`). FileExistsError where the
    name is taken, Displaced where the folder was moved away. After an error there is none.
    """
    temporary = temporary_name()
    fd = dirfd.open_file(folder.fd, temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
    with dirfd.closing(fd):
        try:
            transcript.append(fd, data)
            # On the descriptor that is there: to open it again may fail, and the file would stay.
            got = folding.advance_open(fd, Entry(session_id=name[: -len(layout.SUFFIX)]), record_limit)
            if sync:
                os.fdatasync(fd)
            put_in_place(folder.fd, temporary, folder, name, fd, sync=sync)
        except BaseException:
            remove(folder.fd, temporary, fd)
            raise
    return got


def put_in_place(source_fd: int, temporary: str, folder: Folder, name: str, fd: int, *, sync: bool) -> None:
    """Give the file open at `fd` its name, on disk when this returns. After an error it has none."""
    try:
        dirfd.rename(source_fd, temporary, folder.fd, name, replace=False)
        if sync:
            dirfd.fsync_dir(folder.fd)
        require_place(folder)
    except BaseException:
        remove(folder.fd, name, fd)
        raise


def remove(folder_fd: int, name: str, fd: int) -> None:
    """Take the file open at `fd` away from `name`, where it stands there; on disk, as far as the disk lets us."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(name, dir_fd=folder_fd, follow_symlinks=False), os.fstat(fd)):
            try:
                os.unlink(name, dir_fd=folder_fd)
            except OSError:
                os.ftruncate(fd, 0)  # an empty file is no session
                os.fsync(fd)
            dirfd.fsync_dir(folder_fd)


def remove_leftovers(folder_fd: int) -> None:
    """Remove the temporary files of a process that was cut off. For one who has just locked the store."""
    with contextlib.suppress(OSError), os.scandir(folder_fd) as entries:
        for item in entries:
            if _TEMPORARY.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(item.name, dir_fd=folder_fd)


def remove_leftovers_of_backups(root_fd: int) -> None:
    """The same in every folder of `backups/`: what a repair was about to keep when it was cut off."""
    with contextlib.suppress(OSError), dirfd.closing(dirfd.open_dir(root_fd, layout.BACKUPS)) as backups_fd:
        for name in os.listdir(backups_fd):
            with contextlib.suppress(OSError), dirfd.closing(dirfd.open_dir(backups_fd, name)) as backup_fd:
                remove_leftovers(backup_fd)
