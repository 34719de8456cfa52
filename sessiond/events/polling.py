"""Watch folders by listing them every quarter of a second: the last resort. Compares size, mtime and inode of names."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import trio

from sessiond.events.watch_backend import Backend, NameChanged, NameGone, WatchEvent, merge_events, wait_out_shortage
from sessiond.store import dirfd
from sessiond.tasks import own_threads

_INTERVAL_S = 0.25
# The share of a core that listing may take: 10,000 files take 32 ms, so the pause grows with the number of files.
_COST_SHARE = 0.02


class FileStamp(NamedTuple):
    """What is compared to notice an append, a truncation or a replacement."""

    inode: int
    size: int
    mtime_ns: int
    folder: bool


Listing = dict[str, FileStamp]


class PollingBackend:
    """Compares each folder with its last listing."""

    name: Backend = "polling"

    def __init__(self) -> None:
        self._listings: dict[str, Listing] = {}
        self._identity: dict[str, int] = {}
        self._closed = trio.Event()
        self._run_sync = own_threads(1)

    def add(self, directory: str) -> None:
        identity = _identity(directory)
        if self._identity.get(directory) != identity:
            self._listings[directory] = _list_folder(directory)
            self._identity[directory] = identity

    def remove(self, directory: str) -> None:
        self._listings.pop(directory, None)
        self._identity.pop(directory, None)

    def rest(self) -> None:
        """Nothing: it gathers anyway."""

    async def next_batch(self) -> list[WatchEvent]:
        pause_s = _INTERVAL_S
        while True:
            with trio.move_on_after(pause_s):
                await self._closed.wait()
            if self._closed.is_set():
                raise trio.ClosedResourceError
            before = dict(self._listings)
            started = time.perf_counter()
            scan = partial(_scan, before, dict(self._identity))
            try:
                now = await self._run_sync(scan)
            except OSError as error:
                await wait_out_shortage(self.name, error)
                continue
            pause_s = max(_INTERVAL_S, (time.perf_counter() - started) / _COST_SHARE)
            events = merge_events(self._compare(before, now))
            if events:
                return events

    def close(self) -> None:
        self._closed.set()

    def _compare(self, before: dict[str, Listing], now: dict[str, Listing | None]) -> Iterator[WatchEvent]:
        for directory, listing in now.items():
            if self._listings.get(directory) is not before[directory]:
                continue  # removed or added again while the thread was listing
            if listing is None:
                self.remove(directory)
                yield NameGone(directory)
                continue
            self._listings[directory] = listing
            yield from _differences(directory, before[directory], listing)


def _differences(directory: str, before: Listing, now: Listing) -> Iterator[WatchEvent]:
    for name in before.keys() - now.keys():
        yield NameGone(directory, name)
    for name, look in now.items():
        old = before.get(name)
        # The size and mtime of a subfolder change with its content, which only a watch of its own reports.
        if old is None or (old != look and not (look.folder and old.inode == look.inode)):
            yield NameChanged(directory, name, folder=look.folder)


def _scan(listings: dict[str, Listing], identity: dict[str, int]) -> dict[str, Listing | None]:
    """A new listing of each folder; None where it is no longer the same folder, the old one where that is not known."""
    found: dict[str, Listing | None] = {}
    for directory, before in listings.items():
        try:
            found[directory] = _list_folder(directory) if _identity(directory) == identity[directory] else None
        except OSError as error:
            found[directory] = before if dirfd.is_passing(error) else None
    return found


def _identity(directory: str) -> int:
    """The folder's inode. NotADirectoryError for a file and for a symlink."""
    look = os.lstat(directory)
    if not stat.S_ISDIR(look.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
    return look.st_ino


def _list_folder(directory: str) -> Listing:
    listing = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                look = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            listing[entry.name] = FileStamp(look.st_ino, look.st_size, look.st_mtime_ns, stat.S_ISDIR(look.st_mode))
    return listing
