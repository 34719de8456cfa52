"""One POST over HTTP/1.1, with TLS checked. Follows no redirect and reads no body.

On Trio and h11, so that a time limit of the caller ends it wherever it waits; only names are resolved in a thread, one
for each poster, which may be stuck for as long as the resolver is.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import h11
import trio

from sessiond.config.urls import HttpUrl
from sessiond.errors import NoThread, reason_of
from sessiond.tasks import own_threads, run_in_thread

# An address that does not answer must not keep the next one of the same host from being tried.
_CONNECT_S = 5.0
_MAX_ADDRESSES = 4
_MAX_HEAD_BYTES = 64 * 1024
_READ_BYTES = 16 * 1024

Headers = Iterable[tuple[str, str]]


class NotPosted(Exception):
    """No answer came; the message is a sentence for a person, without path and content."""


class HttpPoster:
    """Posts to one target. Keeps the certificates that it checks with between two posts."""

    def __init__(self) -> None:
        self._resolve = own_threads(1)
        self._context: ssl.SSLContext | None = None

    async def post(self, url: HttpUrl, headers: Headers, content: bytes) -> int:
        """The status of the answer. NotPosted if none came; the caller sets the time limit."""
        try:
            stream = await self._connect(url)
        except OSError as error:
            raise NotPosted(f"{url.host} cannot be reached: {_reason_of(error)}") from None
        try:
            return await _exchange(await self._secure(stream, url), url, headers, content)
        except (trio.BrokenResourceError, ssl.SSLError) as error:
            raise NotPosted(self._explain(url, error)) from None
        except NoThread as error:
            raise NotPosted(reason_of(error)) from None
        except h11.ProtocolError:
            raise NotPosted(f"{url.host} does not answer as HTTP/1.1") from None
        finally:
            await trio.aclose_forcefully(stream)

    async def _connect(self, url: HttpUrl) -> trio.SocketStream:
        look_up = partial(socket.getaddrinfo, type=socket.SOCK_STREAM)
        found = await self._resolve(look_up, url.host, url.port, abandon_on_cancel=True)
        return await connect_first(found[:_MAX_ADDRESSES])

    async def _secure(self, stream: trio.SocketStream, url: HttpUrl) -> trio.abc.Stream:
        if url.scheme == "http":
            return stream
        if self._context is None:
            # Off the loop: reading the certificates of the system takes 20 ms.
            self._context = await run_in_thread(ssl.create_default_context)
        return trio.SSLStream(stream, self._context, server_hostname=url.host, https_compatible=True)

    def _explain(self, url: HttpUrl, error: trio.BrokenResourceError | ssl.SSLError) -> str:
        cause = error if isinstance(error, ssl.SSLError) else error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            self._context = None  # the owner may add the certificate meanwhile
            return f"the certificate of {url.host} is not good: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"{url.host} does not speak TLS as it should"
        return f"{url.host} closed the connection before it answered"


async def connect_first(addresses: Sequence[tuple[int, int, int, str, Any]]) -> trio.SocketStream:
    """A connection to the first of the addresses (as `getaddrinfo` has them) that answers. OSError of the last one."""
    failure = OSError(errno.ETIMEDOUT, "")
    for family, kind, protocol, _, address in addresses:
        try:
            # This fails too: names may have IPv6 addresses where the kernel has no IPv6.
            sock = trio.socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            with trio.move_on_after(_CONNECT_S):
                await sock.connect(address)
                return trio.SocketStream(sock)
        except OSError as error:
            failure = error
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            sock.close()
    raise failure


def _reason_of(error: OSError) -> str:
    # Trio puts the address into the words of the system; errors of names have numbers of their own.
    if isinstance(error, socket.gaierror) and error.strerror:
        return error.strerror
    return os.strerror(error.errno or errno.EIO)


async def _exchange(stream: trio.abc.Stream, url: HttpUrl, headers: Headers, content: bytes) -> int:
    wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
    head = [("Host", url.authority), ("Content-Length", str(len(content))), ("Connection", "close"), *headers]
    request = wire.send(h11.Request(method="POST", target=url.target, headers=head))
    try:
        await stream.send_all(b"".join(piece or b"" for piece in (request, wire.send(h11.Data(content)))))
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLError):
            raise
        # It may have refused the request before it had read it whole.
    wire.send(h11.EndOfMessage())
    while True:
        event = wire.next_event()
        if isinstance(event, h11.Response):
            return event.status_code
        if event is h11.NEED_DATA:
            data = await stream.receive_some(_READ_BYTES)
            if not data:
                raise trio.BrokenResourceError
            wire.receive_data(bytes(data))
