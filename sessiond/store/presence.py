"""Whether the store is still at its path, and a barrier for tasks while that is not known.

Descriptors stay valid when a folder is moved: the daemon would go on writing to a store that nobody finds at its path.
Knows paths and one descriptor. Does not know sessions.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from sessiond.errors import StoreGone
from sessiond.store import dirfd, layout
from sessiond.store.catalog import Folder
from sessiond.store.refusals import StoreDisplaced

# The pause between two checks for a missing folder.
_PAUSE_S = 0.05


class StorePresence:
    """The presence of the store at `path`, which is open as `root_fd`.

    A folder that is being replaced is missing for a moment; one that is missing for `patience_s` seconds is lost.
    """

    def __init__(self, path: Path, root_fd: int) -> None:
        self._path, self._root_fd = path, root_fd
        self.patience_s = 2.0
        self._known: trio.Event | None = None
        self._expected: dict[str, trio.Event] = {}

    def describe_loss(self) -> str | None:
        """What is missing or was replaced, in words; None where everything is in place, or that cannot be checked."""
        try:
            if not os.path.samestat(os.stat(self._path), os.fstat(self._root_fd)):
                return f"another folder stands at {self._path}, where the store was"
        except (FileNotFoundError, NotADirectoryError):
            return f"the store {self._path} was removed or moved away"
        except OSError:
            return None
        try:
            agents = os.stat(layout.AGENTS, dir_fd=self._root_fd, follow_symlinks=False)
        except FileNotFoundError:
            return f"{layout.AGENTS}/ of the store {self._path} was removed or moved away"
        except OSError:
            return None
        is_there = stat.S_ISDIR(agents.st_mode)
        return None if is_there else f"{layout.AGENTS} of the store {self._path} is no folder any more"

    async def wait_until_back(self, look: Callable[[], Awaitable[None]]) -> None:
        """Wait until the store is in place, then await `look`. StoreGone where it does not come back in time."""
        until = trio.current_time() + self.patience_s
        try:
            while True:
                loss = self.describe_loss()
                if loss is None:
                    try:
                        return await look()
                    except OSError as error:
                        loss = f"{layout.AGENTS}/ of the store {self._path} cannot be read: {error.strerror}"
                if trio.current_time() >= until:
                    raise StoreGone(f"{loss}; put it back, or start again to begin a new one")
                self.mark_unknown()
                await trio.sleep(_PAUSE_S)
        finally:
            self.mark_known()

    def require(self) -> None:
        """Raise StoreDisplaced where the store is not in place: a new file would not be found at its path."""
        if self.describe_loss() is not None:
            raise StoreDisplaced

    def mark_unknown(self) -> None:
        """A folder is missing: until `mark_known` it is not known which sessions exist."""
        if self._known is None:
            self._known = trio.Event()

    def mark_known(self) -> None:
        """Everything was checked: it is known which sessions exist."""
        if self._known is not None:
            self._known.set()
            self._known = None

    @contextmanager
    def expect_return(self, key: str) -> Iterator[None]:
        """While the block runs the key's transcript is missing, and may come back."""
        over = self._expected[key] = trio.Event()
        try:
            yield
        finally:
            if self._expected.get(key) is over:
                del self._expected[key]
            over.set()

    async def wait_until_known(self, key: str) -> None:
        """Wait until it is known whether the key has a session: at once, unless a folder or its file is missing."""
        while True:
            away = self._expected.get(key) if self._known is None else self._known
            if away is None:
                return
            await away.wait()


def exists(folder_fd: int, name: str) -> bool:
    """Whether the name is in the folder; True as well if that cannot be found out just now."""
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except OSError as error:
        return dirfd.is_passing(error)
    return True


def is_at(path: str, fd: int) -> bool:
    """Whether the open folder is the one at the path; True as well if that cannot be found out."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError as error:
        return not _is_away(error)


def require_place(folder: Folder, *, since: float = math.inf) -> None:
    """Raise StoreDisplaced where the folder is not at its path any more: what is written would not be found there.

    It need not be looked at where it was found there after `since`, by the monotonic clock: commits that are synced
    together look once.
    """
    if not folder.path or folder.found_at >= since:
        return
    try:
        now = time.monotonic()
        there = os.stat(folder.path)
        if (there.st_dev, there.st_ino) == folder.identity:
            folder.found_at = now
            return
    except OSError as error:
        if not _is_away(error):
            return
    raise StoreDisplaced


def _is_away(error: OSError) -> bool:
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
