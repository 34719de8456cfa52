"""One blocking connection to the daemon: opened, greeted, read and written. Knows nothing of reconnecting."""

from __future__ import annotations

import select
import socket
import struct
import time
from _thread import allocate_lock  # `threading` has the same, and takes a millisecond of a hook's
from contextlib import contextmanager, suppress

from sessiond.client import wire
from sessiond.client.errors import CallTimeout, ConnectionLost, DaemonNotRunning, NotPermitted, NotSent
from sessiond.errors import reason_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

CONNECT_TIMEOUT_S = 10.0
# A daemon that has read nothing for so long will not recover.
SEND_TIMEOUT_S = 30
READ_BYTES = 1 << 18


class ClientLink:
    """A connected socket and its framing. `caller` is the caller that `initialize` returned.

    Connecting and `initialize` take `within_s` together, CONNECT_TIMEOUT_S at most.
    """

    def __init__(self, path: str, within_s: float | None = None) -> None:
        self.path = path
        most_s = CONNECT_TIMEOUT_S if within_s is None else min(within_s, CONNECT_TIMEOUT_S)
        self._initialize_by = time.monotonic() + most_s
        self.wire = wire.JsonRpcWire()
        self.caller: dict[str, Any] = {}
        self._socket = _connect(path, most_s)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._lock = allocate_lock()  # guards the attributes below
        self._users = 0
        self._closed = False

    def initialize(self, hello: dict[str, Any]) -> None:
        """Call `initialize`, which must precede every other message."""
        request_id, data = self.wire.request("initialize", hello)
        self.send(data)
        answer = self.receive(self._initialize_by)[0]
        if not isinstance(answer, wire.CallResponse) or answer.id not in (request_id, None):
            raise ConnectionLost(f"{self.path} does not answer like sessiond")
        if answer.error is not None:
            raise answer.error
        self.caller = answer.result.get("caller", {})

    def fileno(self) -> int:
        """The descriptor of the connection, to wait for it together with others."""
        return self._socket.fileno()

    def has_data(self) -> bool:
        """Whether there is something to read, or the connection ended. Not while another thread receives."""
        with self._use() as is_open:
            return not is_open or bool(self._readable.poll(0))

    def send(self, data: bytes) -> None:
        """Send a whole message. NotSent where that failed: the daemon ignores incomplete lines."""
        with self._use():
            try:
                self._socket.sendall(data)
            except OSError as error:
                raise NotSent(f"the connection to sessiond ended ({reason_of(error)})") from None

    def receive(self, deadline: float | None = None) -> list[wire.Incoming]:
        """The next messages, at least one.

        CallTimeout past `deadline` (monotonic seconds), ConnectionLost at the end of the connection.
        """
        with self._use() as is_open:
            while is_open:
                try:
                    # Not `settimeout`, which would also apply to another thread that is sending.
                    left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
                    if not self._readable.poll(left_ms):
                        raise CallTimeout("sessiond did not answer in time")
                    data = self._socket.recv(READ_BYTES)
                except OSError as error:
                    raise ConnectionLost(f"the connection to sessiond ended ({reason_of(error)})") from None
                if not data:
                    raise ConnectionLost("sessiond closed the connection")
                messages = self.wire.feed(data)
                if messages:
                    return messages
        raise ConnectionLost("the connection to sessiond was closed here")

    def close(self) -> None:
        """Close the connection, also while another thread reads from it."""
        with self._lock, suppress(OSError):  # the other side has closed already
            self._closed = True
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._use():
            pass

    @contextmanager
    def _use(self) -> Iterator[bool]:
        """Keep the socket for the block, and whether it is open. After `close` the last block gives it back: a poll for
        its number, which may be that of another file by then, would wait for that one.
        """
        with self._lock:
            self._users += 1
            is_open = not self._closed
        try:
            yield is_open
        finally:
            with self._lock:
                self._users -= 1
                if self._closed and not self._users:
                    self._socket.close()


def _connect(path: str, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(timeout_s, 0.001))  # 0 would mean: do not block
        connection.connect(path)
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
    except OSError as error:
        connection.close()
        raise connect_error(path, error) from None
    return connection


def connect_error(path: str, error: OSError) -> DaemonNotRunning | NotPermitted:
    """The error for a failed connection to `path`."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return DaemonNotRunning(path, "no socket")
    if isinstance(error, ConnectionRefusedError):
        return DaemonNotRunning(path, "nobody listens")
    if isinstance(error, PermissionError):
        return NotPermitted(f"no permission to connect to {path}: it belongs to another user")
    return DaemonNotRunning(path, reason_of(error))
