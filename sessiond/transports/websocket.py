"""WebSocket as one more link for a peer: text frames are JSON, binary frames CBOR.

Knows the upgrade and trio-websocket; knows no methods. No extensions are taken, so nothing is compressed: a compressed
frame of 16 MiB can be a small one on the wire.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable

import h11
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from sessiond.errors import InvalidRequest, SessiondError
from sessiond.rpc.cbor_items import check_item
from sessiond.rpc.codecs import CBOR, JSON, Codec
from sessiond.rpc.limits import LONG_BYTES, Limits
from sessiond.rpc.link import Link
from sessiond.transports.exchange import HttpError
from sessiond.transports.gate import Headers, values
from sessiond.transports.small_pieces import FrameCutter, TooFine
from sessiond.transports.streams import ByteStream

_HANDSHAKE_S = 10.0
_CLOSE_S = 2.0
_RECEIVE_BYTES = 64 * 1024
_CLOSE_FRAME = b"\x88"
_MAX_REASON_BYTES = 123  # of a control frame's 125, two are the code
_HEADERS_HANDED_ON = (b"host", b"upgrade", b"connection", b"sec-websocket-key", b"sec-websocket-version")


def check_upgrade(request: h11.Request) -> None:
    """A request that may become a WebSocket (RFC 6455, section 4.2.1). Raises HttpError.

    It is checked here because `wrap_server_stream` waits for ever after a bad handshake.
    """
    headers = request.headers
    if "websocket" not in _tokens(headers, b"upgrade") or "upgrade" not in _tokens(headers, b"connection"):
        raise HttpError(426, "upgrade_required", "This path is a WebSocket.", (("Upgrade", "websocket"),))
    if values(headers, b"sec-websocket-version") != ["13"]:
        raise HttpError(
            426, "upgrade_required", "WebSocket version 13 is spoken here.", (("Sec-WebSocket-Version", "13"),)
        )
    keys = values(headers, b"sec-websocket-key")
    if request.method != b"GET" or request.http_version != b"1.1" or len(keys) != 1 or not _is_key(keys[0]):
        raise HttpError(400, "bad_request", "This is no WebSocket handshake.")
    if values(headers, b"content-length") or values(headers, b"transfer-encoding"):
        raise HttpError(400, "bad_request", "A WebSocket handshake has no body.")


def handshake_bytes(request: h11.Request) -> bytes:
    """The checked request once more as text, with only the headers that matter: extensions are not offered on."""
    lines = [b"GET /ws HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers if name in _HEADERS_HANDED_ON]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def converse(stream: ByteStream, limits: Limits, serve: Callable[[Link], Awaitable[None]]) -> None:
    """Finish the handshake that `stream` begins with, and let `serve` have the link until it is done."""
    try:
        await _converse(stream, limits, serve)
    except* ConnectionClosed:
        pass  # the library's reader tells this way too that the client has gone


async def _converse(stream: ByteStream, limits: Limits, serve: Callable[[Link], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        open_ended = _OpenEnded(stream)
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
        # Only now: the library's reader has gone, and two cannot read from one stream.
        await _say_what_was_wrong(connection, open_ended)


class _OpenEnded(trio.abc.Stream):
    """The stream as the library has it, which closes it without a word after a protocol error: here it stays open.

    Whoever accepted the connection closes it. `closing` says whether a close frame went out, `came_bytes` how much came
    since whoever reads the messages has set it back. What came is handed on in pieces that are parsed quickly;
    `wrong` is why no more is.
    """

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.closing = False
        self.came_bytes = 0
        self.before_more: Callable[[], Awaitable[None]] | None = None
        self.before_piece: Callable[[], Awaitable[None]] | None = None
        self.wrong: tuple[int, str] | None = None
        self._came, self._handed = b"", 0
        self._cutter: FrameCutter | None = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.closing = self.closing or bytes(data[:1]) == _CLOSE_FRAME
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._handed < len(self._came):
            await trio.lowlevel.checkpoint()
        else:
            if self.came_bytes > LONG_BYTES and self.before_more is not None:
                await self.before_more()
            self._came, self._handed = await self.stream.receive_some(max_bytes), 0
            self.came_bytes += len(self._came)
        if self._cutter is None:  # the handshake, which was put back as a whole
            self._cutter, self._handed = FrameCutter(), len(self._came)
            return self._came
        if self.before_piece is not None:
            await self.before_piece()
        begin = self._handed
        try:
            self._handed = self._cutter.cut(self._came, begin)
        except TooFine as error:
            self.wrong = (1009, str(error))
            self._came, self._handed = b"", 0
        return self._came[begin : self._handed]

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def _say_what_was_wrong(connection: WebSocketConnection, stream: _OpenEnded) -> None:
    """The close frame after a protocol error (RFC 6455, section 7.1.7), which the library leaves out."""
    said = connection.closed
    wrong = stream.wrong
    if said is not None and said.code in (1002, 1007):
        wrong = (said.code, reason_of_close(said.code, said.reason or ""))
    if wrong is None or stream.closing:
        return
    code, reason = wrong
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


def reason_of_close(code: int, said: str) -> str:
    """Why the connection is closed, in our words; `said` is what the library has to say about it."""
    if code == 1007:
        return "The reason of the close is not UTF-8." if "CLOSE" in said else "The text of the message is not UTF-8."
    known = (words for begin, words in _REASONS.items() if said.startswith(begin))
    return next(known, "This is no WebSocket frame.")


class WebSocketLink:
    """A WebSocket. The first message settles whether the connection is text (JSON) or binary (CBOR).

    `limit` is only kept: the library was told the largest message when the connection began.
    """

    joins = False

    def __init__(self, connection: WebSocketConnection, stream: _OpenEnded, limits: Limits) -> None:
        self.codec: Codec = JSON
        self.limit = limits.max_frame_bytes
        self.close_code = 1000
        self.before_long: Callable[[int], Awaitable[None]] | None = None
        self.before_piece: Callable[[], Awaitable[None]] | None = None
        self._max_nesting = limits.max_nesting
        self._connection = connection
        self._stream = stream
        stream.before_more, stream.before_piece = self._reserve, self._wait_turn
        self._settled = False

    async def receive(self) -> list[bytes]:
        while True:
            try:
                message = await self._connection.get_message()
            except ConnectionClosed:
                # Both halves are gone: nobody is left to be answered.
                raise trio.BrokenResourceError("the WebSocket is closed") from None
            self._stream.came_bytes = 0
            try:
                frame = await self._frame_of(message)
            except SessiondError:
                self.close_code = 1003  # RFC 6455, section 7.4.1: data that cannot be accepted
                raise
            if frame:
                return [frame]

    async def _reserve(self) -> None:
        if self.before_long is not None:
            try:
                await self.before_long(self.limit)
            except SessiondError:
                raise trio.BrokenResourceError("there is no room for so long a message") from None

    async def _wait_turn(self) -> None:
        if self.before_piece is not None:
            await self.before_piece()

    def has_hung_up(self) -> bool:
        return self._connection.closed is not None or self._stream.stream.has_hung_up()

    def has_left_unread(self) -> bool:
        return False  # the library's own frames, a pong or a ping, may stand behind ours

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
        if self._settled and codec is not self.codec:
            raise InvalidRequest("This connection began with the other kind of frame; stay with one.")
        self.codec = codec
        self._settled = True
        if isinstance(message, str):
            return message.encode().strip(b" \t\r\n")
        await self._wait_turn()
        await check_item(message, self._max_nesting)
        return message


def _tokens(headers: Headers, name: bytes) -> set[str]:
    return {token.strip().lower() for value in values(headers, name) for token in value.split(",")}


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False
