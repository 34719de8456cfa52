"""Real servers for the tests of the link: `nats_server("tls")` makes one that is not started, and all are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.nats_server import Mode, NatsServer

MakeServer = Callable[..., NatsServer]


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[MakeServer]:
    made: list[NatsServer] = []

    def make(mode: Mode = "open", *machines: str, host: str = "127.0.0.1") -> NatsServer:
        server = NatsServer(tmp_path / f"nats{len(made)}", mode, machines or ("lap", "mars"), host=host)
        made.append(server)
        return server

    yield make
    for server in made:
        server.kill()
