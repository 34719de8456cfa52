"""Watch folders through watchfiles, which knows every system's own way. Does not use its `awatch` (see below).

`awatch` wakes up for cancellation after seconds only and hides names such as `.git`; underneath it is `RustNotify`,
which one thread of ours waits on. Its watches are recursive here: a folder below a watched one costs nothing more where
it was there when the notifier was made. A newer one is watched when the notifier's thread comes to it, which is too
late for whoever lists it now: a new notifier is made.
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
)

# An event takes up to two steps. 8 ms: a median of 17 ms (with 10 ms 21) at 2 % of a core; 1 ms would be 3 ms at 4 %.
_STEP_MS = 8
# The longest a stream of changes is gathered before it is handed on.
_DEBOUNCE_MS = 20
# How coarse the times of files may be (FAT: two seconds).
_TIMES_NS = 2_000_000_000
# RustNotify's numbers for what happened to a path.
_DELETED = 3

Raw = set[tuple[int, str]] | str


class WatchfilesBackend:
    """Folders by the real path that events carry, and the notifier that covers the topmost of them."""

    name: Backend = "watchfiles"

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        # Which folder each of these paths was when it was added.
        self._inodes: dict[str, int] = {}
        self._made_ns = 0
        self._roots: set[str] = set()
        self._notify: RustNotify | None = None
        self._gathered: set[tuple[int, str]] = set()
        self._missed: str | None = None
        self._stop = threading.Event()
        self._first_root = trio.Event()
        self._closed = False
        # A thread of its own: waiting for changes must not take one from the file code.
        self._limiter = trio.CapacityLimiter(1)

    def add(self, directory: str) -> None:
        real = _real_folder(directory)
        inode = os.stat(real).st_ino
        if not self._is_covered(real, inode):
            roots = {root for root in self._roots if not is_below(root, real)}
            self._rebuild(roots if any(is_below(real, root) for root in roots) else roots | {real})
        self._given[real], self._inodes[real] = directory, inode

    def remove(self, directory: str) -> None:
        for real in [real for real, given in self._given.items() if given == directory]:
            del self._given[real], self._inodes[real]

    def _is_covered(self, real: str, inode: int) -> bool:
        """Whether the notifier is certain to be at work in this folder."""
        root = next((root for root in self._roots if is_below(real, root)), None)
        if root is None:
            return False
        if real in self._given:
            return self._inodes[real] == inode
        # What is new there, or was moved there, has changed since; so has what holds files, which costs a notifier.
        while real != root:
            if os.stat(real).st_ctime_ns > self._made_ns - _TIMES_NS:
                return False
            real = os.path.dirname(real)
        return True

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
        """Wait for changes. They are kept on `self`, so that a cancelled wait loses none that have come."""
        self._stop = stop = threading.Event()
        async with trio.open_nursery() as nursery:
            # The thread looks at the stop event at each step; abandoned instead, it would outlive the loop.
            nursery.start_soon(_set_at_cancellation, stop)
            raw = await trio.to_thread.run_sync(_wait_in_thread, notify, stop, limiter=self._limiter)
            if isinstance(raw, set):
                self._gathered |= raw
            elif raw == "broken":
                self._rebuild(self._roots)
            else:
                # A stopped notifier throws away what it had not handed out yet.
                self._missed = self._missed or "interrupted"
            nursery.cancel_scope.cancel()

    def _rebuild(self, roots: set[str]) -> None:
        """A new notifier for `roots`, at work on return. What the old one had gathered is made up by a rescan."""
        existing = {root for root in roots if os.path.isdir(root)}
        made_ns = time.time_ns()
        notify = _make_notify(sorted(existing)) if existing else None
        if self._notify is not None:
            self._missed = "rebuilt"
        self._stop.set()
        self._notify, self._roots, self._made_ns = notify, existing, made_ns
        self._first_root.set()
        if notify is None:
            self._first_root = trio.Event()

    def _translate(self, raw: set[tuple[int, str]]) -> Iterator[WatchEvent]:
        # A set has no order: removals go first, so that a name that was replaced ends as changed.
        for change, path in sorted(raw, key=lambda item: (item[0] != _DELETED, item[1])):
            parent, name = os.path.split(path)
            given = self._given.get(parent)
            if change == _DELETED:
                if given is not None:
                    yield NameGone(given, name)
                if not os.path.lexists(path):
                    yield from self._give_up(path)
            elif given is not None:
                folder = os.path.isdir(path) and not os.path.islink(path)
                yield NameChanged(given, name, folder=folder)

    def _give_up(self, path: str) -> Iterator[WatchEvent]:
        for real in [real for real in self._given if is_below(real, path)]:
            del self._inodes[real]
            yield NameGone(self._given.pop(real))
        self._roots = {root for root in self._roots if not is_below(root, path)}


def _real_folder(directory: str) -> str:
    """The real path of a folder whose last component is no symlink."""
    if os.path.islink(directory):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
    with os.scandir(directory):  # says what is wrong: not there, no folder, not allowed
        return os.path.realpath(directory)


def _make_notify(paths: list[str]) -> RustNotify:
    for ignore_permission_denied in (False, True):
        try:
            # Not ignoring at first: with it, reaching the kernel's limit of watches is ignored, too.
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
        # A name that is no UTF-8: the notifier then answers nothing else, ever.
        return "broken"
