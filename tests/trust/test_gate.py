"""Host, origin and token on TCP, sent by a raw client: combinations of them, compared with a short reference.

A web page can send anything to a loopback port, but it chooses neither `Host` nor `Origin`: DNS rebinding gives it the
address, and these two headers reveal it. Source: protocol.md, "Where it listens"; security.md, "The daemon itself".
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import product

import pytest
from support.real_daemon import PATIENCE_S, Daemon
from support.rows import check_each
from support.sampling import spread

pytestmark = pytest.mark.system

OWN = "agent:main:matrix"
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
LISTED = "https://panel.example"

# PORT stands for the daemon's port, NEXT for another one. Each list holds the values of one header, which may repeat.
GOOD_HOSTS = (["127.0.0.1:PORT"], ["localhost:PORT"], ["LocalHost:PORT"], ["[::1]:PORT"])
BAD_HOSTS = (
    [],
    [""],
    ["127.0.0.1"],
    ["localhost"],
    ["localhost:NEXT"],
    ["127.0.0.1:NEXT"],
    ["evil.example"],
    ["evil.example:PORT"],
    ["localhost.evil:PORT"],
    ["127.0.0.1.evil.example:PORT"],
    ["127.0.0.1.nip.io:PORT"],
    ["127.1:PORT"],
    ["2130706433:PORT"],
    ["0x7f000001:PORT"],
    ["0.0.0.0:PORT"],
    ["127.0.0.2:PORT"],
    ["localhost.:PORT"],
    ["user@127.0.0.1:PORT"],
    ["127.0.0.1:PORT@evil.example"],
    ["127.0.0.1:PORT,evil.example"],
    ["127.0.0.1:PORT evil.example"],
    ["[::1%25lo]:PORT"],
    ["127.0.0.1:0PORT"],
    ["127.0.0.1:PORT", "127.0.0.1:PORT"],
    ["127.0.0.1:PORT", "evil.example"],
    ["evil.example", "127.0.0.1:PORT"],
)
GOOD_ORIGINS = ([], ["http://127.0.0.1:PORT"], ["http://localhost:PORT"], [LISTED])
BAD_ORIGINS = (
    [""],
    ["null"],
    ["http://evil.example"],
    ["http://evil.example:PORT"],
    ["https://127.0.0.1:PORT"],
    ["http://127.0.0.1:NEXT"],
    ["http://localhost"],
    ["http://localhost.evil:PORT"],
    ["http://127.0.0.1:PORT.evil.example"],
    ["http://127.0.0.1:PORT/"],
    ["http://127.0.0.1:PORT, http://evil.example"],
    ["file://"],
    ["ws://127.0.0.1:PORT"],
    ["http://panel.example"],
    ["https://panel.example.evil"],
    ["https://sub.panel.example"],
    ["https://panel.example:443"],
    [LISTED, "http://evil.example"],
    ["http://127.0.0.1:PORT", "http://127.0.0.1:PORT"],
)
GOOD_TOKENS = (["Bearer GOOD"], ["bearer GOOD"], ["Bearer   GOOD"])
BAD_TOKENS = (
    [],
    [""],
    ["Bearer"],
    ["Bearer "],
    ["GOOD"],
    ["Basic GOOD"],
    ["Bearer GOODx"],
    ["Bearer GOOD GOOD"],
    ["Bearer nonsense"],
    ["Bearer GOOD", "Bearer GOOD"],
    ["Bearer GOOD", "Bearer nonsense"],
)


class RawClient:
    """Sends each request on a new connection, byte for byte as it is given."""

    def __init__(self, daemon: Daemon, good: str) -> None:
        self._address = ("127.0.0.1", daemon.port)
        self._words = {"PORT": str(daemon.port), "NEXT": str(daemon.port % 65535 + 1), "GOOD": good}

    def fill_in(self, text: str) -> str:
        for word, value in self._words.items():
            text = text.replace(word, value)
        return text

    def __call__(self, line: str, headers: list[tuple[str, str]], body: bytes = b"") -> tuple[int, dict[str, str]]:
        """The status of the answer, and its headers by their names in lower case."""
        text = "".join(f"{name}: {self.fill_in(value)}\r\n" for name, value in headers)
        with socket.create_connection(self._address, timeout=PATIENCE_S) as sock:
            sock.sendall(f"{self.fill_in(line)} HTTP/1.1\r\n{text}\r\n".encode("latin-1") + body)
            head = b""
            while b"\r\n\r\n" not in head:
                data = sock.recv(65536)
                assert data, f"no answer to {line} {headers}"
                head += data
        status, *lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        return int(status.split()[1]), {
            name.lower(): value for name, _, value in (one.partition(": ") for one in lines)
        }


@pytest.fixture
def raw(listening_daemon: Daemon, callers: dict[str, str]) -> RawClient:
    return RawClient(listening_daemon, callers["list read"])


CALL = ("POST /rpc", [("Content-Type", "application/json"), ("Content-Length", str(len(PING)))], PING)
UPGRADE = (
    "GET /ws",
    [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ],
    b"",
)
FOLLOW = (f"GET /sessions/{OWN}/history?follow=1", [("Accept", "text/event-stream")], b"")
HEALTH = ("GET /healthz", [], b"")


def combinations(hosts: object, origins: object, tokens: object) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """By default every third of them: each value meets good and bad ones of the others."""
    everything = list(product(hosts, origins, tokens))  # type: ignore[call-overload]
    yield from spread(everything, max(30, len(everything) // 3))


def expected(host: list[str], origin: list[str], token: list[str], success: int) -> set[int]:
    """The reference. 400 is right for a bad host as well: HTTP/1.1 demands exactly one `Host`."""
    if host not in GOOD_HOSTS:
        return {403, 400}
    if origin not in GOOD_ORIGINS:
        return {403}
    return {success} if token in GOOD_TOKENS else {401}


def find_wrong(
    raw: RawClient, request: tuple[str, list[tuple[str, str]], bytes], success: int, combined: object
) -> list[str]:
    """Send the request with each combination of host, origin and token; what differs from the reference."""
    line, more, body = request
    found = []
    for host, origin, token in combined:  # type: ignore[attr-defined]
        headers = [("Host", one) for one in host] + [("Origin", one) for one in origin]
        headers += [("Authorization", one) for one in token]
        status, answered = raw(line, headers + more, body)
        wanted = expected(host, origin, token, success)
        if status not in wanted:
            found.append(f"{line} {host} {origin} {token}: {status} instead of {wanted}")
        # Only a listed page may read an answer; pages of the daemon's own origin need no header.
        if answered.get("access-control-allow-origin") != (
            LISTED if status not in (101, 400) and _comes_from_listed_page(host, origin) else None
        ):
            found.append(f"{line} {host} {origin} {token}: readable by {answered.get('access-control-allow-origin')}")
    return found


def _comes_from_listed_page(host: list[str], origin: list[str]) -> bool:
    return host in GOOD_HOSTS and origin == [LISTED]


def test_a_call_needs_a_good_host_a_good_origin_and_a_good_token(raw: RawClient) -> None:
    hosts, origins = GOOD_HOSTS + BAD_HOSTS, GOOD_ORIGINS + BAD_ORIGINS
    assert find_wrong(raw, CALL, 200, combinations(hosts, origins, (GOOD_TOKENS[0], BAD_TOKENS[0]))) == []
    assert find_wrong(raw, CALL, 200, combinations(GOOD_HOSTS[:1], GOOD_ORIGINS, GOOD_TOKENS + BAD_TOKENS)) == []


@pytest.mark.parametrize(("request_", "success"), [(UPGRADE, 101), (FOLLOW, 200)], ids=["websocket", "events"])
def test_a_stream_needs_a_good_host_a_good_origin_and_a_good_token(
    raw: RawClient, request_: tuple[str, list[tuple[str, str]], bytes], success: int
) -> None:
    hosts, origins = GOOD_HOSTS[:1] + BAD_HOSTS, GOOD_ORIGINS + BAD_ORIGINS
    assert find_wrong(raw, request_, success, combinations(hosts, GOOD_ORIGINS[:1], GOOD_TOKENS[:1])) == []
    assert find_wrong(raw, request_, success, combinations(GOOD_HOSTS[:1], origins, GOOD_TOKENS[:1])) == []
    assert find_wrong(raw, request_, success, combinations(GOOD_HOSTS[:1], GOOD_ORIGINS, BAD_TOKENS)) == []


def test_a_route_without_a_token_still_needs_a_good_host_and_origin(raw: RawClient) -> None:
    line, more, body = HEALTH
    for host, origin, _ in combinations(GOOD_HOSTS + BAD_HOSTS, GOOD_ORIGINS + BAD_ORIGINS, [[]]):
        headers = [("Host", one) for one in host] + [("Origin", one) for one in origin]
        good = host in GOOD_HOSTS and origin in GOOD_ORIGINS
        assert (raw(line, headers + more, body)[0] == 200) is good, (host, origin)


@check_each(
    ("target", "wanted"),
    [
        ("http://127.0.0.1:PORT/rpc", {200}),
        ("http://localhost:PORT/rpc", {200}),
        ("http://evil.example/rpc", {403}),
        ("http://evil.example:PORT/rpc", {403}),
        ("http://127.0.0.1:NEXT/rpc", {403}),
        ("http://user@127.0.0.1:PORT/rpc", {403}),
        ("http://127.0.0.1:PORT@evil.example/rpc", {403}),
        ("https://127.0.0.1:PORT/rpc", {400}),
        ("ws://127.0.0.1:PORT/rpc", {400}),
        ("http:///rpc", {400}),
        ("//evil.example/rpc", {404}),
        ("/../rpc", {404}),
        ("/rpc/../rpc", {404}),
        ("/%72pc", {404}),
        ("*", {400}),
        ("evil.example:443", {400}),
        ("rpc", {400}),
        ("/rpc?token=GOOD", {400}),
    ],
)
def test_the_host_of_an_absolute_target_is_checked(raw: RawClient, target: str, wanted: set[int]) -> None:
    _, more, body = CALL
    headers = [("Host", "127.0.0.1:PORT"), *more]
    assert raw(f"POST {target}", [*headers, ("Authorization", "Bearer GOOD")], body)[0] in wanted
    # A token in the target authenticates nobody.
    assert raw(f"POST {target}", headers, body)[0] in {401, *wanted} - {200}


@pytest.mark.parametrize("where", ["/rpc?token=GOOD", "/rpc?access_token=GOOD", "/rpc?authorization=Bearer%20GOOD"])
def test_a_token_is_taken_from_the_authorization_header_only(raw: RawClient, where: str) -> None:
    _, more, body = CALL
    for headers in ([], [("Cookie", "token=GOOD")], [("X-Token", "GOOD")], [("Proxy-Authorization", "Bearer GOOD")]):
        assert raw(f"POST {where}", [("Host", "127.0.0.1:PORT"), *more, *headers], body)[0] == 401


@check_each("origin", [one for one in GOOD_ORIGINS + BAD_ORIGINS if one])
def test_only_a_listed_page_gets_a_positive_preflight_answer(raw: RawClient, origin: list[str]) -> None:
    headers = [("Host", "127.0.0.1:PORT"), ("Access-Control-Request-Method", "POST")]
    status, answered = raw("OPTIONS /rpc", headers + [("Origin", one) for one in origin])
    listed = origin == [LISTED]
    assert (status == 204) is listed
    assert answered.get("access-control-allow-origin") == (LISTED if listed else None)
    assert "access-control-allow-credentials" not in answered


@check_each(
    "headers",
    [
        [("Content-Length", "5"), ("Content-Length", "40")],
        [("Content-Length", "40"), ("Transfer-Encoding", "chunked")],
        [("Transfer-Encoding", "chunked, identity")],
        [("Content-Length", "-1")],
        [("Content-Length", "1e3")],
        [("Content-Length", "9" * 400)],
        [("Content-Length", "9" * 5000)],
        [("Bad Header", "x")],
        [("X", "a\0b")],
        [("X" * 70_000, "x")],
    ],
)
def test_an_ambiguous_or_malformed_head_is_refused(raw: RawClient, headers: list[tuple[str, str]]) -> None:
    more = [("Host", "127.0.0.1:PORT"), ("Authorization", "Bearer GOOD"), ("Content-Type", "application/json")]
    assert raw("POST /rpc", [*more, *headers], PING)[0] in {400, 413, 431, 501}


def test_tcp_serves_http_only(listening_daemon: Daemon) -> None:
    for first in (PING + b"\n", b"\xa1\x61a\x01", b"\x00", b"Content-Length: 2\r\n\r\n{}"):
        with socket.create_connection(("127.0.0.1", listening_daemon.port), timeout=PATIENCE_S) as sock:
            sock.sendall(first)
            sock.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))  # type: ignore[misc]
        assert b'"code":-32600' in answer and b'"result"' not in answer


def test_the_daemon_listens_on_loopback_only(listening_daemon: Daemon) -> None:
    """By the kernel's table: the only listening socket with the daemon's port is on 127.0.0.1."""
    assert listening_daemon.process is not None
    wanted = f"0100007F:{listening_daemon.port:04X}"
    with open(f"/proc/{listening_daemon.process.pid}/net/tcp", encoding="ascii") as file:
        listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
    assert wanted in listening
    assert [one for one in listening if one.endswith(f":{listening_daemon.port:04X}")] == [wanted]
