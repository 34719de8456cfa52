"""The link's client with a server that means harm, and on a network that loses what it likes: it comes back, to the
same server, as soon as that is one again, and takes no more memory than a server may use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import nats.errors
import pytest
from support.link_stand_ins import until
from support.patience import PATIENCE_S

from sessiond.link import bus as bus_module
from sessiond.link import envelope, server_client
from sessiond.link.bus import Arrival, Bus, BusState, open_bus
from sessiond.link.connecting import ServerSettings, connect_once
from sessiond.link.failures import BusError
from sessiond.link.server_client import MAX_LINE_BYTES, MAX_MESSAGE_BYTES, ServerClient
from sessiond.link.subjects import stream_subject

GREETING = b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"headers":true,"jetstream":true'
REC = stream_subject("lap", "mars", "rec", "session")
# What is done with a connection, and whether there shall be another one like it.
Scene = Callable[["ScriptedConnection"], Awaitable[None]]


class ScriptedConnection:
    """One of a client, as the server has it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def let_in(self, more: bytes = b"", greeting: bytes = b"", pong: bytes = b"PONG\r\n") -> None:
        """As a server does, unless it says something else."""
        self.say(greeting or GREETING + more + b"}\r\n")
        while not (await self.reader.readline()).startswith(b"PING"):
            if self.reader.at_eof():
                raise ConnectionError
        self.say(pong)

    async def settle(self) -> None:
        """Let it in, and answer the ping with which it sees that all has arrived."""
        await self.let_in()
        while not (await self.reader.readline()).startswith(b"PING"):
            if self.reader.at_eof():
                raise ConnectionError
        self.say(b"PONG\r\n")

    async def answer_pings(self) -> None:
        """Until the client hangs up."""
        with suppress(OSError):
            while line := await self.reader.readline():
                if line.startswith(b"PING"):
                    self.say(b"PONG\r\n")


class ScriptedServer:
    """Does with its connections what the scenes say, one after the other, and is a good server for all that follow."""

    def __init__(self, *scenes: Scene) -> None:
        self.scenes = list(scenes)
        self.errors: list[BaseException] = []
        self.open: set[asyncio.Task[None] | None] = set()
        self.count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        self.open.add(asyncio.current_task())
        connection = ScriptedConnection(reader, writer)
        try:
            with suppress(ConnectionError):
                if self.scenes:
                    await self.scenes.pop(0)(connection)
                else:
                    await connection.let_in()
                    await connection.answer_pings()
        except AssertionError as error:
            self.errors.append(error)
        finally:
            self.open.discard(asyncio.current_task())
            writer.transport.abort()


@asynccontextmanager
async def serving(server: ScriptedServer) -> AsyncIterator[ServerSettings]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield ServerSettings(name="lap", server=f"nats://{host}:{port}")
    finally:
        listening.close()
        await asyncio.gather(*filter(None, list(server.open)))
        await asyncio.sleep(0)
    assert not server.errors, server.errors


@asynccontextmanager
async def bus_at(server: ScriptedServer) -> AsyncIterator[tuple[Bus, asyncio.Queue[BusState]]]:
    states: asyncio.Queue[BusState] = asyncio.Queue()
    async with serving(server) as settings, open_bus(settings, states.put_nowait) as bus:
        yield bus, states


async def connected(bus: Bus, states: asyncio.Queue[BusState], server: ScriptedServer, count: int) -> None:
    """Wait until it is, with so many connections made."""
    while not bus.state.connected or server.count < count:
        await states.get()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "_RETRY_S", (0.001,) * 5)
    monkeypatch.setattr(server_client, "CLOSE_S", 0.001)


def comes_back(*scenes: Scene, connections: int = 2) -> None:
    """The bus is connected after what the scenes do."""

    async def body() -> None:
        server = ScriptedServer(*scenes)
        async with bus_at(server) as (bus, states):
            await connected(bus, states, server, connections)
            with pytest.raises(BusError, match="did not answer"):  # it is asked, and says nothing
                await bus.request("mars", b"q", timeout_s=0.001)

    asyncio.run(body())


async def hang_up(connection: ScriptedConnection) -> None:
    await connection.settle()


def test_it_goes_to_no_other_server_whatever_is_said() -> None:
    """Who stands between says this line before there is TLS; and a peer's certificate is one of the same authority."""
    other = ScriptedServer()

    async def body() -> None:
        async with serving(other) as elsewhere:
            told = b',"connect_urls":["%s"]' % elsewhere.address.encode()

            async def tempt(connection: ScriptedConnection) -> None:
                await connection.let_in(told)
                connection.say(GREETING + told + b"}\r\n")

            server = ScriptedServer(*[tempt] * 8)
            async with bus_at(server) as (bus, states):
                await connected(bus, states, server, 9)
                assert bus._client is not None
                assert len(bus._client.servers) == 1
        assert other.count == 0

    asyncio.run(body())


