import json

import pytest
import trio
from support.patience import PATIENCE_S

from sessiond.model.caller import OWNER
from sessiond.transports.sse import EventStream, encode_event

BEARER = ("-H", "Authorization: Bearer reader")


async def wait_until(condition):
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the kernel and other processes have a part in it
            await trio.sleep(0.001)


def events(*numbers):
    return "".join(f'event: message\nid: {n}\ndata: {{"n":{n}}}\n\n' for n in numbers)


def test_an_event_is_encoded_as_the_standard_says():
    assert encode_event(b"{}") == b"data: {}\n\n"
    assert encode_event(b"a\nb\r\nc\rd", name="history", cursor="x:1") == (
        b"event: history\nid: x:1\ndata: a\ndata: b\ndata: c\ndata: d\n\n"
    )
    for bad in ("a\nb", "a\rb", "a\0b"):
        with pytest.raises(ValueError, match="one line"):
            encode_event(b"", cursor=bad)


async def test_curl_reads_events_and_resumes(open_server):
    async with open_server() as running:
        assert await running.curl("/events", "-N") == (200, events(1, 2, 3))
        assert await running.curl("/events", "-N", "-H", "Last-Event-ID: 3") == (200, events(4, 5, 6))
        assert await running.curl_tcp("/events", "-N", *BEARER) == (200, events(1, 2, 3))
        assert (await running.curl_tcp("/events", "-N"))[0] == 401
        status, body = await running.curl("/events", "-I")
        assert (status, "text/event-stream" in body, "chunked" in body.lower()) == (200, True, True)


async def test_a_failing_stream_sends_an_error_and_ends(open_server):
    async with open_server() as running:
        error = {"ok": False, "error": {"type": "conflict", "message": "It was reset."}}
        assert await running.curl("/events?fail", "-N") == (
            200,
            events(1, 2, 3) + f"event: error\ndata: {json.dumps(error, separators=(',', ':'))}\n\n",
        )


async def test_a_half_closed_reader_still_gets_events(open_server):
    async with open_server() as running, trio.open_nursery() as nursery:

        async def release():
            await wait_until(lambda: running.services.started)
            running.services.release.set()

        nursery.start_soon(release)
        data = await running.raw(b"GET /events?follow HTTP/1.0\r\n\r\n")
        assert data.partition(b"\r\n\r\n")[2].decode() == events(1, 2, 3)


async def test_when_a_reader_goes_its_source_is_cancelled(open_server):
    async with open_server() as running:
        stream = await trio.open_unix_socket(running.owner)
        await stream.send_all(b"GET /events?follow HTTP/1.1\r\nHost: x\r\n\r\n")
        await wait_until(lambda: running.services.started)
        await stream.aclose()
        await wait_until(lambda: running.services.ended == 1)
        await wait_until(lambda: running.server.connections == 0)
        assert running.services.faults == []


async def test_revoking_a_token_ends_its_streams(open_server):
    async with open_server() as running, trio.open_nursery() as nursery:
        got = []

        async def read():
            got.append(await running.curl("/events?follow", "-N", *BEARER))

        nursery.start_soon(read)
        await wait_until(lambda: running.services.started)
        assert running.server.active_connections.close_where(lambda caller: caller.token_id == "t-reader") == 1
        await wait_until(lambda: got)
        [(status, body)] = got
        assert (status, events(1, 2, 3).startswith(body)) == (200, True)


async def run_stream(send, source, until_gone=trio.sleep_forever):
    stream = EventStream(send, OWNER)
    await stream.run(source, until_gone)
    return stream


async def test_a_quiet_stream_sends_a_comment_every_fifteen_seconds(autojump_clock):
    sent = []

    async def send(data):
        await trio.lowlevel.checkpoint()
        sent.append((round(trio.current_time() - start), data))

    async def source(stream):
        await trio.sleep(40)
        await stream.event(b"1")
        await trio.sleep(20)

    start = trio.current_time()
    await run_stream(send, source)
    assert sent == [(15, b": \n\n"), (30, b": \n\n"), (40, b"data: 1\n\n"), (55, b": \n\n")]


async def test_a_reader_that_does_not_read_is_closed_after_a_minute(autojump_clock):
    async def stuck(_data):
        await trio.sleep_forever()

    async def source(stream):
        await stream.event(b"1")
        raise AssertionError("the source is cancelled before this")

    start = trio.current_time()
    await run_stream(stuck, source)
    assert trio.current_time() - start == 60


async def test_a_broken_connection_cancels_the_source():
    async def broken(_data):
        raise trio.BrokenResourceError

    async def source(stream):
        await stream.event(b"1")
        raise AssertionError("the source is cancelled before this")

    await run_stream(broken, source)


async def test_a_heartbeat_never_splits_an_event(autojump_clock):
    sent = []

    async def slow(data):
        sent.append(b"<")
        await trio.sleep(20)
        sent.append(data)

    await run_stream(slow, lambda stream: stream.event(b"1"))
    assert sent == [b"<", b"data: 1\n\n"]
