"""NDJSON and CBOR sequences on a byte stream, as links for a peer. Knows framing and codecs; no methods."""

from __future__ import annotations

from collections.abc import Callable

import trio

from sessiond.rpc.codecs import CBOR, JSON, Codec
from sessiond.rpc.framing import Framer, ItemFramer, LineFramer
from sessiond.rpc.limits import LONG_BYTES, Limits
from sessiond.rpc.link import ReceiveGate
from sessiond.transports.streams import ByteStream

# Scanning so much CBOR for the ends of items takes up to 3 ms (one-byte integers only).
_PIECE_BYTES = 8 * 1024


class FramedLink:
    """A byte stream with a framing and a codec: the link of both stream dialects.

    `gate` finds what it waits for while it receives: its peer, which is made after it.
    """

    joins = True

    def __init__(self, stream: ByteStream, framer: Framer, codec: Codec, gate: Callable[[], ReceiveGate]) -> None:
        self.codec = codec
        self._gate = gate
        self._stream = stream
        self._framer = framer
        self._ended = False

    @property
    def failed(self) -> bool:
        """Whether the framing failed, so that the client may still be sending."""
        return self._framer.error is not None

    @property
    def limit(self) -> int:
        return self._framer.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._framer.limit = limit

    async def receive(self) -> list[bytes]:
        framer = self._framer
        while not self._ended:
            if framer.error is not None:
                raise framer.error
            if framer.held_bytes > LONG_BYTES:
                await self._gate().reserve_message(framer.limit)
            data = await self._stream.receive_some()
            if data:
                frames = await self._feed(data)
            else:
                self._ended = True
                frames = framer.finish()
            if frames:
                return frames
        if framer.error is not None:
            raise framer.error
        return []

    async def _feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes."""
        # CBOR items are scanned in Python, so other tasks run in between. Lines are split in C.
        size = len(data) if self.codec is JSON else _PIECE_BYTES
        frames: list[bytes] = []
        for start in range(0, len(data), size):
            if start:
                await trio.lowlevel.checkpoint()
            await self._gate().wait_turn()
            frames += self._framer.feed(data[start : start + size])
        return frames

    def has_hung_up(self) -> bool:
        return self._stream.has_hung_up()

    def has_left_unread(self) -> bool:
        return self._stream.has_left_unread()

    def write_now(self, frame: bytes) -> int:
        return self._stream.send_now(frame)

    async def write(self, frames: list[bytes | memoryview]) -> None:
        await self._stream.send_all(frames[0] if len(frames) == 1 else b"".join(frames))


def ndjson_link(stream: ByteStream, limits: Limits, gate: Callable[[], ReceiveGate]) -> FramedLink:
    """A link with one JSON message per line."""
    return FramedLink(stream, LineFramer(limits.max_pre_auth_frame_bytes), JSON, gate)


def cbor_link(stream: ByteStream, limits: Limits, gate: Callable[[], ReceiveGate]) -> FramedLink:
    """A link with one message per item of a CBOR sequence (RFC 8742)."""
    return FramedLink(stream, ItemFramer(limits.max_pre_auth_frame_bytes, limits.max_nesting), CBOR, gate)
