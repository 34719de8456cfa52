"""Watch folders through watchfiles, which supports every operating system. Uses its `RustNotify`, not `awatch`.

`awatch` reacts to cancellation only after seconds, and hides names such as `.git`. Here a thread of its own waits on
`RustNotify`, whose watches are recursive: a folder below a watched one needs no watch of its own if it existed when the
notifier was created. A newer folder is watched by the notifier only some time later, but the caller lists it right
after `add`; so a new notifier is created for it.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator

import trio
from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError

from sessiond.events.watch_backend import (
    Backend,
    NameChanged,
    NameGone,
    Rescan,
    WatchEvent,
    WatchUnavailable,
    is_below,
    merge_events,
    wait_out_shortage,
)
from sessiond.tasks import own_threads

# An event takes up to two steps. 8 ms: a median of 17 ms (with 10 ms 21) at 2 % of a core; 1 ms would be 3 ms at 4 %.
_STEP_MS = 8
# How long a continuous stream of changes is collected before it is returned.
_DEBOUNCE_MS = 20
# The resolution of file times (FAT: two seconds).
_TIME_RESOLUTION_NS = 2_000_000_000
# RustNotify's number for a removed path.
_DELETED = 3

Raw = set[tuple[int, str]] | str


class WatchfilesBackend:
    """Watches folders with one notifier on the topmost of them. Its events have real paths, so folders are mapped."""

    name: Backend = "watchfiles"

    def __init__(self) -> None:
        self._watched: dict[str, str] = {}
        # The inode of each of these paths when it was added.
        self._inodes: dict[str, int] = {}
        self._started_ns = 0
        self._roots: set[str] = set()
        self._notify: RustNotify | None = None
        self._gathered: set[tuple[int, str]] = set()
        self._missed: str | None = None
        self._stop = threading.Event()
        self._first_root = trio.Event()
        self._closed = False
        # Apart: the waiting thread must not count among those for file access.
        self._run_sync = own_threads(1)

    def add(self, directory: str) -> None:
        real = _real_folder(directory)
        inode = os.stat(real).st_ino
        if not self._is_covered(real, inode):
            roots = {root for root in self._roots if not is_below(root, real)}
            self._rebuild(roots if any(is_below(real, root) for root in roots) else roots | {real})
        self._watched[real], self._inodes[real] = directory, inode

    def remove(self, directory: str) -> None:
        for real in [real for real, given in self._watched.items() if given == directory]:
            del self._watched[real], self._inodes[real]

    def _is_covered(self, real: str, inode: int) -> bool:
        """Whether the notifier is certain to watch this folder already."""
        root = next((root for root in self._roots if is_below(real, root)), None)
        if root is None:
            return False
        if real in self._watched:
            return self._inodes[real] == inode
        # A folder that changed since the notifier was created may be new or moved. One with new files has changed too,
        # and gets a new notifier needlessly.
        while real != root:
            if os.stat(real).st_ctime_ns > self._started_ns - _TIME_RESOLUTION_NS:
                return False
            real = os.path.dirname(real)
        return True

    def rest(self) -> None:
        """Nothing: it gathers anyway."""

    async def next_batch(self) -> list[WatchEvent]:
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            gathered, self._gathered = self._gathered, set()
            events: list[WatchEvent] = [] if self._missed is None else [Rescan(self._missed)]
            self._missed = None
            if events := merge_events([*events, *self._translate(gathered)]):
                return events
            if self._notify is None:
                await self._first_root.wait()
            else:
                await self._gather(self._notify)

    def close(self) -> None:
        self._closed = True
        self._stop.set()
        self._first_root.set()

    async def _gather(self, notify: RustNotify) -> None:
        """Wait for changes. They are stored in `self`, so that a cancelled wait loses none."""
        self._stop = stop = threading.Event()
        async with trio.open_nursery() as nursery:
            # The thread checks the stop event at each step. If it were abandoned, it would outlive the event loop.
            nursery.start_soon(_set_at_cancellation, stop)
            try:
                raw = await self._run_sync(_wait_in_thread, notify, stop)
            except OSError as error:
                await wait_out_shortage(self.name, error)  # the notifier goes on collecting
                raw = set[tuple[int, str]]()
            if isinstance(raw, set):
                self._gathered |= raw
            elif raw == "broken":
                self._rebuild(self._roots)
            else:
                # A stopped notifier discards changes that it has not returned yet.
                self._missed = self._missed or "interrupted"
            nursery.cancel_scope.cancel()

    def _rebuild(self, roots: set[str]) -> None:
        """Replace the notifier by one for `roots`, which watches on return. A rescan follows for lost changes."""
        existing = {root for root in roots if os.path.isdir(root)}
        started_ns = time.time_ns()
        notify = _make_notify(sorted(existing)) if existing else None
        if self._notify is not None:
            self._missed = "rebuilt"
        self._stop.set()
        self._notify, self._roots, self._started_ns = notify, existing, started_ns
        self._first_root.set()
        if notify is None:
            self._first_root = trio.Event()

    def _translate(self, raw: set[tuple[int, str]]) -> Iterator[WatchEvent]:
        # The set has no order. Removals go first, so that a replaced name is reported as changed at the end.
        for change, path in sorted(raw, key=lambda item: (item[0] != _DELETED, item[1])):
            parent, name = os.path.split(path)
            given = self._watched.get(parent)
            if change == _DELETED:
                if given is not None:
                    yield NameGone(given, name)
                if not os.path.lexists(path):
                    yield from self._give_up(path)
            elif given is not None:
                folder = os.path.isdir(path) and not os.path.islink(path)
                yield NameChanged(given, name, folder=folder)

    def _give_up(self, path: str) -> Iterator[WatchEvent]:
        for real in [real for real in self._watched if is_below(real, path)]:
            del self._inodes[real]
            yield NameGone(self._watched.pop(real))
        self._roots = {root for root in self._roots if not is_below(root, path)}


def _real_folder(directory: str) -> str:
    """The real path of a folder whose last component is no symlink."""
    if os.path.islink(directory):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
    with os.scandir(directory):  # raises the right error: missing, no folder, not permitted
        return os.path.realpath(directory)


def _make_notify(paths: list[str]) -> RustNotify:
    for ignore_permission_denied in (False, True):
        try:
            # First without ignoring permission errors, because ignoring them hides the kernel's limit of watches too.
            return RustNotify(paths, False, False, 0, True, ignore_permission_denied)
        except PermissionError:
            continue
        except FileNotFoundError:
            raise
        except (OSError, WatchfilesRustInternalError) as error:
            raise WatchUnavailable(errno.ENOSPC, str(error)) from error
    raise WatchUnavailable(errno.EACCES, os.strerror(errno.EACCES))


async def _set_at_cancellation(stop: threading.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        stop.set()


def _wait_in_thread(notify: RustNotify, stop: threading.Event) -> Raw:
    try:
        return notify.watch(_DEBOUNCE_MS, _STEP_MS, 0, stop)
    except WatchfilesRustInternalError:
        # A name that is no UTF-8, after which the notifier returns nothing but this error.
        return "broken"
