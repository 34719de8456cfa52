"""The credentials of the process at the other end of a Unix socket. Knows nothing of callers or tokens."""

from __future__ import annotations

import socket
import struct
from typing import Protocol

import msgspec

from sessiond.errors import Unsupported

# struct ucred of unix(7): pid_t, uid_t, gid_t.
_UCRED = struct.Struct("iII")


class PeerCredentials(msgspec.Struct, frozen=True):
    """Process, user and group that called connect(). The process may have ended since, and its pid been reused."""

    pid: int
    uid: int
    gid: int


class _Socket(Protocol):
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def peer_credentials(connection: _Socket) -> PeerCredentials:
    """The peer of a connected Unix socket (the standard library's or Trio's).

    Unsupported if the system or the kind of socket has no SO_PEERCRED: then no peer can be recognized as the owner.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        raise Unsupported("this system cannot say who is at the other end of a socket (SO_PEERCRED)")
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, option, _UCRED.size)
    except OSError as error:
        raise Unsupported(f"the socket does not say who is at its other end: {error.strerror}") from None
    if len(raw) != _UCRED.size:
        raise Unsupported("the socket does not say who is at its other end")
    pid, uid, gid = _UCRED.unpack(raw)
    if uid == 0xFFFFFFFF:
        # The answer for a TCP socket: no user.
        raise Unsupported("the socket does not say who is at its other end")
    return PeerCredentials(pid, uid, gid)
