"""HTTP/1.1 on a byte stream: request heads and bodies in, responses out. Knows h11, deadlines and sizes; no paths."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable

import h11
import trio

from sessiond.errors import LimitExceeded
from sessiond.rpc.limits import LONG_BYTES
from sessiond.transports.exchange import HttpError, HttpResponse
from sessiond.transports.gate import header_values
from sessiond.transports.small_pieces import PIECES_AT_ONCE, ChunkCounter, TooManyPieces, check_head
from sessiond.transports.streams import ByteStream

_PYTHON_BYTES = re.compile(r":? (?:bytearray\()?b['\"].*", re.DOTALL)
# In every response: no cache keeps it, and no browser interprets the text of agents as a page.
_COMMON_HEADERS = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
_MAX_HEAD_BYTES = 64 * 1024
_BODY_S = 60.0
_ANSWER_S = 120.0  # then a client that does not read its response is closed
_HANGUP_CHECK_S = 1.0
_EMPTY_LINES = re.compile(rb"\A(?:\r\n)++")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Headers = list[tuple[str, str]]


class HttpWire:
    """The server's side of one connection. For each request: `read_head`, `read_body`, then `respond` or a stream.

    `turn` is awaited before each chunk of received bytes is parsed.
    """

    def __init__(self, stream: ByteStream, head_s: float, turn: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._turn = turn
        self._head_s = head_s
        self._h11 = _new_connection()
        self._before_head = True
        self._pending_blank = b""
        self._has_request_bytes = False
        self._method = b""
        self._must_close = False

    async def read_head(self) -> h11.Request | None:
        """The next request's head; None where the client closed, or sent nothing in time. Raises HttpError."""
        self._begin_request()
        self._method = b""
        await self._turn()
        with trio.move_on_after(self._head_s):
            event = await self._next_event(check_head)
            if not isinstance(event, h11.Request):
                return None
            self._method = event.method
            self._check_length(event)
            return event
        if self._has_request_bytes:
            raise HttpError(408, "request_timeout", "The request did not come in time.")
        return None

    def _begin_request(self) -> None:
        """Prepare for the next request, keeping bytes of it that were received already."""
        if self._h11.our_state is h11.DONE:
            received, ended = self._h11.trailing_data
            self._h11, self._before_head, self._has_request_bytes = _new_connection(), True, False
            self._feed(received)
            if ended:
                self._h11.receive_data(b"")

    def _feed(self, data: bytes) -> None:
        """Give received bytes to h11, without empty lines before a request: some clients end a body with one.

        Source: RFC 9112, section 2.2.
        """
        if self._before_head:
            data = self._pending_blank + data
            data = _EMPTY_LINES.sub(b"", data)
            self._pending_blank = data if data == b"\r" else b""
            if not data or self._pending_blank:
                return
            self._before_head, self._has_request_bytes = False, True
        self._h11.receive_data(data)

    def _check_length(self, head: h11.Request) -> None:
        """Refuse a request with an ambiguous length, which could hide another request from a proxy (smuggling).

        No further request is accepted on its connection. Source: RFC 9112, section 6.1.
        """
        self._must_close = True
        if head.http_version not in (b"1.0", b"1.1"):
            raise HttpError(505, "bad_request", "HTTP/1.1 is spoken here.")
        encoded = header_values(head.headers, b"transfer-encoding")
        if encoded and header_values(head.headers, b"content-length"):
            raise HttpError(400, "bad_request", "A request has one length.")
        if encoded and head.http_version == b"1.0":
            raise HttpError(400, "bad_request", "HTTP/1.0 has no Transfer-Encoding.")
        self._must_close = False

    async def read_body(self, head: h11.Request, limit: int, before_long: Callable[[int], Awaitable[None]]) -> bytes:
        """The body of the request, at most `limit` bytes. Raises LimitExceeded or HttpError.

        `before_long(limit)` is awaited before the rest of a long body is read.
        """
        too_large = LimitExceeded(f"A body may have {limit} bytes here.", limit="body", value=limit)
        announced = header_values(head.headers, b"content-length")
        if announced and int(announced[0]) > limit:
            raise too_large
        if self._h11.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        body = bytearray()
        reserved = False
        chunks, pieces = ChunkCounter(), 0
        with trio.move_on_after(_BODY_S):
            while isinstance(event := await self._next_event(chunks.note_incoming), h11.Data):
                body += event.data
                if len(body) > limit:
                    raise too_large
                try:
                    chunks.count(event, len(body))
                except TooManyPieces as error:
                    raise HttpError(400, "bad_request", str(error)) from None
                pieces += 1
                if pieces % PIECES_AT_ONCE == 0:
                    await self._turn()
                if len(body) > LONG_BYTES and not reserved:
                    await before_long(limit)
                    reserved = True
            return bytes(body)
        raise HttpError(408, "request_timeout", "The body did not come in time.")

    async def respond(self, response: HttpResponse) -> bool:
        """Send a response; whether another request may follow on the connection."""
        headers = [*response.headers, *_COMMON_HEADERS]
        if response.status != 204:
            headers += [("Content-Type", response.content_type), ("Content-Length", str(len(response.body)))]
        if not self._skip_body() or self._must_close:
            headers.append(("Connection", "close"))
        events: list[h11.Event] = [h11.Response(status_code=response.status, headers=_encode_headers(headers))]
        if response.body and self._method != b"HEAD":
            events.append(h11.Data(data=response.body))
        data = b"".join(self._h11.send(event) or b"" for event in [*events, h11.EndOfMessage()])
        with trio.move_on_after(_ANSWER_S) as patience:
            await self._stream.send_all(data)
        return not patience.cancelled_caught and self._h11.our_state is self._h11.their_state is h11.DONE

    async def begin_stream(self, content_type: str, headers: tuple[tuple[str, str], ...]) -> None:
        """Begin a response of unknown length, which `send_piece` continues and `end_stream` ends."""
        all_headers = [("Content-Type", content_type), *_COMMON_HEADERS, ("Connection", "close"), *headers]
        await self._send(h11.Response(status_code=200, headers=_encode_headers(all_headers)))

    async def send_piece(self, data: bytes) -> None:
        await self._send(h11.Data(data=data))

    async def end_stream(self) -> None:
        """Send the end of the stream, so that the client knows it is complete."""
        with trio.move_on_after(_HANGUP_CHECK_S):
            await self._send(h11.EndOfMessage())

    def trailing_bytes(self) -> bytes:
        """The bytes received behind a request that switches the protocol."""
        data: bytes = self._h11.trailing_data[0]
        return data

    async def wait_until_gone(self) -> None:
        """Wait until the client closes the connection. One that only ended its sending half still reads."""
        try:
            while await self._stream.receive_some():
                pass  # further requests on this connection are ignored
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        await self.wait_until_hung_up()

    async def wait_until_hung_up(self, until: trio.Event | None = None) -> None:
        """Wait until the client closes the connection, without reading from it, or `until` is set."""
        until = trio.Event() if until is None else until
        while not (self._stream.has_hung_up() or until.is_set()):
            with trio.move_on_after(_HANGUP_CHECK_S):
                await until.wait()

    async def _send(self, event: h11.Event) -> None:
        await self._stream.send_all(self._h11.send(event) or b"")

    async def _next_event(self, look: Callable[[bytes], None]) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """The next h11 event; `look` is called with the unparsed bytes before h11 parses them."""
        try:
            look(self._h11.trailing_data[0])
            while (event := self._h11.next_event()) is h11.NEED_DATA:
                data = await self._stream.receive_some()
                await self._turn()
                if data:
                    self._feed(data)
                else:
                    self._h11.receive_data(b"")
                look(self._h11.trailing_data[0])
        except h11.RemoteProtocolError as error:
            raise refusal_of(error) from None
        return event

    def _skip_body(self) -> bool:
        """Drop the received part of an unread body; whether that was all of it, in few enough pieces."""
        try:
            for _ in range(PIECES_AT_ONCE):
                if self._h11.their_state is not h11.SEND_BODY:
                    break
                if self._h11.next_event() is h11.NEED_DATA:
                    return False
            else:
                return False
        except h11.RemoteProtocolError:
            return False
        return self._h11.their_state is not h11.ERROR


def _new_connection() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)


def refusal_of(error: h11.RemoteProtocolError) -> HttpError:
    """The error response for bytes that are no HTTP."""
    # h11's text ends with a Python repr of the bytes, which the client does not need.
    what = _PYTHON_BYTES.sub("", str(error))
    return HttpError(error.error_status_hint, "bad_request", f"This is no HTTP/1.1 request: {what}.")


def _encode_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in [("Date", _http_date()), *headers]]


def _http_date() -> str:
    """The time as in RFC 9110, section 5.6.7, whatever the locale."""
    now = time.gmtime()
    return (
        f"{_DAYS[now.tm_wday]}, {now.tm_mday:02d} {_MONTHS[now.tm_mon - 1]} {now.tm_year} "
        f"{now.tm_hour:02d}:{now.tm_min:02d}:{now.tm_sec:02d} GMT"
    )
