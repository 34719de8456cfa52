"""Whether the store still stands where its path says, and a barrier while that is being found out.

Descriptors outlive their names: a store that was moved away is written to as before, and nobody who goes by its path
sees it. Knows paths and one descriptor. Does not know sessions.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from sessiond.errors import StoreGone
from sessiond.store import dirfd, layout
from sessiond.store.catalog import Folder
from sessiond.store.refusals import StoreDisplaced

# Between two looks for a folder that went.
_PAUSE_S = 0.05


class StorePresence:
    """Of the store at `path`, which is open as `root_fd`.

    A folder that is being replaced is away for a moment; one that is away for `patience_s` is gone.
    """

    def __init__(self, path: Path, root_fd: int) -> None:
        self._path, self._root_fd = path, root_fd
        self.patience_s = 2.0
        self._known: trio.Event | None = None
        self._expected: dict[str, trio.Event] = {}

    def describe_loss(self) -> str | None:
        """What is not where it belongs, in words; None where all of it is there, or cannot be looked at."""
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
        """Have what there is looked at by `look`, once the store stands. StoreGone where it does not come back."""
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
        """Displaced where it does not stand: what is made now would be found by nobody."""
        if self.describe_loss() is not None:
            raise StoreDisplaced

    def mark_unknown(self) -> None:
        """A folder went: until `trust` nobody knows which sessions there are."""
        if self._known is None:
            self._known = trio.Event()

    def mark_known(self) -> None:
        """What there is was looked at, and is known."""
        if self._known is not None:
            self._known.set()
            self._known = None

    @contextmanager
    def expect_return(self, key: str) -> Iterator[None]:
        """While this lasts the key's transcript is away, and may come back."""
        over = self._expected[key] = trio.Event()
        try:
            yield
        finally:
            if self._expected.get(key) is over:
                del self._expected[key]
            over.set()

    async def wait_until_known(self, key: str) -> None:
        """Return when it is known whether the key has a session: at once, unless a folder or its file went just now."""
        while True:
            away = self._expected.get(key) if self._known is None else self._known
            if away is None:
                return
            await away.wait()


def exists(folder_fd: int, name: str) -> bool:
    """Whether the name is in the folder, or may be."""
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except OSError as error:
        return dirfd.is_passing(error)
    return True


def is_at(path: str, fd: int) -> bool:
    """Whether the open folder is the one at the path, or cannot be looked at."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError as error:
        return not _is_away(error)


def require_place(folder: Folder) -> None:
    """Displaced where the folder is not at its path any more: what is written into it would be found by nobody."""
    if not folder.path:
        return
    try:
        there = os.stat(folder.path)
        if (there.st_dev, there.st_ino) == folder.identity:
            return
    except OSError as error:
        if not _is_away(error):
            return
    raise StoreDisplaced


def _is_away(error: OSError) -> bool:
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
