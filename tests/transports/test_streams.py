import socket
import sys

import pytest
import trio
import trio.testing
from support.patience import PATIENCE_S
from support.shortage import refused_threads

from sessiond.transports.streams import ByteStream, load_module


@pytest.fixture
def pair():
    ours, theirs = (ByteStream(sock) for sock in socket.socketpair())
    yield ours, theirs
    ours.socket.close()
    theirs.socket.close()


async def test_the_stream_passes_trios_own_checks():
    async def make():
        return tuple(ByteStream(sock) for sock in socket.socketpair())

    async def make_clogged():
        streams = await make()
        for stream in streams:
            while stream.send_now(b"x" * 65536):
                pass
        return streams

    with trio.fail_after(PATIENCE_S):
        await trio.testing.check_half_closeable_stream(make, make_clogged)


async def test_send_now_takes_what_fits(pair):
    ours, theirs = pair
    sent = 0
    while taken := ours.send_now(b"x" * 100_000):
        sent += taken
    assert sent > 100_000
    received = 0
    while received < sent:
        received += len(await theirs.receive_some())
    assert ours.send_now(b"y") == 1


async def test_bytes_put_back_are_read_first_and_in_pieces(pair):
    ours, theirs = pair
    ours.send_now(b"later")
    theirs.push_back(b"cd")
    theirs.push_back(b"ab")
    assert [await theirs.receive_some(3), await theirs.receive_some(), await theirs.receive_some()] == [
        b"abc",
        b"d",
        b"later",
    ]


async def test_a_half_close_and_a_hang_up_are_told_apart(pair):
    ours, theirs = pair
    assert not ours.has_hung_up()
    await theirs.send_eof()
    assert (await ours.receive_some(), ours.has_hung_up()) == (b"", False)
    theirs.close()
    assert ours.has_hung_up()
    ours.close()
    assert ours.has_hung_up()


async def test_sending_to_a_closed_peer_raises_broken_resource(pair):
    ours, theirs = pair
    theirs.close()
    with pytest.raises(trio.BrokenResourceError):
        ours.send_now(b"x")
    ours.close()
    for use in (ours.receive_some, lambda: ours.send_all(b"x"), ours.send_eof):
        with pytest.raises(trio.ClosedResourceError):
            await use()


async def test_closing_wakes_a_waiting_reader(pair):
    ours, _ = pair
    woken = []

    async def read():
        try:
            await ours.receive_some()
        except trio.ClosedResourceError:
            woken.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        ours.close()
    assert woken == [True]


async def test_lingering_lets_a_client_that_is_still_sending_read_the_refusal():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server = ByteStream(listener.accept()[0])
    listener.close()
    theirs = ByteStream(client)
    said = []

    async def talk():
        try:
            await theirs.send_all(b"x" * 3_000_000)
            await theirs.send_eof()
        finally:
            said.append(await theirs.receive_some())

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            await server.receive_some()
            server.send_now(b"too large")
            await server.linger()
            server.close()
    theirs.close()
    assert said == [b"too large"]


async def test_a_module_is_there_without_a_thread_to_import_it_in():
    with refused_threads():
        await load_module("sessiond.transports.websocket")
    assert "sessiond.transports.websocket" in sys.modules
