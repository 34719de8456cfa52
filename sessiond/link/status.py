"""How the link is, in a small file of the store: `sessiond link status` shows it, also while no link runs."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from sessiond.errors import pluralize, reason_of
from sessiond.store import dirfd, layout

log = structlog.get_logger("sessiond.link")

NAME = "status.json"
# Held by the link that runs.
LOCK = "link.lock"
_MAX_BYTES = 1 << 20
# What was wrong with messages that were dropped, by the reason in the envelope's own word.
_WRONG = {
    "form": "no message of a link, or of another version",
    "receiver": "for another machine",
    "sender": "from a machine that [[link.peers]] does not have, or not from the one it says",
    "kind": "of another kind than its subject",
    "signature": "not signed with the key that [[link.peers]] has for its sender",
    "seal": "sealed with another key than this machine's, which its sender has to have in [[link.peers]]",
    "content": "signed by its sender, and not readable all the same",
    "token": "under the subject of another session or command",
    "time": "a command that was signed long ago, or by a machine whose clock is days off",
    "room": "more commands than one machine may have waiting here",
}


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`machines` says who is there. `commands` counts what each machine has asked for here, by what became of it;
    `waiting_there` is what was asked of others and is not answered yet. `dropped` counts messages by what was wrong.
    `limits` are those that the copies of a machine's sessions have reached, in words.
    """

    name: str
    server: str
    server_version: str | None = None
    is_connected: bool = False
    trouble: str | None = None
    daemon: bool = False
    machines: dict[str, bool] = {}
    waiting_there: int = 0
    commands: dict[str, dict[str, int]] = {}
    dead_letters: list[str] = []
    dropped: dict[str, int] = {}
    limits: dict[str, str] = {}

    @property
    def in_a_line(self) -> str:
        """For `systemctl status`."""
        if not self.is_connected:
            return f"{self.name}: the server {self.server} is away"
        there = [name for name, is_there in self.machines.items() if is_there]
        others = f"there: {', '.join(there)}" if there else "nobody else is there"
        waiting = f"; {pluralize(self.waiting_there, 'command')} unanswered" if self.waiting_there else ""
        return f"{self.name} on {self.server}; {others}{waiting}" + ("" if self.daemon else "; sessiond is away")

    @property
    def dropped_in_words(self) -> list[tuple[int, str]]:
        """How many messages were dropped, and what was wrong with them."""
        return [(count, _WRONG.get(reason, reason)) for reason, count in self.dropped.items()]


class StatusFile:
    """Writes what is new. `is_written`: the file has what was given last."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._last: LinkStatus | None = None
        self._told = ""
        self.is_written = False

    def write(self, status: LinkStatus) -> bool:
        """Whether it is another one than before."""
        is_new, self._last = status != self._last, status
        if self.is_written and not is_new:
            return False
        try:
            with dirfd.closing(dirfd.open_root(self._store)) as root_fd:
                with dirfd.closing(dirfd.open_dir(root_fd, layout.LINK)) as folder_fd:
                    dirfd.write_atomic(folder_fd, NAME, msgspec.json.encode(status) + b"\n", sync=False)
        except OSError as error:
            self.is_written, reason = False, reason_of(error)
            if reason != self._told:  # it is tried again and again
                self._told = reason
                log.warning("the status is not written", reason=reason)
        else:
            self.is_written, self._told = True, ""
        return is_new


def is_held(store: Path) -> bool:
    """Whether a link runs on the store."""
    try:
        with _hold_open(store, LOCK) as fd:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def read_status(store: Path) -> tuple[LinkStatus, float] | None:
    """The status that a link has written last, and its age in seconds; None where there is none."""
    try:
        with _hold_open(store, NAME) as fd:
            data, age_s = dirfd.read_file(fd, _MAX_BYTES) or b"", time.time() - os.fstat(fd).st_mtime
        return msgspec.json.decode(data, type=LinkStatus), max(0.0, age_s)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


@contextmanager
def _hold_open(store: Path, name: str) -> Iterator[int]:
    """A file of the link, for reading. OSError, also for what is no file: a FIFO would be waited for."""
    with dirfd.closing(dirfd.open_root(store)) as root_fd:
        with dirfd.closing(dirfd.open_below(root_fd, f"{layout.LINK}/{name}")) as fd:
            yield fd
