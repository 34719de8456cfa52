"""One POST against real servers: what is sent, what counts as an answer, TLS, and hosts that are silent."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.rows import check_each
from support.shortage import refused_threads

from sessiond.config.urls import HttpUrl
from sessiond.delivery.http_post import HttpPoster, NotPosted, connect_first

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Server:
    """Answers each connection with `answer` and keeps what it received."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.received: list[bytes] = []
        self.port = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        data = b""
        async with stream:
            while not data.endswith(b"!"):
                piece = await stream.receive_some(65536)
                if not piece:
                    break
                data += piece
            self.received.append(data)
            if self.answer:
                await stream.send_all(self.answer)

    def url(self, scheme: str = "http", host: str = "127.0.0.1") -> HttpUrl:
        return HttpUrl(scheme, host, self.port, "/topic?x=1")


@asynccontextmanager
async def serve(handle: Callable[[trio.SocketStream], Awaitable[None]], server: Server) -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, handle, 0)
        server.port = listeners[0].socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def server_of(answer: bytes) -> AsyncIterator[Server]:
    server = Server(answer)
    async with serve(server.serve, server):
        yield server


def certificate(folder: Path, *names: x509.GeneralName, days: int = 1) -> Path:
    """A self-signed certificate with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=10))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@asynccontextmanager
async def tls_server(path: Path) -> AsyncIterator[Server]:
    server, context = Server(OK), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, ssl.SSLError):
            await server.serve(trio.SSLStream(stream, context, server_side=True, https_compatible=True))

    async with serve(handle, server):
        yield server


async def refusal(url: HttpUrl) -> str:
    with pytest.raises(NotPosted) as caught, trio.fail_after(60):
        await HttpPoster().post(url, [], b"content!")
    return str(caught.value)


async def test_a_post_has_its_headers_its_length_and_its_content() -> None:
    async with server_of(OK) as server:
        assert await HttpPoster().post(server.url(), [("Content-Type", "text/plain")], "grüße!".encode()) == 200
        head, _, content = server.received[0].partition(b"\r\n\r\n")
        assert content == "grüße!".encode()
        assert head.split(b"\r\n") == [
            b"POST /topic?x=1 HTTP/1.1",
            f"Host: 127.0.0.1:{server.port}".encode(),
            b"Content-Length: 8",
            b"Connection: close",
            b"Content-Type: text/plain",
        ]


@check_each(
    ("answer", "status"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 204),
        (b"HTTP/1.0 202 Accepted\r\n\r\nrest", 202),
        (b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 301),
        (b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\nzz", 503),
    ],
)
async def test_the_status_of_the_final_answer_counts_and_nothing_behind_it(answer: bytes, status: int) -> None:
    async with server_of(answer) as server:
        assert await HttpPoster().post(server.url(), [], b"content!") == status
        assert len(server.received) == 1


@check_each(
    ("answer", "reason"),
    [
        (b"", "127.0.0.1 closed the connection before it answered"),
        (b"HTTP/1.1 200", "127.0.0.1 closed the connection before it answered"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "127.0.0.1 closed the connection before it answered"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "127.0.0.1 does not answer as HTTP/1.1"),
        (b"\x00\xff" * 100, "127.0.0.1 does not answer as HTTP/1.1"),
    ],
)
async def test_what_is_no_answer_is_none(answer: bytes, reason: str) -> None:
    async with server_of(answer) as server:
        assert await refusal(server.url()) == reason


async def test_an_address_of_a_kind_that_the_kernel_does_not_have_is_passed_over() -> None:
    async with server_of(OK) as server:
        no_such_family = (255, socket.SOCK_STREAM, 0, "", ("::1", 1))
        given = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", server.port))
        stream = await connect_first([no_such_family, given])
        await stream.aclose()
        with pytest.raises(OSError, match="not supported"):
            await connect_first([no_such_family])


async def test_a_port_where_nobody_listens_is_said() -> None:
    async with server_of(OK) as server:
        pass
    assert await refusal(server.url()) == "127.0.0.1 cannot be reached: Connection refused"


async def test_a_server_that_answers_before_it_has_read_everything_is_heard() -> None:
    server = Server(b"")

    async def refuse(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(1)
            await stream.send_all(b"HTTP/1.1 413 Too long\r\nContent-Length: 0\r\n\r\n")
            while await stream.receive_some(65536):
                pass

    async with serve(refuse, server):
        assert await HttpPoster().post(server.url(), [], b"x" * 10_000_000) == 413


async def test_the_time_limit_of_the_caller_ends_a_post_to_a_silent_server() -> None:
    server, reached = Server(b""), trio.Event()

    async def keep_silent(stream: trio.SocketStream) -> None:
        reached.set()
        await trio.sleep_forever()

    async with serve(keep_silent, server), trio.open_nursery() as nursery:
        limit = trio.CancelScope()

        async def post() -> None:
            with limit:
                await HttpPoster().post(server.url(), [], b"content!")

        nursery.start_soon(post)
        await reached.wait()
        limit.cancel()
    assert limit.cancelled_caught


async def test_a_certificate_is_good_if_the_system_trusts_it_and_it_is_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = certificate(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    async with tls_server(path) as server:
        poster = HttpPoster()
        with pytest.raises(NotPosted, match=r"^the certificate of 127\.0\.0\.1 is not good: self-signed certificate$"):
            await poster.post(server.url("https"), [], b"content!")
        monkeypatch.setenv("SSL_CERT_FILE", str(path))  # the owner adds it; the same poster looks anew
        assert await poster.post(server.url("https"), [], b"content!") == 200
        assert [data[-8:] for data in server.received if data] == [b"content!"]


@check_each(
    ("name", "days", "reason"),
    [("other.example", 1, "Hostname mismatch|IP address mismatch"), ("127.0.0.1", -1, "certificate has expired")],
)
async def test_a_trusted_certificate_of_another_host_or_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, days: int, reason: str
) -> None:
    names = x509.DNSName(name) if name[0].isalpha() else x509.IPAddress(ipaddress.ip_address(name))
    path = certificate(tmp_path, names, days=days)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    async with tls_server(path) as server:
        with pytest.raises(NotPosted, match=f"is not good: .*({reason})"):
            await HttpPoster().post(server.url("https"), [], b"content!")
        assert not any(b"content" in data for data in server.received)


async def test_without_a_thread_to_read_the_certificates_in_nothing_is_posted(tmp_path: Path) -> None:
    async def look_up(function: Callable[..., Any], *args: Any, abandon_on_cancel: bool) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)

    path = certificate(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    async with tls_server(path) as server:
        poster = HttpPoster()
        poster._resolve = look_up
        with refused_threads(), pytest.raises(NotPosted, match=r"^no thread can be started$"):
            await poster.post(server.url("https"), [], b"content!")


async def test_a_server_that_does_not_speak_tls_gets_nothing() -> None:
    server = Server(b"")

    async def answer_at_once(stream: trio.SocketStream) -> None:
        async with stream:
            server.received.append(bytes(await stream.receive_some(65536)))
            await stream.send_all(b"HTTP/1.1 400 Bad\r\n\r\n")

    async with serve(answer_at_once, server):
        assert await refusal(server.url("https")) == "127.0.0.1 does not speak TLS as it should"
        assert not any(b"content" in data for data in server.received)
