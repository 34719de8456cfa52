"""A connected socket as a Trio stream that can also send without waiting. Knows bytes; no dialect.

Trio's own SocketStream has no non-blocking send, and a direct send is what keeps an answer at one system call.
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

_RECEIVE_BYTES = 64 * 1024
_LINGER_S = 2.0
_LINGER_BYTES = 64 * 1024 * 1024
_loaded: set[str] = set()  # `sys.modules` has a module already while a thread is still importing it


class ByteStream(trio.abc.HalfCloseableStream):
    """A stream over a connected non-blocking socket, which it owns.

    Bytes that were read to find out the dialect are put back with `push_back`.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._pushed = b""
        self._is_sending = False
        self._half_ended = False
        self._was_reset = False

    def push_back(self, data: bytes) -> None:
        """The next `receive_some` gives `data` first."""
        self._pushed = data + self._pushed

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has arrived, at most 64 KiB; empty at the end."""
        size = _RECEIVE_BYTES if max_bytes is None else operator.index(max_bytes)
        if size < 1:
            raise ValueError("max_bytes must be at least 1")
        if self._pushed:
            await trio.lowlevel.checkpoint()
            data, self._pushed = self._pushed[:size], self._pushed[size:]
            return data
        while True:
            # Waiting first, not trying first: a client that waits for its answers has nothing there yet, and the wait
            # is also where other connections get their turn.
            await self._wait(trio.lowlevel.wait_readable)
            try:
                return self.socket.recv(size)
            except BlockingIOError:
                continue
            except OSError as error:
                self._was_reset = error.errno == errno.ECONNRESET
                raise _translate(error) from error

    def send_now(self, data: bytes | memoryview) -> int:
        """Send what fits into the socket's buffer without waiting; the number of bytes taken."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _translate(error) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._one_sender(), memoryview(data) as rest:
            await trio.lowlevel.checkpoint()
            if self._half_ended:
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
            if self._half_ended:
                return
            self._half_ended = True
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError as error:
                raise _translate(error) from error

    def has_hung_up(self) -> bool:
        """Whether the other side has closed both halves, or the connection broke.

        Known of Unix sockets; a TCP client that closed looks like one that only ended its half, until we write.
        """
        if self.socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self.socket, 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    def has_left_unread(self) -> bool:
        """Whether the other side is known to have closed without reading all that it was sent.

        Linux tells so of a Unix socket: closed with bytes unread, it resets the connection, and else it ends it.
        """
        if self.socket.family != socket.AF_UNIX or self.socket.fileno() < 0:
            return False
        pending = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._was_reset = self._was_reset or pending == errno.ECONNRESET
        return self._was_reset

    async def linger(self) -> None:
        """End our half and read on for a moment, so that a client still sending gets to read our last words.

        Closing with unread bytes resets the connection, and a reset can overtake them.
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
        """One task sends at a time: two would mix their bytes."""
        if self._is_sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._is_sending = True
        try:
            yield
        finally:
            self._is_sending = False

    async def _wait(self, until_ready: Callable[[socket.socket], Awaitable[None]]) -> None:
        if self.socket.fileno() < 0:  # waiting on a closed one would be a ValueError
            await trio.lowlevel.checkpoint()
            raise trio.ClosedResourceError("this side closed the connection")
        await until_ready(self.socket)

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close at once; whoever waits on the stream gets trio.ClosedResourceError."""
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()


async def load(module: str) -> None:
    """Import a module that only some clients need; others get their turn meanwhile, since it takes 50 ms and more."""
    if module not in _loaded:
        await trio.to_thread.run_sync(importlib.import_module, module)
        _loaded.add(module)


def _translate(error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
    if error.errno == errno.EBADF:
        return trio.ClosedResourceError("this side closed the connection")
    return trio.BrokenResourceError(f"the connection broke: {error.strerror}")
