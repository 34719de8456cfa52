"""What the service manager is told and what it told us: sd_notify(3), the watchdog, journald.

Knows datagrams and environment variables. Does not know what the daemon does, and is silent where no manager listens.
No library: the protocol is one datagram of `NAME=value` lines.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Mapping
from typing import IO

# Linux takes 108 bytes for a Unix address, the last one NUL for a path.
_MAX_ADDRESS = 107


class Notifier:
    """Tells the service manager at `address` (`/path` or `@abstract`) how the daemon is; None tells nobody.

    Every method returns whether the datagram went out. None of them waits or raises: a manager that does not listen
    must not stop the daemon.
    """

    def __init__(self, address: str | None) -> None:
        self._address = _socket_address(address)
        self._socket = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    @property
    def listening(self) -> bool:
        """Whether there is a manager to tell."""
        return self._socket is not None

    def send(self, **variables: str | int) -> bool:
        """Send the variables in one datagram. Line ends in values become spaces: they would begin another variable."""
        if self._socket is None or self._address is None:
            return False
        lines = [f"{name}={' '.join(str(value).splitlines())}" for name, value in variables.items()]
        try:
            self._socket.sendto("\n".join(lines).encode("utf-8", "replace"), self._address)
        except OSError:
            return False
        return True

    def ready(self, status: str) -> bool:
        """Start-up or a reload is over."""
        return self.send(READY=1, STATUS=status)

    def status(self, status: str) -> bool:
        """One line for `systemctl status`."""
        return self.send(STATUS=status)

    def notify_reloading(self) -> bool:
        """A reload has begun; `ready` ends it. The time tells systemd which reload is meant (Type=notify-reload)."""
        return self.send(RELOADING=1, MONOTONIC_USEC=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)

    def notify_stopping(self, status: str) -> bool:
        """The daemon is going down."""
        return self.send(STOPPING=1, STATUS=status)

    def alive(self) -> bool:
        """The event loop turns: restarts the watchdog's timer."""
        return self.send(WATCHDOG=1)

    def extend_timeout(self, seconds: float, status: str) -> bool:
        """Starting or stopping takes longer: do not give up for another `seconds`."""
        return self.send(EXTEND_TIMEOUT_USEC=int(seconds * 1_000_000), STATUS=status)

    def close(self) -> None:
        """Give the socket back. Later calls tell nobody."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def from_environment(environ: Mapping[str, str] = os.environ) -> Notifier:
    """A notifier for `$NOTIFY_SOCKET`. The daemon's children must not inherit the variable; their clean environment
    sees to that.
    """
    return Notifier(environ.get("NOTIFY_SOCKET"))


def _socket_address(address: str | None) -> bytes | None:
    """The address for the kernel; None for none, for another family (`vsock:`) and for one that is too long."""
    if not address or address[0] not in "/@":
        return None
    raw = os.fsencode(address)
    if len(raw) > _MAX_ADDRESS:
        return None
    return b"\0" + raw[1:] if raw[:1] == b"@" else raw


def watchdog_seconds(environ: Mapping[str, str] = os.environ, pid: int | None = None) -> float | None:
    """How often to say `alive`, in seconds: half of what the manager waits for. None where it does not watch us.

    Source: sd_watchdog_enabled(3): `$WATCHDOG_PID`, if given, must be ours.
    """
    watched = environ.get("WATCHDOG_PID", "")
    if watched and watched != str(os.getpid() if pid is None else pid):
        return None
    usec = environ.get("WATCHDOG_USEC", "")
    # isascii: isdigit alone takes digits that int() takes too but no manager writes.
    if not (usec.isascii() and usec.isdigit()) or len(usec) > 18 or int(usec) == 0:
        return None
    return int(usec) / 2_000_000


def logs_to_journal(stream: IO[str] | int, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `stream` (or a descriptor) is the one connected to journald: then lines carry `<N>` and no time.

    `$JOURNAL_STREAM` is `device:inode` of that stream; a child whose output goes elsewhere still inherits the variable.
    Source: systemd.exec(5).
    """
    named = environ.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        found = os.fstat(stream if isinstance(stream, int) else stream.fileno())
    except (OSError, ValueError):  # closed, or a stream without a descriptor
        return False
    return stat.S_ISSOCK(found.st_mode) and named == f"{found.st_dev}:{found.st_ino}"
