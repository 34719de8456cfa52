"""What an HTTP request must show before anything is done for it: its host, its origin, its token.

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
    """One listener as its clients meet it.

    `caller` is who comes in without a token. `hosts` are the `Host` values taken (lower case); None on a Unix socket,
    which no web page can reach. `origins` are taken beside our own.
    """

    name: str
    caller: Caller
    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()


def loopback_hosts(address: str, port: int) -> frozenset[str]:
    """How a client on this machine may name us. Without a port only where HTTP's own port is meant."""
    names = {"127.0.0.1", "localhost", "[::1]", f"[{address}]" if ":" in address else address}
    return frozenset([f"{name}:{port}" for name in names] + (list(names) if port == 80 else []))


def values(headers: Headers, name: bytes) -> list[str]:
    """Every value of a header, in order; `name` in lower case."""
    return [value.decode("latin-1").strip() for key, value in headers if key.lower() == name]


def check_host_and_origin(door: Door, authority: str | None, headers: Headers) -> str | None:
    """The listed origin of another page, or None where there is none to be named. Raises Forbidden.

    A page may resolve its own name to 127.0.0.1 (DNS rebinding): it can choose the address, not the `Host` and `Origin`
    that the browser sends. `authority` is that of an absolute-form target, which counts as a host too.
    """
    if door.hosts is None:
        return None
    hosts = values(headers, b"host") + ([] if authority is None else [authority])
    if len(values(headers, b"host")) != 1 or not all(host.lower() in door.hosts for host in hosts):
        raise Forbidden("The Host header must name this machine's loopback address and the port.")
    origins = values(headers, b"origin")
    if not origins:
        return None
    if len(origins) == 1:
        if origins[0] in door.origins:
            return origins[0]
        if origins[0].lower() in {f"http://{host}" for host in door.hosts}:
            return None
    raise Forbidden("This origin is not in http.allowedOrigins.")


def caller_of(door: Door, headers: Headers, authenticate: Callable[[str], Caller]) -> Caller:
    """Who asks: the token of `Authorization: Bearer`, else the door's own caller. Raises Unauthenticated."""
    said = values(headers, b"authorization")
    if not said:
        if door.caller.kind == "nobody":
            raise Unauthenticated("A token is needed: Authorization: Bearer <token>.")
        return door.caller
    scheme, _, token = said[0].partition(" ")
    if len(said) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("A token is shown once, as Authorization: Bearer <token>.")
    return authenticate(token.strip())
