"""What a connection has still to send. Knows frames and a link that takes them; not what they say.

A frame is tried on the socket at once and queued only where it does not fit: a channel and a writer task for every
message cost 72 us a request against 42, and 2.9 ms for 100 subscribers against 0.84.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

import trio

_WRITE_BYTES = 256 * 1024  # joined for one write: large enough for few system calls, small enough to count down


class PeerGone(Exception):
    """The other side has closed the connection, or it broke."""


class FrameSink(Protocol):
    """The sending half of a link. Both calls raise trio.BrokenResourceError or trio.ClosedResourceError.

    `joins` says that frames may be joined to one write: true of a byte stream, not of WebSocket messages.
    """

    joins: bool

    def write_now(self, frame: bytes) -> int:
        """Send what fits without waiting; the number of bytes taken. A link that cannot do it takes 0."""
        ...

    async def write(self, frames: list[bytes | memoryview]) -> None:
        """Send all of it."""
        ...


class Unmade:
    """A frame that takes long to make: the writer makes it when its turn comes, so that nobody else waits for it.

    `size` counts as queued until then, and is about what it will have.
    """

    __slots__ = ("make", "size")

    def __init__(self, size: int, make: Callable[[], Awaitable[bytes]]) -> None:
        self.size, self.make = size, make


class Piecewise:
    """A long frame in pieces, each made when the one before it is written; `turn` is awaited in between."""

    __slots__ = ("pieces", "size", "turn")

    def __init__(self, size: int, pieces: Iterator[bytes | memoryview], turn: Callable[[], Awaitable[None]]) -> None:
        self.size, self.pieces, self.turn = size, pieces, turn


class SendQueue:
    """Frames in order of `send`, none ever dropped while the connection stands.

    `queued_bytes` is what has been accepted and not yet been given to the system. The bound is the caller's:
    whoever can wait looks at it and awaits `drained`.
    """

    def __init__(self, sink: FrameSink) -> None:
        self.queued_bytes = 0
        # How much of what was ever accepted the system has.
        self.delivered_bytes = 0
        self.broken = False
        # What the system is being given just now. Where that broke off nobody knows how much of it it took.
        self._in_flight = 0
        self._sink = sink
        self._frames: deque[bytes | memoryview | Unmade | Piecewise] = deque()
        self._corked: list[bytes] | None = None
        self._writing = False
        self._work = trio.Event()
        self._room = trio.lowlevel.ParkingLot()

    @property
    def joins(self) -> bool:
        """Whether a frame may be sent in pieces."""
        return self._sink.joins

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
        self.delivered_bytes += taken
        if taken == len(frame):
            return True
        self._queue(memoryview(frame)[taken:] if taken else frame)
        return False

    def send_later(self, unmade: Unmade | Piecewise) -> None:
        """Queue a frame that is still to be made, behind everything before it."""
        if self.broken:
            return
        if self._corked is not None:
            self.uncork()
            self.cork()
        self._frames.append(unmade)
        self.queued_bytes += unmade.size
        self._work.set()

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
            if isinstance(long := self._frames[0], Piecewise):
                del self._frames[0]
                await self._write_pieces(long)
                continue
            frames: list[bytes | memoryview] = []
            size = 0
            self._writing = True
            try:
                if isinstance(first := self._frames[0], Unmade):
                    del self._frames[0]
                    frames, size = [await first.make()], first.size
                while (
                    self._frames
                    and size < _WRITE_BYTES
                    and not isinstance(ready := self._frames[0], Unmade | Piecewise)
                ):
                    del self._frames[0]
                    frames.append(ready)
                    size += len(ready)
                self._in_flight = size
                await self._sink.write(frames)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.break_off()
            finally:
                self._writing = False
            self._has_written(size)

    async def _write_pieces(self, long: Piecewise) -> None:
        left, whole = long.size, bytearray()
        self._writing = True
        try:
            for piece in long.pieces:
                if self._sink.joins:
                    written = self._in_flight = min(left, len(piece))
                    await self._sink.write([piece])
                    left -= written
                    self._has_written(written)
                else:
                    whole += piece
                await long.turn()
                if self.broken:
                    return
            if whole:
                self._in_flight = left
                await self._sink.write([memoryview(whole)])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.break_off()
        finally:
            self._writing = False
        self._has_written(left)

    def _has_written(self, size: int) -> None:
        if not self.broken:
            self._in_flight = 0
            self.queued_bytes -= size
            self.delivered_bytes += size
            self._room.unpark_all()

    async def wait_drained(self, below: int = 1) -> None:
        """Wait until fewer than `below` bytes are queued. Raises PeerGone where that will not be."""
        while self.queued_bytes >= below and not self.broken:
            await self._room.park()
        if self.broken:
            raise PeerGone("The connection is gone.")

    @property
    def end(self) -> int:
        """Where `delivered_bytes` will be when all that is queued now has been taken."""
        return self.delivered_bytes + self.queued_bytes

    def has_delivered(self, end: int) -> bool:
        """Whether the system has everything up to `end`, or never will."""
        return self.broken or self.delivered_bytes >= end

    def may_have_left(self, end: int) -> bool:
        """Whether the system may have everything up to `end`; also known when the connection has broken."""
        return self.delivered_bytes + self._in_flight >= end

    def is_last(self, end: int) -> bool:
        """Whether nothing that was accepted behind `end` can have reached the system."""
        return self.delivered_bytes + self._in_flight <= end

    async def progress(self, end: int) -> None:
        """Wait until something more was taken, unless everything up to `end` has been."""
        if not self.has_delivered(end):
            await self._room.park()

    def break_off(self) -> None:
        """Nothing can be sent any more: forget what is queued, wake whoever waits."""
        self.broken = True
        self._frames.clear()
        self.queued_bytes = 0
        self._work.set()
        self._room.unpark_all()

    def _queue(self, frame: bytes | memoryview) -> None:
        self._frames.append(frame)
        self.queued_bytes += len(frame)
        self._work.set()