@pytest.mark.parametrize(
    "greeting",
    [
        b"INFO []\r\n",
        b"INFO 5\r\n",
        b"INFO {\r\n",
        b"INFO \xff\r\n",
        b"INFO " + b"[" * 60_000 + b"\r\n",
        b"INFO " + b"x" * 300_000 + b"\r\n",
        b"hello\r\n",
        b"\r\n",
    ],
)
def test_a_greeting_that_is_none_where_it_connects_again_is_one_more_attempt(greeting: bytes) -> None:
    async def greet(connection: ScriptedConnection) -> None:
        connection.say(greeting)
        await connection.answer_pings()

    comes_back(hang_up, greet, connections=3)


@pytest.mark.parametrize("pong", [b"+OK\r\n", b"PING\r\n", b"", b"\xff\r\n", GREETING + b"}\r\n"])
@pytest.mark.parametrize("before", [(), (hang_up,)])
def test_who_is_not_answered_as_a_client_is_is_not_connected(pong: bytes, before: tuple[Scene, ...]) -> None:
    async def let_in_otherwise(connection: ScriptedConnection) -> None:
        await connection.let_in(pong=pong)
        if pong:
            await connection.answer_pings()

    comes_back(*before, let_in_otherwise, connections=len(before) + 2)


@pytest.mark.parametrize(
    "said",
    [
        b"hello\r\n",
        b"-ERR \r\n",
        b"-ERR 'any'\r\n",
        b"-ERR '\xff'\r\n",
        b"INFO 5\r\n",
        b"INFO {\r\n",
        b"MSG a 1 %d\r\n" % (MAX_MESSAGE_BYTES + 1),
        b"HMSG a 1 1 %d\r\n" % (MAX_MESSAGE_BYTES + 1),
        b"MSG a 1 " + b"9" * 5000 + b"\r\n",
        b"MSG " + b"x" * MAX_LINE_BYTES,
    ],
)
def test_it_drops_a_server_that_says_what_none_says(said: bytes) -> None:
    async def say(connection: ScriptedConnection) -> None:
        await connection.settle()
        connection.say(said)
        await connection.answer_pings()

    comes_back(say)


@pytest.mark.parametrize(
    "message", [b"MSG \xff %s 1\r\n1\r\n", b"HMSG a %s 8 8\r\nNATS/1.0\r\n", b"HMSG a %s 1 1\r\nx\r\n"]
)
def test_it_drops_a_server_whose_message_cannot_be_read(message: bytes) -> None:
    async def say(connection: ScriptedConnection) -> None:
        await connection.let_in()
        while not (line := await connection.reader.readline()).startswith(b"SUB"):
            assert line
        connection.say(message % line.split()[-1])
        await connection.answer_pings()

    async def body() -> None:
        server = ScriptedServer(say)
        async with bus_at(server) as (bus, states):

            async def nothing(_sender: str, _question: bytes) -> None:
                return None

            bus.answer(nothing, ["mars"])
            await connected(bus, states, server, 2)

    asyncio.run(body())


def test_the_longest_line_and_the_longest_message_are_waited_for() -> None:
    async def body() -> None:
        said = asyncio.Event()

        async def say(connection: ScriptedConnection) -> None:
            await connection.settle()
            connection.say(b"INFO {" + b" " * (MAX_LINE_BYTES - 8) + b"}\r\n")
            connection.say(b"MSG a 99 1\r\n1\r\nMSG a 99 %d\r\n" % MAX_MESSAGE_BYTES + b"1" * 100_000)
            await connection.writer.drain()
            said.set()
            await connection.answer_pings()

        server = ScriptedServer(say)
        async with bus_at(server) as (bus, states):
            await connected(bus, states, server, 1)
            await said.wait()
            assert bus._client is not None
            parser = bus._client._ps
            await until(lambda: len(parser.buf) >= 100_000)
            assert (bus.state.connected, server.count) == (True, 1)

    asyncio.run(body())


def test_what_is_longer_than_an_envelope_is_not_kept() -> None:
    """A server may deliver 64 MiB at once, and as many messages as are kept until they are looked at."""

    async def body() -> None:
        async def deliver(connection: ScriptedConnection) -> None:
            await connection.let_in()
            while b"_INBOX.lap.rec" not in (line := await connection.reader.readline()):
                assert line
            for size in (envelope.MAX_MESSAGE_BYTES, envelope.MAX_MESSAGE_BYTES + 1):
                connection.say(b"MSG %s %s %d\r\n" % (REC.encode(), line.split()[-1], size) + bytes(size) + b"\r\n")
            await connection.answer_pings()

        sizes: asyncio.Queue[int] = asyncio.Queue()

        async def take(arrival: Arrival) -> None:
            sizes.put_nowait(len(arrival.data))

        async with bus_at(ScriptedServer(deliver)) as (bus, _):
            bus.consume("rec", take)
            assert [await sizes.get(), await sizes.get()] == [envelope.MAX_MESSAGE_BYTES, 0]

    asyncio.run(body())


