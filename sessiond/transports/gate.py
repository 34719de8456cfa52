"""Checks of an HTTP request before its route is looked up: host, origin and token.

Knows headers; knows no routes. Source: protocol.md, "Where it listens"; security.md, "The daemon itself".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sessiond.errors import Forbidden, Unauthenticated
from sessiond.model.caller import Caller

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Door:
    """What one listener requires of its clients.

    `caller` is the caller of requests without a token. `hosts` are the permitted `Host` values in lower case, None on a
    Unix socket, which no web page can reach. `origins` are permitted besides the listener's own.
    """

    name: str
    caller: Caller
    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()


def loopback_hosts(address: str, port: int) -> frozenset[str]:
    """The `Host` values of a listener on a loopback address. Without a port only for port 80, HTTP's default."""
    names = {"127.0.0.1", "localhost", "[::1]", f"[{address}]" if ":" in address else address}
    return frozenset([f"{name}:{port}" for name in names] + (list(names) if port == 80 else []))


def header_values(headers: Headers, name: bytes) -> list[str]:
    """Every value of a header, in order; `name` in lower case."""
    return [value.decode("latin-1").strip() for key, value in headers if key.lower() == name]


def check_host_and_origin(door: Door, authority: str | None, headers: Headers) -> str | None:
    """The permitted origin of another page, None for requests of no page or of the listener's own. Raises Forbidden.

    A page may resolve its own name to 127.0.0.1 (DNS rebinding), but cannot choose the `Host` and `Origin` that the
    browser sends. `authority` is that of an absolute-form request target, which must be permitted too.
    """
    if door.hosts is None:
        return None
    hosts = header_values(headers, b"host") + ([] if authority is None else [authority])
    if len(header_values(headers, b"host")) != 1 or not all(host.lower() in door.hosts for host in hosts):
        raise Forbidden("The Host header must name this machine's loopback address and the port.")
    origins = header_values(headers, b"origin")
    if not origins:
        return None
    if len(origins) == 1:
        if origins[0] in door.origins:
            return origins[0]
        if origins[0].lower() in {f"http://{host}" for host in door.hosts}:
            return None
    raise Forbidden("This origin is not in http.allowedOrigins.")


def caller_of(door: Door, headers: Headers, authenticate: Callable[[str], Caller]) -> Caller:
    """The caller: that of the token in `Authorization: Bearer`, else the door's own. Raises Unauthenticated."""
    credentials = header_values(headers, b"authorization")
    if not credentials:
        if door.caller.kind == "nobody":
            raise Unauthenticated("A token is needed: Authorization: Bearer <token>.")
        return door.caller
    scheme, _, token = credentials[0].partition(" ")
    if len(credentials) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("A token is shown once, as Authorization: Bearer <token>.")
    return authenticate(token.strip())
