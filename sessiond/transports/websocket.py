"""WebSocket as a link for a peer: text frames are JSON, binary frames CBOR.

Knows the upgrade and trio-websocket; knows no methods. No extensions are accepted, compression in particular: a few
bytes on the wire could be a frame of 16 MiB.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable

import h11
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from sessiond.errors import InvalidRequest, Overloaded, SessiondError
from sessiond.rpc.cbor_items import check_item
from sessiond.rpc.codecs import CBOR, JSON, Codec
from sessiond.rpc.limits import LONG_BYTES, Limits
from sessiond.rpc.link import Link, ReceiveGate
from sessiond.transports.exchange import HttpError
from sessiond.transports.gate import Headers, header_values
from sessiond.transports.small_pieces import FrameCutter, TooManyPieces
from sessiond.transports.streams import ByteStream

_HANDSHAKE_S = 10.0
_CLOSE_S = 2.0
_RECEIVE_BYTES = 64 * 1024
_CLOSE_FRAME = b"\x88"
_MAX_REASON_BYTES = 123  # a control frame has at most 125 bytes, two of which are the code
_HEADERS_HANDED_ON = (b"host", b"upgrade", b"connection", b"sec-websocket-key", b"sec-websocket-version")


def check_upgrade(request: h11.Request) -> None:
    """Raise HttpError unless the request is a valid WebSocket handshake (RFC 6455, section 4.2.1).

    Checked here because `wrap_server_stream` waits for ever after an invalid handshake.
    """
    headers = request.headers
    if "websocket" not in _tokens(headers, b"upgrade") or "upgrade" not in _tokens(headers, b"connection"):
        raise HttpError(426, "upgrade_required", "This path is a WebSocket.", (("Upgrade", "websocket"),))
    if header_values(headers, b"sec-websocket-version") != ["13"]:
        raise HttpError(
            426, "upgrade_required", "WebSocket version 13 is spoken here.", (("Sec-WebSocket-Version", "13"),)
        )
    keys = header_values(headers, b"sec-websocket-key")
    if request.method != b"GET" or request.http_version != b"1.1" or len(keys) != 1 or not _is_key(keys[0]):
        raise HttpError(400, "bad_request", "This is no WebSocket handshake.")
    if header_values(headers, b"content-length") or header_values(headers, b"transfer-encoding"):
        raise HttpError(400, "bad_request", "A WebSocket handshake has no body.")


def handshake_bytes(request: h11.Request) -> bytes:
    """The checked request as bytes again, with the required headers only, so that no extension is negotiated."""
    lines = [b"GET /ws HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers if name in _HEADERS_HANDED_ON]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def serve_websocket(
    stream: ByteStream,
    limits: Limits,
    serve: Callable[[Link], Awaitable[None]],
    gate: Callable[[], ReceiveGate | None],
) -> None:
    """Finish the handshake with which `stream` begins, and run `serve` with the link until it returns.

    `gate` finds the peer that `serve` makes.
    """
    try:
        await _serve(stream, limits, serve, gate)
    except* ConnectionClosed:
        pass  # the library's reader task may also raise it when the client has closed


async def _serve(
    stream: ByteStream,
    limits: Limits,
    serve: Callable[[Link], Awaitable[None]],
    gate: Callable[[], ReceiveGate | None],
) -> None:
    async with trio.open_nursery() as nursery:
        open_ended = _UnclosedStream(stream, limits.max_frame_bytes, gate)
        with trio.move_on_after(_HANDSHAKE_S) as patience:
            request = await wrap_server_stream(
                nursery,
                open_ended,
                max_message_size=limits.max_frame_bytes,
                receive_buffer_size=_RECEIVE_BYTES,
            )
            connection = await request.accept()
        if not patience.cancelled_caught:
            link = WebSocketLink(connection, open_ended, limits)
            try:
                await serve(link)
            finally:
                with trio.move_on_after(_CLOSE_S) as closing:
                    closing.shield = True
                    await connection.aclose(link.close_code)
        nursery.cancel_scope.cancel()
    if not patience.cancelled_caught:
        # Only after the library's reader task has ended, because only one task may read from the stream.
        await _send_close_reason(connection, open_ended)


class _UnclosedStream(trio.abc.Stream):
    """The stream that the library uses and cannot close: after a protocol error it would send no close frame.

    `closing` says whether a close frame was sent. `received_bytes` counts the bytes received since the last message.
    Received bytes are returned in pieces with few frames; `refusal` (code, reason) is set where a message has too many.
    `gate` finds what it waits for while it receives: the peer, None until the handshake is over.
    """

    def __init__(self, stream: ByteStream, limit: int, gate: Callable[[], ReceiveGate | None]) -> None:
        self.stream = stream
        self.limit = limit
        self._gate = gate
        self.closing = False
        self.received_bytes = 0
        self.refusal: tuple[int, str] | None = None
        self._received, self._returned = b"", 0
        self._cutter: FrameCutter | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.closing = self.closing or bytes(data[:1]) == _CLOSE_FRAME
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._returned < len(self._received):
            await trio.lowlevel.checkpoint()
        else:
            if self.received_bytes > LONG_BYTES and (gate := self._gate()) is not None:
                await self._reserve(gate)
            self._received, self._returned = await self.stream.receive_some(max_bytes), 0
            self.received_bytes += len(self._received)
        if self._cutter is None:  # the first bytes are the handshake, which was put back as a whole
            self._cutter, self._returned = FrameCutter(), len(self._received)
            return self._received
        await self.wait_turn()
        begin = self._returned
        try:
            self._returned = self._cutter.cut(self._received, begin)
        except TooManyPieces as error:
            self.refusal = (1009, str(error))
            self._received, self._returned = b"", 0
        return self._received[begin : self._returned]

    async def wait_turn(self) -> None:
        """Wait before a piece of received bytes is processed."""
        if (gate := self._gate()) is not None:
            await gate.wait_turn()

    async def _reserve(self, gate: ReceiveGate) -> None:
        try:
            await gate.reserve_message(self.limit)
        except SessiondError:
            raise trio.BrokenResourceError("there is no room for so long a message") from None

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def _send_close_reason(connection: WebSocketConnection, stream: _UnclosedStream) -> None:
    """Send the close frame after a protocol error (RFC 6455, section 7.1.7), which the library does not send."""
    closed = connection.closed
    refusal = stream.refusal
    if closed is not None and closed.code in (1002, 1007):
        refusal = (closed.code, reason_of_close(closed.code, closed.reason or ""))
    if refusal is None or stream.closing:
        return
    code, reason = refusal
    payload = code.to_bytes(2, "big") + reason.encode()[:_MAX_REASON_BYTES]
    try:
        await stream.stream.send_all(_CLOSE_FRAME + bytes([len(payload)]) + payload)
    except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
        return
    await stream.stream.linger()


_REASONS = {
    "unexpected CONTINUATION": "A fragment goes on with a message that never began.",
    "expected CONTINUATION": "A new message began before the one before it had ended.",
    "Reserved bit set": "A reserved bit is set, and no extension was agreed on.",
    "Invalid opcode": "There is no such kind of frame.",
    "Invalid attempt to fragment": "A ping, a pong or a close comes in one frame.",
    "server received unexpected unmasked": "A client masks its frames.",
    "Control frame with payload len": "A ping, a pong or a close has at most 125 bytes.",
    "Payload length used": "The length of a frame is written as short as it can be.",
    "8-byte payload length": "The length of a frame is a positive number.",
    "CLOSE with 1 byte": "A close has no code or a whole one.",
    "CLOSE": "There is no such code for a close.",
    "remote CLOSE": "There is no such code for a close.",
}


def reason_of_close(code: int, library_text: str) -> str:
    """The reason to send with a close; `library_text` is the library's text for the same error."""
    if code == 1007:
        is_close = "CLOSE" in library_text
        return "The reason of the close is not UTF-8." if is_close else "The text of the message is not UTF-8."
    known = (text for beginning, text in _REASONS.items() if library_text.startswith(beginning))
    return next(known, "This is no WebSocket frame.")


