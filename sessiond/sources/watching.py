"""Watch the folders of other programs, with a bound on the watches. Knows folders; does not know what is in them.

Inotify has a limit of watches per user, which other programs need too. Past a share of it the folders in which nothing
has happened for longest are not watched but looked at every half a minute.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
import trio

from sessiond.events.inotify import InotifyBackend
from sessiond.events.watch import Kind, Watcher, open_watcher
from sessiond.events.watch_backend import WatchEvent, WatchUnavailable
from sessiond.store import filesystem

log = structlog.get_logger("sessiond.sources")
POLL_S = 30.0
# Half of what the kernel allows, and no more than anybody works in.
_MOST = 8192
_LIMIT_FILE = Path("/proc/sys/fs/inotify/max_user_watches")


def count_allowed() -> int:
    """How many folders are watched at most."""
    try:
        return max(16, min(_MOST, int(_LIMIT_FILE.read_text()) // 2))
    except (OSError, ValueError):
        return _MOST


@asynccontextmanager
async def open_watches(kind: Kind, most: int | None = None) -> AsyncIterator[FolderWatches]:
    """Watches without folders. `kind` is that of the configuration; `most` of inotify's watches are used."""
    inotify = None
    if kind in ("auto", "inotify") and sys.platform == "linux":
        with contextlib.suppress(WatchUnavailable):
            inotify = InotifyBackend()
    most = count_allowed() if most is None else most
    if inotify is not None:
        try:
            yield FolderWatches(inotify, None, most)
        finally:
            inotify.close()
    else:
        async with open_watcher("auto" if kind == "inotify" else kind) as watcher:
            yield FolderWatches(None, watcher, most)


class FolderWatches:
    """Watched folders by path, the most active last. `polled` are those that could not be watched."""

    def __init__(self, inotify: InotifyBackend | None, watcher: Watcher | None, most: int) -> None:
        self._inotify, self._watcher, self._most = inotify, watcher, most
        self._watched: OrderedDict[str, None] = OrderedDict()
        self.polled: dict[str, None] = {}
        self.has_polled = trio.Event()

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, path: str, *, names_only: bool = False) -> None:
        """Watch a folder. Raises FileNotFoundError, NotADirectoryError, PermissionError."""
        if self._watcher is not None:
            self._watcher.add(path)
            self._watched[path] = None
            return
        if self._inotify is None or (path not in self._watched and filesystem.deaf_kind(path) is not None):
            self._poll(path)
            return
        if path not in self._watched and len(self._watched) >= self._most:
            self._poll_oldest()
        try:
            self._add_to_inotify(path, names_only=names_only)
        except WatchUnavailable:
            # Another program has used up the watches of this user.
            self._most = max(1, len(self._watched))
            self._poll(path)

    def _add_to_inotify(self, path: str, *, names_only: bool) -> None:
        assert self._inotify is not None
        self._inotify.add(path, names_only=names_only)
        self._watched[path] = None
        self._watched.move_to_end(path)
        self.polled.pop(path, None)

    def _poll_oldest(self) -> None:
        assert self._inotify is not None
        oldest, _ = self._watched.popitem(last=False)
        self._inotify.remove(oldest)
        self._poll(oldest)

    def _poll(self, path: str) -> None:
        self.polled[path] = None
        self.has_polled.set()

    def note_activity(self, path: str) -> None:
        """Something happened in a folder: it is among the last to lose its watch."""
        if path in self._watched:
            self._watched.move_to_end(path)

    def forget(self, path: str) -> None:
        """Stop watching a folder, which may not be watched."""
        self._watched.pop(path, None)
        self.polled.pop(path, None)
        if self._inotify is not None:
            self._inotify.remove(path)
        elif self._watcher is not None:
            self._watcher.remove(path)

    async def next_batch(self) -> list[WatchEvent]:
        """What happened; waits for at least one event."""
        if self._inotify is not None:
            return await self._inotify.next_batch()
        assert self._watcher is not None
        return await self._watcher.__anext__()
