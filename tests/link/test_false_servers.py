"""Whoever has not the certificate of the server is told nothing, also by a link that was connected to the right one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.buses import bus_of
from support.nats_server import HOST, NatsServer, make_certificates
from support.sampling import pick

MakeServer = Callable[..., NatsServer]


@pytest.mark.parametrize(
    ("what", "words"),
    pick(
        [
            ("ended", "cannot be verified: certificate has expired"),
            (
                "other name",
                "cannot be verified: IP address mismatch, certificate is not valid for '127.0.0.1'; link",
            ),
            ("a peer's", "cannot be verified: IP address mismatch"),
            ("other authority", "cannot be verified: "),
        ],
        __name__,
    ),
)
def test_a_certificate_that_is_not_the_servers_is_refused(nats_server: MakeServer, what: str, words: str) -> None:
    server = nats_server("tls")
    users = ("admin", *server.machines)
    make_certificates(
        server.folder, "127.0.0.2" if what == "other name" else HOST, users, days=-1 if what == "ended" else 825
    )
    if what == "a peer's":
        for end in ("pem", "key"):
            (server.folder / f"srv.{end}").write_bytes((server.folder / f"mars.{end}").read_bytes())
    server.start()
    if what == "other authority":
        with tempfile.TemporaryDirectory() as name:
            make_certificates(Path(name), HOST, users)
            (server.folder / "ca.pem").write_bytes((Path(name) / "ca.pem").read_bytes())

    async def body() -> None:
        async with bus_of(server, "lap", connected=False) as lap:
            said = await lap.state(lambda state: state.trouble is not None)
            assert words in str(said.trouble)
            assert not said.connected

    asyncio.run(body())


@pytest.mark.parametrize(("mode", "words"), [("open", "offers no TLS"), ("tls", "cannot be verified")])
def test_another_server_that_takes_the_place_of_the_right_one_is_told_nothing(
    nats_server: MakeServer, mode: str, words: str
) -> None:
    server = nats_server("tls").start()
    false = nats_server(mode)
    false.port = server.port
    if mode == "tls":
        make_certificates(false.folder, HOST, ("admin", *false.machines))

    async def body() -> None:
        async with bus_of(server, "lap") as lap:
            server.kill()
            await asyncio.to_thread(false.start)
            said = await lap.state(lambda state: words in str(state.trouble))
            assert not said.connected
            false.kill()
            await asyncio.to_thread(server.start)
            await lap.state(lambda state: state.connected)

    asyncio.run(body())
