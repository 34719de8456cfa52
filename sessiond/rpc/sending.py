"""What a connection has still to send. Knows frames and a link that takes them; not what they say.

A frame is tried on the socket at once and queued only where it does not fit: a channel and a writer task for every
message cost 72 us a request against 42, and 2.9 ms for 100 subscribers against 0.84.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import trio

_WRITE_BYTES = 256 * 1024  # joined for one write: large enough for few system calls, small enough to count down


class PeerGone(Exception):
    """The other side has closed the connection, or it broke."""


class Sink(Protocol):
    """The sending half of a link. Both calls raise trio.BrokenResourceError or trio.ClosedResourceError.

    `joins` says that frames may be joined to one write: true of a byte stream, not of WebSocket messages.
    """

    joins: bool

    def write_now(self, frame: bytes) -> int:
        """Send what fits without waiting; the number of bytes taken. A link that cannot do it takes 0."""
        ...

    async def write(self, frames: list[bytes]) -> None:
        """Send all of it."""
        ...


class SendQueue:
    """Frames in order of `send`, none ever dropped while the connection stands.

    `queued_bytes` is what has been accepted and not yet been given to the system. The bound is the caller's:
    whoever can wait looks at it and awaits `drained`.
    """

    def __init__(self, sink: Sink) -> None:
        self.queued_bytes = 0
        self.broken = False
        self._sink = sink
        self._frames: deque[bytes] = deque()
        self._corked: list[bytes] | None = None
        self._writing = False
        self._work = trio.Event()
        self._room = trio.lowlevel.ParkingLot()

    def send(self, frame: bytes) -> bool:
        """Send or queue; True when the system has all of it. Never waits, never raises."""
        if self.broken:
            return False
        if self._corked is not None:
            self._corked.append(frame)
            self.queued_bytes += len(frame)
            return False
        if self._frames or self._writing:
            self._queue(frame)
            return False
        try:
            taken = self._sink.write_now(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.break_off()
            return False
        if taken == len(frame):
            return True
        self._queue(frame[taken:])
        return False

    def cork(self) -> None:
        """Hold what is sent from here on, until `uncork` sends it in one piece."""
        self._corked = []

    def uncork(self) -> None:
        frames, self._corked = self._corked, None
        if not frames or self.broken:
            return
        if self._sink.joins and len(frames) > 1:
            frames = [b"".join(frames)]
        for frame in frames:
            self.queued_bytes -= len(frame)
            self.send(frame)

    async def run(self) -> None:
        """The writer: sleeps until something did not fit. Returns when the connection broke."""
        while not self.broken:
            await self._work.wait()
            self._work = trio.Event()
            await self._write_queued()

    async def _write_queued(self) -> None:
        while self._frames and not self.broken:
            frames, size = [], 0
            while self._frames and size < _WRITE_BYTES:
                frames.append(self._frames.popleft())
                size += len(frames[-1])
            self._writing = True
            try:
                await self._sink.write(frames)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.break_off()
            finally:
                self._writing = False
            if not self.broken:
                self.queued_bytes -= size
                self._room.unpark_all()

    async def drained(self, below: int = 1) -> None:
        """Wait until fewer than `below` bytes are queued. Raises PeerGone where that will not be."""
        while self.queued_bytes >= below and not self.broken:
            await self._room.park()
        if self.broken:
            raise PeerGone("The connection is gone.")

    def break_off(self) -> None:
        """Nothing can be sent any more: forget what is queued, wake whoever waits."""
        self.broken = True
        self._frames.clear()
        self.queued_bytes = 0
        self._work.set()
        self._room.unpark_all()

    def _queue(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.queued_bytes += len(frame)
        self._work.set()
