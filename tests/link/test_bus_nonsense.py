"""The bus with a server that says what no nats-server says: it waits and tries again, and the link does not end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from support.patience import PATIENCE_S

from sessiond.link import bus as bus_module
from sessiond.link.bus import Bus, BusState, open_bus
from sessiond.link.connecting import ServerSettings, new_seed
from sessiond.link.failures import BusError
from sessiond.link.server_check import check
from sessiond.link.server_setup import set_up
from sessiond.link.subjects import stream_subject

INFO = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"headers":true,"jetstream":true,"nonce":"abc"}'
REC = stream_subject("lap", "mars", "rec", "session")


class BadServer:
    """Greets with `info`, answers whatever is published with `answer`, and says `error` to who has connected."""

    def __init__(self, info: bytes = INFO, answer: bytes = b"", error: bytes = b"") -> None:
        self.info, self.answer, self.error = info, answer, error
        self.greeted = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inbox = b"1"
        writer.write(self.info + b"\r\n")
        with suppress(OSError):
            while line := await reader.readline():
                word, *rest = line.split()
                if word == b"SUB" and rest[0].startswith(b"_INBOX"):
                    inbox = rest[-1]
                elif word == b"PING":
                    writer.write(b"PONG\r\n" + self.error)
                    self.greeted.set()
                elif word in (b"PUB", b"HPUB"):
                    await reader.readexactly(int(rest[-1]) + 2)
                    writer.write(b"MSG %s %s %d\r\n%s\r\n" % (rest[1], inbox, len(self.answer), self.answer))
        writer.close()


@asynccontextmanager
async def bus_at(server: BadServer, seed: Path | None = None) -> AsyncIterator[tuple[Bus, asyncio.Queue[BusState]]]:
    states: asyncio.Queue[BusState] = asyncio.Queue()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    settings = ServerSettings(name="lap", server=f"nats://{host}:{port}", nkey_seed=seed)
    try:
        async with asyncio.timeout(PATIENCE_S), open_bus(settings, states.put_nowait) as bus:
            yield bus, states
    finally:
        listening.close()


async def trouble_in(states: asyncio.Queue[BusState], words: str) -> None:
    while words not in ((await states.get()).trouble or ""):
        pass


@pytest.mark.parametrize(
    "info",
    [
        b"INFO []",
        b"INFO 5",
        b"INFO {",
        b"INFO \xff",
        b"\xff",
        b"",
    ],
)
def test_a_greeting_that_cannot_be_read_is_a_server_that_is_not_reached(
    info: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "_RETRY_S", (0.001,) * 5)

    async def body() -> None:
        server = BadServer(info)
        async with bus_at(server) as (bus, states):
            await trouble_in(states, f"the server {bus._settings.address}")
            server.info = INFO
            while not bus.state.connected:
                await states.get()

    asyncio.run(body())


BAD_ANSWERS = [b"no JSON", b"\xff", b"", b"[]", b"5", b"{}", b'{"stream":5}', b'{"error":5}', b'{"error":{}}']


@pytest.mark.parametrize("answer", [*BAD_ANSWERS, b"[" * 100_000])
def test_an_answer_that_cannot_be_read_is_a_publish_that_is_tried_again(answer: bytes) -> None:
    async def body() -> None:
        async with bus_at(BadServer(answer=answer)) as (bus, states):
            assert (await states.get()).connected
            with pytest.raises(BusError, match="answers what no nats-server does"):
                await bus.publish(REC, b"data")
            bus._queues["rec"] = asyncio.Queue()
            await bus.look()
            assert bus.state.connected

    asyncio.run(body())


@pytest.mark.parametrize("answer", [*BAD_ANSWERS, b"[" * 100_000, b'{"config":{}}', b'{"config":5}', b'{"error":null}'])
@pytest.mark.parametrize("info", [INFO, INFO.replace(b"1048576", b'"much"'), INFO.replace(b'"2.11.0"', b"[5]")])
def test_who_looks_at_such_a_server_is_told_so(info: bytes, answer: bytes) -> None:
    async def body() -> None:
        listening = await asyncio.start_server(BadServer(info, answer).serve, "127.0.0.1", 0)
        host, port = listening.sockets[0].getsockname()
        settings = ServerSettings(name="lap", server=f"nats://{host}:{port}")
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert "error" in [one.level for one in await check(settings, ["mars"])]
                with pytest.raises(BusError):
                    await set_up(settings, ["lap", "mars"])
        finally:
            listening.close()

    asyncio.run(body())


def test_a_limit_that_is_no_number_is_a_publish_that_is_tried_again() -> None:
    async def body() -> None:
        async with bus_at(BadServer(INFO.replace(b"1048576", b'"much"'))) as (bus, states):
            assert (await states.get()).connected
            with pytest.raises(BusError, match="answers what no nats-server does"):
                await bus.publish(REC, b"data")

    asyncio.run(body())


def test_a_file_that_is_missing_while_it_is_replaced_ends_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "_RETRY_S", (0.001,) * 5)
    seed = tmp_path / "link.nk"
    seed.write_text(f"{new_seed()}\n")

    async def body() -> None:
        server = BadServer()
        async with bus_at(server, seed) as (bus, states):
            assert (await states.get()).connected
            text = seed.read_text()
            seed.unlink()
            server.error = b"-ERR 'Authorization Violation'\r\n"
            assert bus._client is not None
            with suppress(BusError):
                await bus._client.flush()
            await trouble_in(states, "link.nk cannot be read")
            server.error = b""
            seed.write_text(text)
            while not bus.state.connected:
                await states.get()

    asyncio.run(body())