@pytest.mark.parametrize("said", [b"hello\r\n", b"-ERR 'Slow Consumer'\r\n"])
def test_a_server_that_does_not_read_keeps_nobody_from_a_new_connection(said: bytes) -> None:
    """What is still to be sent to it would be waited for as long as it holds the connection."""

    async def body() -> None:
        is_full, is_over = asyncio.Event(), asyncio.Event()

        async def hold(connection: ScriptedConnection) -> None:
            await connection.settle()
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await is_full.wait()
            connection.say(said)
            await is_over.wait()

        server = ScriptedServer(hold)
        async with bus_at(server) as (bus, states):
            await connected(bus, states, server, 1)
            publishing = [asyncio.create_task(bus.publish(REC, b"x" * 1_000_000)) for _ in range(12)]
            transport = bus._client._transport._io_writer.transport  # type: ignore[union-attr]
            await until(transport.get_write_buffer_size)
            is_full.set()
            await connected(bus, states, server, 2)
            is_over.set()
            for one in publishing:
                one.cancel()
            await asyncio.gather(*publishing, return_exceptions=True)

    asyncio.run(body())


def test_a_pong_for_which_nobody_waits_any_more_is_read() -> None:
    async def body() -> None:
        may_answer = asyncio.Event()

        async def be_late(connection: ScriptedConnection) -> None:
            await connection.let_in()
            assert (await connection.reader.readline()) == b"PING\r\n"
            await may_answer.wait()
            connection.say(b"PONG\r\n")
            await connection.answer_pings()

        server = ScriptedServer(be_late)
        async with serving(server) as settings:
            client = await connect_once(settings)
            flushing = asyncio.create_task(client.flush())
            await until(lambda: bool(client._pongs))
            client._pongs[0].cancel()  # as when it was waited for in vain
            with suppress(asyncio.CancelledError, nats.errors.Error):
                await flushing
            may_answer.set()
            await client.flush()
            assert server.count == 1
            await client.end()

    asyncio.run(body())


def test_a_storm_of_refusals_is_told_once() -> None:
    async def body() -> None:
        async def storm(connection: ScriptedConnection) -> None:
            await connection.settle()
            for number in range(5000):
                connection.say(b"-ERR 'Permissions Violation for Publish to \"x.\x1b[31m%d\"'\r\n" % number)
            await connection.answer_pings()

        server = ScriptedServer(storm)
        async with bus_at(server) as (bus, states):
            await connected(bus, states, server, 1)
            assert bus._client is not None
            await bus._client.flush()
            assert "x.\x1b[31m4999" in str(bus._client.last_error)
            assert states.qsize() < 5  # the link looks for itself meanwhile
            assert "\x1b" not in str(bus.state.trouble)

    asyncio.run(body())


def test_a_server_that_hangs_up_again_and_again_is_asked_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "_RETRY_S", (0.001, 0.002, 0.003, 0.004))

    async def body() -> None:
        server = ScriptedServer(*[hang_up] * 5)
        async with bus_at(server) as (bus, states):
            await connected(bus, states, server, 6)
            assert bus._client is not None
            assert bus._client.options["reconnect_time_wait"] == 0.004
            monkeypatch.setattr(bus_module, "_STEADY_S", -1.0)  # as if it had lasted
            await bus._client.force_reconnect()
            await connected(bus, states, server, 7)
            assert bus._client.options["reconnect_time_wait"] == 0.001

    asyncio.run(body())


class _ClosedTwice:
    """TLS that a server has ended at once, as the loop of Python 3.11.2 leaves it."""

    def __init__(self) -> None:
        self.transport, self._ssl_protocol = self, None

    def abort(self) -> None:
        self._ssl_protocol._abort()  # type: ignore[attr-defined]  # what it does there


class _TransportOfBoth:
    def __init__(self, outer: _ClosedTwice, inner: asyncio.StreamWriter) -> None:
        self._io_writer, self._bare_io_writer = outer, inner


def test_a_connection_whose_tls_was_closed_twice_is_dropped_all_the_same() -> None:
    async def test() -> None:
        async with serving(ScriptedServer()) as settings:
            host, _, port = settings.server.removeprefix("nats://").rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            client = ServerClient()
            client._transport = _TransportOfBoth(_ClosedTwice(), writer)  # type: ignore[assignment]
            client._abort()
            assert writer.transport.is_closing()

    asyncio.run(test())
