"""The service manager: sd_notify(3), the watchdog, journald.

Knows datagrams and environment variables. Does nothing where no manager listens. Needs no library: the protocol is one
datagram of `NAME=value` lines.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Mapping
from typing import IO

# Linux limits a Unix address to 108 bytes; the last byte of a path is NUL.
_MAX_ADDRESS = 107


class Notifier:
    """Sends the daemon's status to the service manager at `address` (`/path` or `@abstract`); None: sends nothing.

    Every method returns whether the datagram was sent. None of them blocks or raises: a manager that does not listen
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
        """Send the variables in one datagram. Newlines in values become spaces: they would begin another variable."""
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
        """Restart the watchdog's timer, as proof that the event loop is not stuck."""
        return self.send(WATCHDOG=1)

    def extend_timeout(self, seconds: float, status: str) -> bool:
        """Starting or stopping takes longer: do not give up for another `seconds`."""
        return self.send(EXTEND_TIMEOUT_USEC=int(seconds * 1_000_000), STATUS=status)

    def close(self) -> None:
        """Close the socket. Later calls send nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def from_environment(environ: Mapping[str, str] = os.environ) -> Notifier:
    """A notifier for `$NOTIFY_SOCKET`. Children do not inherit the variable: their environment is built anew."""
    return Notifier(environ.get("NOTIFY_SOCKET"))


def _socket_address(address: str | None) -> bytes | None:
    """The address in the kernel's form; None if there is none, it is too long or of another family (`vsock:`)."""
    if not address or address[0] not in "/@":
        return None
    raw = os.fsencode(address)
    if len(raw) > _MAX_ADDRESS:
        return None
    return b"\0" + raw[1:] if raw[:1] == b"@" else raw


def watchdog_seconds(environ: Mapping[str, str] = os.environ, pid: int | None = None) -> float | None:
    """How often to call `alive`, in seconds: half the manager's time limit. None if it does not watch this process.

    Source: sd_watchdog_enabled(3): `$WATCHDOG_PID`, if given, must be ours.
    """
    watched = environ.get("WATCHDOG_PID", "")
    if watched and watched != str(os.getpid() if pid is None else pid):
        return None
    usec = environ.get("WATCHDOG_USEC", "")
    # `isdigit` alone would also accept digits of other scripts.
    if not (usec.isascii() and usec.isdigit()) or len(usec) > 18 or int(usec) == 0:
        return None
    return int(usec) / 2_000_000


def logs_to_journal(stream: IO[str] | int, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `stream` (or a descriptor) is connected to journald. Lines for journald have a prefix `<N>` and no time.

    `$JOURNAL_STREAM` is `device:inode` of the connected stream. It is inherited even if the output goes elsewhere.
    Source: systemd.exec(5).
    """
    named = environ.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        found = os.fstat(stream if isinstance(stream, int) else stream.fileno())
    except (OSError, ValueError):  # the stream is closed or has no descriptor
        return False
    return stat.S_ISSOCK(found.st_mode) and named == f"{found.st_dev}:{found.st_ino}"
