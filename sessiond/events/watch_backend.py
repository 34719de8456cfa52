"""What a watch backend is and what it reports. Knows folders and names; no backend.

An event means "look at this name": one too many does no harm. `Rescan` means "add and list every folder again".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

import structlog
import trio

from sessiond.errors import reason_of
from sessiond.events.delayed_retry import RETRY_S

log = structlog.get_logger("sessiond.feed")

Backend = Literal["inotify", "watchfiles", "polling"]


@dataclass(frozen=True, slots=True)
class NameChanged:
    """`name` in `directory` was created, written, truncated, moved in or replaced. `folder`: it is a folder."""

    directory: str
    name: str
    folder: bool = False


@dataclass(frozen=True, slots=True)
class NameGone:
    """`name` is no longer in `directory`: removed or moved away.

    An empty name is the watched folder itself: it is no longer watched, nor is any folder below it.
    """

    directory: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Rescan:
    """Changes may have been missed: `reason` is `overflow`, `interrupted`, `rebuilt` or `backend`."""

    reason: str


WatchEvent = NameChanged | NameGone | Rescan


class WatchUnavailable(OSError):
    """A backend cannot watch here: a missing system call, or a limit of the kernel."""


class WatchBackend(Protocol):
    """What `Watcher` needs. `add` and `remove` are idempotent; `next_batch` waits for at least one event.

    After `rest` it may wait a few milliseconds longer for the next ones: the last batch said nothing new.
    """

    name: Backend

    def add(self, directory: str) -> None: ...
    def remove(self, directory: str) -> None: ...
    async def next_batch(self) -> list[WatchEvent]: ...
    def rest(self) -> None: ...
    def close(self) -> None: ...


async def wait_out_shortage(backend: Backend, error: OSError) -> None:
    """Wait before files are looked at again, for which there was no thread or no memory."""
    log.warning("changes of files are noticed later", backend=backend, reason=reason_of(error), retry_s=RETRY_S)
    await trio.sleep(RETRY_S)


def merge_events(events: Iterable[WatchEvent]) -> list[WatchEvent]:
    """Each name once, with its last event; a rescan first."""
    last: dict[tuple[str, ...], WatchEvent] = {}
    for event in events:
        key = () if isinstance(event, Rescan) else (event.directory, event.name)
        last.pop(key, None)
        last[key] = event
    return sorted(last.values(), key=lambda event: not isinstance(event, Rescan))


def is_below(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or below it, as strings."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
