"""Host, origin and token on TCP, as a raw client writes them: every combination, against a reference of a few lines.

A web page can send anything to a port of loopback but choose neither `Host` nor `Origin`: DNS rebinding gives it the
address, and these two headers tell on it. Source: protocol.md, "Where it listens"; security.md, "The daemon itself".
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import product

import pytest
from support.real_daemon import PATIENCE_S, Daemon

pytestmark = pytest.mark.system

OWN = "agent:main:matrix"
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
LISTED = "https://panel.example"

# PORT stands for ours, NEXT for another. Each is the list of headers to be sent.
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


class Raw:
    """One request on a connection of its own, byte for byte as it is given."""

    def __init__(self, daemon: Daemon, good: str) -> None:
        self._address = ("127.0.0.1", daemon.port)
        self._words = {"PORT": str(daemon.port), "NEXT": str(daemon.port % 65535 + 1), "GOOD": good}

    def filled(self, text: str) -> str:
        for word, value in self._words.items():
            text = text.replace(word, value)
        return text

    def __call__(self, line: str, headers: list[tuple[str, str]], body: bytes = b"") -> tuple[int, dict[str, str]]:
        """The status, and the headers by their names in lower case."""
        text = "".join(f"{name}: {self.filled(value)}\r\n" for name, value in headers)
        with socket.create_connection(self._address, timeout=PATIENCE_S) as sock:
            sock.sendall(f"{self.filled(line)} HTTP/1.1\r\n{text}\r\n".encode("latin-1") + body)
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
def raw(trusting: Daemon, callers: dict[str, str]) -> Raw:
    return Raw(trusting, callers["list read"])


TO_CALL = ("POST /rpc", [("Content-Type", "application/json"), ("Content-Length", str(len(PING)))], PING)
TO_UPGRADE = (
    "GET /ws",
    [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ],
    b"",
)
TO_FOLLOW = (f"GET /sessions/{OWN}/history?follow=1", [("Accept", "text/event-stream")], b"")
TO_FREE = ("GET /healthz", [], b"")


def combinations(hosts: object, origins: object, tokens: object) -> Iterator[tuple[list[str], list[str], list[str]]]:
    yield from product(hosts, origins, tokens)  # type: ignore[call-overload]


def expected(host: list[str], origin: list[str], token: list[str], done: int) -> set[int]:
    """The reference. A request without exactly one host is no HTTP/1.1, which may be said as well."""
    if host not in GOOD_HOSTS:
        return {403, 400}
    if origin not in GOOD_ORIGINS:
        return {403}
    return {done} if token in GOOD_TOKENS else {401}


def wrong(raw: Raw, asked: tuple[str, list[tuple[str, str]], bytes], done: int, which: object) -> list[str]:
    line, more, body = asked
    found = []
    for host, origin, token in which:  # type: ignore[attr-defined]
        headers = [("Host", one) for one in host] + [("Origin", one) for one in origin]
        headers += [("Authorization", one) for one in token]
        status, answered = raw(line, headers + more, body)
        wanted = expected(host, origin, token, done)
        if status not in wanted:
            found.append(f"{line} {host} {origin} {token}: {status} instead of {wanted}")
        # Only a listed page may read an answer; our own pages and no page need no leave.
        if answered.get("access-control-allow-origin") != (
            LISTED if status not in (101, 400) and _names(host, origin) else None
        ):
            found.append(f"{line} {host} {origin} {token}: readable by {answered.get('access-control-allow-origin')}")
    return found


def _names(host: list[str], origin: list[str]) -> bool:
    return host in GOOD_HOSTS and origin == [LISTED]


def test_a_call_needs_a_good_host_a_good_origin_and_a_good_token(raw: Raw) -> None:
    hosts, origins = GOOD_HOSTS + BAD_HOSTS, GOOD_ORIGINS + BAD_ORIGINS
    assert wrong(raw, TO_CALL, 200, combinations(hosts, origins, (GOOD_TOKENS[0], BAD_TOKENS[0]))) == []
    assert wrong(raw, TO_CALL, 200, combinations(GOOD_HOSTS[:1], GOOD_ORIGINS, GOOD_TOKENS + BAD_TOKENS)) == []


@pytest.mark.parametrize(("asked", "done"), [(TO_UPGRADE, 101), (TO_FOLLOW, 200)], ids=["websocket", "events"])
def test_a_stream_needs_the_same(raw: Raw, asked: tuple[str, list[tuple[str, str]], bytes], done: int) -> None:
    hosts, origins = GOOD_HOSTS[:1] + BAD_HOSTS, GOOD_ORIGINS + BAD_ORIGINS
    assert wrong(raw, asked, done, combinations(hosts, GOOD_ORIGINS[:1], GOOD_TOKENS[:1])) == []
    assert wrong(raw, asked, done, combinations(GOOD_HOSTS[:1], origins, GOOD_TOKENS[:1])) == []
    assert wrong(raw, asked, done, combinations(GOOD_HOSTS[:1], GOOD_ORIGINS, BAD_TOKENS)) == []


def test_what_is_free_of_tokens_is_not_free_of_the_gate(raw: Raw) -> None:
    line, more, body = TO_FREE
    for host, origin in product(GOOD_HOSTS + BAD_HOSTS, GOOD_ORIGINS + BAD_ORIGINS):
        headers = [("Host", one) for one in host] + [("Origin", one) for one in origin]
        good = host in GOOD_HOSTS and origin in GOOD_ORIGINS
        assert (raw(line, headers + more, body)[0] == 200) is good, (host, origin)


@pytest.mark.parametrize(
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
def test_an_absolute_target_counts_as_a_host(raw: Raw, target: str, wanted: set[int]) -> None:
    _, more, body = TO_CALL
    headers = [("Host", "127.0.0.1:PORT"), *more]
    assert raw(f"POST {target}", [*headers, ("Authorization", "Bearer GOOD")], body)[0] in wanted
    # And no address brings a token along.
    assert raw(f"POST {target}", headers, body)[0] in {401, *wanted} - {200}


@pytest.mark.parametrize("where", ["/rpc?token=GOOD", "/rpc?access_token=GOOD", "/rpc?authorization=Bearer%20GOOD"])
def test_a_token_in_the_address_is_none(raw: Raw, where: str) -> None:
    _, more, body = TO_CALL
    for headers in ([], [("Cookie", "token=GOOD")], [("X-Token", "GOOD")], [("Proxy-Authorization", "Bearer GOOD")]):
        assert raw(f"POST {where}", [("Host", "127.0.0.1:PORT"), *more, *headers], body)[0] == 401


@pytest.mark.parametrize("origin", [one for one in GOOD_ORIGINS + BAD_ORIGINS if one])
def test_only_a_listed_page_is_told_that_it_may_ask(raw: Raw, origin: list[str]) -> None:
    headers = [("Host", "127.0.0.1:PORT"), ("Access-Control-Request-Method", "POST")]
    status, answered = raw("OPTIONS /rpc", headers + [("Origin", one) for one in origin])
    listed = origin == [LISTED]
    assert (status == 204) is listed
    assert answered.get("access-control-allow-origin") == (LISTED if listed else None)
    assert "access-control-allow-credentials" not in answered


@pytest.mark.parametrize(
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
def test_a_request_that_can_be_read_two_ways_is_refused(raw: Raw, headers: list[tuple[str, str]]) -> None:
    more = [("Host", "127.0.0.1:PORT"), ("Authorization", "Bearer GOOD"), ("Content-Type", "application/json")]
    assert raw("POST /rpc", [*more, *headers], PING)[0] in {400, 413, 431, 501}


def test_only_http_is_spoken_on_tcp(trusting: Daemon) -> None:
    for first in (PING + b"\n", b"\xa1\x61a\x01", b"\x00", b"Content-Length: 2\r\n\r\n{}"):
        with socket.create_connection(("127.0.0.1", trusting.port), timeout=PATIENCE_S) as sock:
            sock.sendall(first)
            sock.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))  # type: ignore[misc]
        assert b'"code":-32600' in answer and b'"result"' not in answer


def test_nothing_but_loopback_is_listened_on(trusting: Daemon) -> None:
    """As the kernel has it: the daemon's TCP sockets are one, on 127.0.0.1."""
    assert trusting.process is not None
    wanted = f"0100007F:{trusting.port:04X}"
    with open(f"/proc/{trusting.process.pid}/net/tcp", encoding="ascii") as file:
        listening = [line.split()[1] for line in file if line.split()[3] == "0A"]
    assert wanted in listening
    assert [one for one in listening if one.endswith(f":{trusting.port:04X}")] == [wanted]
