"""Peer credentials from the kernel: which user is at the other end of a socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import trio

from sessiond.auth.peercred import PeerCredentials, peer_credentials
from sessiond.errors import Unsupported

OURSELVES = PeerCredentials(os.getpid(), os.getuid(), os.getgid())


def test_both_ends_of_a_socket_pair_belong_to_this_user() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert peer_credentials(left) == peer_credentials(right) == OURSELVES


async def test_the_user_of_a_trio_listeners_client_is_known(tmp_path: Path) -> None:
    with trio.socket.socket(socket.AF_UNIX) as listener:
        await listener.bind(str(tmp_path / "s"))
        listener.listen()
        with trio.socket.socket(socket.AF_UNIX) as client:
            await client.connect(str(tmp_path / "s"))
            accepted, _ = await listener.accept()
            with accepted:
                assert peer_credentials(accepted) == OURSELVES


def test_a_tcp_peer_has_no_credentials() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            with pytest.raises(Unsupported, match="does not say who is at its other end"):
                peer_credentials(client)


def test_a_closed_socket_has_no_credentials() -> None:
    left, right = socket.socketpair()
    right.close()
    left.close()
    with pytest.raises(Unsupported, match="does not say who"):
        peer_credentials(left)