class WebSocketLink:
    """A WebSocket. The first message decides whether the connection is text (JSON) or binary (CBOR).

    Setting `limit` only changes what is reserved: the library got the largest message size at the beginning.
    """

    joins = False

    def __init__(self, connection: WebSocketConnection, stream: _UnclosedStream, limits: Limits) -> None:
        self.codec: Codec = JSON
        self.close_code = 1000
        self._max_nesting = limits.max_nesting
        self._connection = connection
        self._stream = stream
        self._has_codec = False

    @property
    def limit(self) -> int:
        return self._stream.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._stream.limit = limit

    async def receive(self) -> list[bytes]:
        while True:
            try:
                message = await self._connection.get_message()
            except ConnectionClosed:
                # A closed WebSocket has no half that could still be written to.
                raise trio.BrokenResourceError("the WebSocket is closed") from None
            self._stream.received_bytes = 0
            try:
                frame = await self._frame_of(message)
            except SessiondError as error:
                # RFC 6455, section 7.4.1: data that cannot be accepted; 1013 is registered for "try again later".
                self.close_code = 1013 if isinstance(error, Overloaded) else 1003
                raise
            if frame:
                return [frame]

    def has_hung_up(self) -> bool:
        return self._connection.closed is not None or self._stream.stream.has_hung_up()

    def has_left_unread(self) -> bool:
        return False  # unknown: the unread bytes may be a ping or pong of the library

    def write_now(self, frame: bytes) -> int:  # noqa: ARG002
        return 0  # the library sends with `await` only

    async def write(self, frames: list[bytes | memoryview]) -> None:
        try:
            for frame in frames:
                data = bytes(frame)
                await self._connection.send_message(data.decode().rstrip("\n") if self.codec is JSON else data)
        except ConnectionClosed:
            raise trio.BrokenResourceError("the WebSocket is closed") from None

    async def _frame_of(self, message: str | bytes) -> bytes:
        codec = JSON if isinstance(message, str) else CBOR
        if self._has_codec and codec is not self.codec:
            raise InvalidRequest("This connection began with the other kind of frame; stay with one.")
        self.codec = codec
        self._has_codec = True
        if isinstance(message, str):
            return message.encode().strip(b" \t\r\n")
        await self._stream.wait_turn()
        await check_item(message, self._max_nesting)
        return message


def _tokens(headers: Headers, name: bytes) -> set[str]:
    return {token.strip().lower() for value in header_values(headers, name) for token in value.split(",")}


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False
