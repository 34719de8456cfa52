"""A connected socket as a Trio stream that can also send without waiting. Knows bytes; no dialect.

Trio's SocketStream has no non-blocking send, which lets most answers go out with a single system call.
"""

from __future__ import annotations

import errno
import importlib
import operator
import select
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from sessiond.tasks import run_in_thread

_RECEIVE_BYTES = 64 * 1024
_LINGER_S = 2.0
_LINGER_BYTES = 64 * 1024 * 1024
_loaded: set[str] = set()  # not `sys.modules`, which has a module already while a thread is still importing it


class ByteStream(trio.abc.HalfCloseableStream):
    """A stream over a connected socket, which it owns and makes non-blocking.

    Bytes read to detect the dialect are put back with `push_back`.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._pushed = b""
        self._is_sending = False
        self._has_sent_eof = False
        self._was_reset = False

    def push_back(self, data: bytes) -> None:
        """Let the next `receive_some` return `data` first."""
        self._pushed = data + self._pushed

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Received bytes, at most 64 KiB; empty at the end of the stream."""
        size = _RECEIVE_BYTES if max_bytes is None else operator.index(max_bytes)
        if size < 1:
            raise ValueError("max_bytes must be at least 1")
        if self._pushed:
            await trio.lowlevel.checkpoint()
            data, self._pushed = self._pushed[:size], self._pushed[size:]
            return data
        while True:
            # Wait before the first attempt: mostly there is nothing to read yet, because the client waits for its
            # answers, and the wait lets other tasks run.
            await self._wait(trio.lowlevel.wait_readable)
            try:
                return self.socket.recv(size)
            except BlockingIOError:
                continue
            except OSError as error:
                self._was_reset = error.errno == errno.ECONNRESET
                raise _translate(error) from error

    def send_now(self, data: bytes | memoryview) -> int:
        """Send what fits into the socket's buffer without waiting; the number of bytes sent."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _translate(error) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._one_sender(), memoryview(data) as rest:
            await trio.lowlevel.checkpoint()
            if self._has_sent_eof:
                raise trio.ClosedResourceError("this side has ended its half")
            sent = self.send_now(rest)
            while sent < len(rest):
                await self._wait(trio.lowlevel.wait_writable)
                sent += self.send_now(rest[sent:])

    async def wait_send_all_might_not_block(self) -> None:
        with self._one_sender():
            await self._wait(trio.lowlevel.wait_writable)

    async def send_eof(self) -> None:
        with self._one_sender():
            await trio.lowlevel.checkpoint()
            if self._has_sent_eof:
                return
            self._has_sent_eof = True
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError as error:
                raise _translate(error) from error

    def has_hung_up(self) -> bool:
        """Whether the other side has closed both halves, or the connection broke.

        Reliable for Unix sockets. A TCP client that closed looks like one that only ended its sending half, until
        something is sent to it.
        """
        if self.socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self.socket, 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    def has_left_unread(self) -> bool:
        """Whether the other side is known to have closed without reading all that was sent to it.

        Linux says so for Unix sockets: closing with unread bytes resets the connection.
        """
        if self.socket.family != socket.AF_UNIX or self.socket.fileno() < 0:
            return False
        pending = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._was_reset = self._was_reset or pending == errno.ECONNRESET
        return self._was_reset

    async def linger(self) -> None:
        """End the sending half and read on for a moment, so that a client that is still sending can read the answer.

        Closing with unread bytes would reset the connection, and the client might lose the answer.
        """
        left = _LINGER_BYTES
        with trio.move_on_after(_LINGER_S):
            try:
                await self.send_eof()
                while left > 0 and (data := await self.receive_some()):
                    left -= len(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    @contextmanager
    def _one_sender(self) -> Iterator[None]:
        """Raise BusyResourceError if another task is sending, because their bytes would be mixed."""
        if self._is_sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._is_sending = True
        try:
            yield
        finally:
            self._is_sending = False

    async def _wait(self, until_ready: Callable[[socket.socket], Awaitable[None]]) -> None:
        if self.socket.fileno() < 0:  # Trio raises ValueError for a closed socket
            await trio.lowlevel.checkpoint()
            raise trio.ClosedResourceError("this side closed the connection")
        await until_ready(self.socket)

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close at once; tasks that wait on the stream get trio.ClosedResourceError."""
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()


async def load_module(module: str) -> None:
    """Import a module that only some clients need, in a worker thread: it takes 50 ms and more.

    Without a thread for it the event loop waits: once, for a client that would get no answer at all.
    """
    if module not in _loaded:
        try:
            await run_in_thread(importlib.import_module, module)
        except OSError:
            importlib.import_module(module)
        _loaded.add(module)


def _translate(error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
    if error.errno == errno.EBADF:
        return trio.ClosedResourceError("this side closed the connection")
    return trio.BrokenResourceError(f"the connection broke: {error.strerror}")
