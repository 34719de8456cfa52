"""Tell which names in the watched folders changed. Knows folders and names. Does not read files or know sessions.

`Watcher` chooses among three backends held to the same tests (`inotify.py`, `watchfiles_backend.py`, `polling.py`);
what they have in common is in `watch_backend.py`. A watch is on a folder, never on a file and never recursive. To lose
nothing, add the folder first and list it afterwards.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal

import structlog
import trio

from sessiond.events.watch_backend import Backend, NameGone, Rescan, WatchBackend, WatchEvent, WatchUnavailable
from sessiond.store import filesystem

log = structlog.get_logger("sessiond.feed")
Kind = Literal["auto", "inotify", "watchfiles", "polling"]
StrPath = str | os.PathLike[str]

# inotify: 0.24 ms from append to event at 0.01 % of a core idle. watchfiles: 17 ms at 2 %. Polling: what is left when
# the kernel's inotify limits are used up, since watchfiles then has no inotify either, and its own polling compares
# times in whole seconds: it does not see a second append within one.
_CHAINS: dict[Kind, tuple[Backend, ...]] = {
    "auto": ("inotify", "watchfiles", "polling") if sys.platform == "linux" else ("watchfiles", "polling"),
    "inotify": ("inotify",),
    "watchfiles": ("watchfiles", "polling"),
    "polling": ("polling",),
}


class Watcher:
    """An async iterator of batches. One reader at a time; `add` and `remove` may be called while it waits."""

    def __init__(
        self, chain: tuple[Backend, ...], deaf_kind: Callable[[str], str | None] = filesystem.deaf_kind
    ) -> None:
        self._chain = list(chain)
        self._deaf_kind = deaf_kind
        self._directories: set[str] = set()
        self._rescan: str | None = None
        self._backend = self._open_next_backend()

    @property
    def backend(self) -> Backend:
        """The backend in use. It changes only by falling back to the next one, after which a `Rescan` is reported."""
        return self._backend.name

    def add(self, path: StrPath) -> None:
        """Watch the folder `path`, which may be watched already. Events have the path as given here.

        Raises FileNotFoundError; NotADirectoryError for a file and for a symlink; PermissionError; WatchUnavailable
        where the last backend has reached its limits.
        """
        directory = os.fspath(path)
        self._poll_where_deaf(directory)
        while True:
            try:
                self._backend.add(directory)
            except WatchUnavailable:
                self._fall_back()
            else:
                self._directories.add(directory)
                return

    def remove(self, path: StrPath) -> None:
        """Stop watching `path`. Earlier events may still be reported. An unknown path is no error."""
        directory = os.fspath(path)
        self._directories.discard(directory)
        self._backend.remove(directory)

    def rest(self) -> None:
        """The last batch was nothing but the daemon's own writes: those that follow may be gathered for longer."""
        self._backend.rest()

    def close(self) -> None:
        self._backend.close()

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> list[WatchEvent]:
        """The next events, each name at most once, in the order of their last change."""
        while True:
            if self._rescan is not None:
                reason, self._rescan = self._rescan, None
                return [Rescan(reason)]
            backend = self._backend
            try:
                batch = await backend.next_batch()
            except WatchUnavailable:
                self._fall_back()
            except trio.ClosedResourceError:
                # `add` fell back to another backend meanwhile, which has all folders from then on.
                if backend is self._backend:
                    raise
            else:
                gone = {event.directory for event in batch if isinstance(event, NameGone) and not event.name}
                self._directories -= gone
                return batch

    def _open_next_backend(self) -> WatchBackend:
        while True:
            try:
                return _open_backend(self._chain.pop(0))
            except WatchUnavailable:
                if not self._chain:
                    raise

    def _poll_where_deaf(self, directory: str) -> None:
        """Switch to polling for file systems whose changes inotify does not report, unless a backend was configured."""
        if self._backend.name == "polling" or "polling" not in self._chain:
            return
        kind = self._deaf_kind(directory)
        if kind is not None:
            log.warning("watching by polling", path=directory, file_system=kind, reason="inotify hears nothing there")
            self._chain = ["polling"]
            self._fall_back()

    def _fall_back(self) -> None:
        if not self._chain:
            raise WatchUnavailable(errno.ENOSPC, "the kernel's limits for watching files are used up")
        old, self._backend = self._backend, self._open_next_backend()
        old.close()
        self._rescan = "backend"
        for directory in sorted(self._directories):
            # Folders that were removed meanwhile are noticed by the rescan.
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                self.add(directory)


@asynccontextmanager
async def open_watcher(kind: Kind = "auto") -> AsyncGenerator[Watcher, None]:
    """A watcher without folders. Source: architecture.md, "Traps, all measured; each deserves a test" (1)."""
    watcher = Watcher(_CHAINS[kind])
    try:
        yield watcher
    finally:
        watcher.close()


def _open_backend(name: Backend) -> WatchBackend:
    # Imported when used: watchfiles takes 80 ms, and most daemons never need it.
    match name:
        case "inotify":
            from sessiond.events.inotify import InotifyBackend

            return InotifyBackend()
        case "watchfiles":
            from sessiond.events.watchfiles_backend import WatchfilesBackend

            return WatchfilesBackend()
        case "polling":
            from sessiond.events.polling import PollingBackend

            return PollingBackend()
