import tracemalloc

import cbor2
import msgspec
import pytest
import trio
import trio.testing
from support.patience import PATIENCE_S
from support.sampling import amount

from sessiond.rpc.answer_pieces import encode_in_pieces, json_length
from sessiond.rpc.budget import MIB
from sessiond.rpc.limits import Limits
from sessiond.rpc.messages import encode_result
from sessiond.rpc.outgoing_requests import RemoteError
from sessiond.rpc.sending import PeerGone

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
PONG = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
WAIT = b'{"jsonrpc":"2.0","id":2,"method":"wait"}\n'


class RawPage(msgspec.Struct):
    messages: list[msgspec.Raw]


async def get_peer(client):
    await client.call("peer")
    return client.services.peers[-1]


async def wait_until(condition):
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.lowlevel.checkpoint()


async def test_many_requests_in_one_write_are_answered_in_order(connect):
    async with connect() as client:
        await client.send(*[{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in range(500)])
        assert [answer["id"] for answer in await client.lines(500)] == list(range(500))


async def test_a_page_is_sent_at_once_and_a_longer_answer_in_pieces(connect):
    async with connect() as client:
        peer = await get_peer(client)
        page = encode_result(1, ["x" * 60_000] * 2)
        result = RawPage([msgspec.Raw(b'"%b"' % (b"y" * 200))] * 500)
        in_pieces = await encode_in_pieces(2, result, trio.lowlevel.checkpoint)
        for answer, size in ((page, len(page)), (in_pieces, json_length(in_pieces))):
            peer.reply(answer)
            assert (peer.queued_bytes, size > 100_000) == (0, True)
            await client.lines(1)
        long = encode_result(3, "z" * 300_000)
        peer.reply(long)
        assert peer.queued_bytes == len(long)
        [answer] = await client.lines(1)
        assert answer == {"jsonrpc": "2.0", "id": 3, "result": "z" * 300_000}


async def test_a_half_closed_client_gets_its_answers(connect):
    async with connect() as client:
        await client.send(WAIT, PING.rstrip())  # the last line without its newline
        await client.stream.send_eof()
        await wait_until(lambda: client.services.started)
        client.services.release.set()
        assert await client.rest() == PONG + b'{"jsonrpc":"2.0","id":2,"result":{"released":true}}\n'
        await client.ended.wait()


async def test_half_a_message_at_the_end_is_a_parse_error(connect):
    async with connect() as client:
        await client.send(PING + PING[:20])
        await client.stream.send_eof()
        first, second, _ = (await client.rest()).split(b"\n")
        assert first + b"\n" == PONG
        assert msgspec.json.decode(second)["error"]["code"] == -32700


async def test_when_a_client_vanishes_its_requests_are_cancelled(connect):
    async with connect() as client:
        await client.send(WAIT)
        await wait_until(lambda: client.services.started)
        client.stream.close()
        await client.ended.wait()
        assert client.services.ended == ["2"]


async def test_when_a_half_closed_client_vanishes_its_requests_are_cancelled(connect):
    async with connect() as client:
        await client.send(WAIT)
        await client.stream.send_eof()
        await wait_until(lambda: client.services.started)
        client.stream.close()
        await client.ended.wait()
        assert client.services.ended == ["2"]


async def test_bad_lines_are_answered_and_the_connection_stays_open(connect):
    async with connect() as client:
        await client.send(b"nonsense\n", b"[" * 100_000 + b"\n", b"\n  \n", b"{}\n", PING)
        answers = await client.lines(4)
        assert [answer.get("error", {}).get("code") for answer in answers] == [-32700, -32600, -32600, None]


async def test_a_line_over_the_limit_gets_one_error_and_ends_the_connection(connect):
    async with connect(limits=Limits(max_frame_bytes=1000)) as client:
        fits = PING.rstrip() + b" " * (1000 - len(PING.rstrip())) + b"\n"
        await client.send(fits, b"x" * 1001 + b"\n", PING)
        first, second, rest = (await client.rest()).split(b"\n")
        assert (first + b"\n", rest) == (PONG, b"")
        assert msgspec.json.decode(second) == {
            "jsonrpc": "2.0",
            "id": None,
            "error": {
                "code": -32005,
                "message": "A message holds at most 1000 bytes here.",
                "data": {"type": "limit_exceeded", "limit": "limits.maxFrameBytes", "value": 1000},
            },
        }


async def test_unauthenticated_clients_have_a_lower_frame_limit(connect, stranger):
    limits = Limits(max_frame_bytes=100_000, max_pre_auth_frame_bytes=200)
    introduction = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"token": "t"}}
    async with connect(caller=stranger, limits=limits) as client:
        await client.send(introduction)
        await client.line()
        await client.send(PING.rstrip() + b" " * 50_000 + b"\n")
        assert await client.line() == msgspec.json.decode(PONG)
    async with connect(caller=stranger, limits=limits) as client:
        await client.send(PING.rstrip() + b" " * 200 + b"\n")
        assert msgspec.json.decode(await client.rest())["error"]["code"] == -32005


async def test_nothing_is_read_from_a_client_that_does_not_read(connect):
    async with connect() as client:
        request = b'{"jsonrpc":"2.0","id":1,"method":"echo","params":{"sessionKey":"' + b"x" * 60_000 + b'"}}\n'
        is_stuck = False
        while not is_stuck:
            with trio.move_on_after(0.5) as patience:
                await client.stream.send_all(request)
            is_stuck = patience.cancelled_caught
        # A MiB of answers and those to the chunk of requests already read, and no more.
        assert client.peer.queued_bytes < 3 * 1024 * 1024
        await client.stream.send_eof()
        answers = (await client.rest()).splitlines()
        assert len(answers) > 10 and {len(answer) for answer in answers[:-1]} == {len(answers[0])}


async def test_frames_that_the_socket_does_not_take_are_queued_and_none_is_lost(connect):
    async with connect() as client:
        peer = await get_peer(client)
        frames = [peer.encode_notification("event", {"n": n, "fill": "x" * 1000}) for n in range(3000)]
        sent = [peer.send_nowait(frame) for frame in frames]
        assert sent[0] is True and sent[-1] is False
        queued = peer.queued_bytes
        assert 0 < queued < sum(map(len, frames))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.wait_drained)
            assert [(await client.line())["params"]["n"] for _ in frames] == list(range(3000))
        assert peer.queued_bytes == 0


async def test_waiting_for_the_queue_to_drain_ends_when_the_client_goes(connect):
    async with connect() as client:
        peer = await get_peer(client)
        while peer.send_nowait(b"x" * 65536 + b"\n"):
            pass
        outcome = []

        async def wait_for_room():
            try:
                await peer.wait_drained()
            except PeerGone:
                outcome.append("gone")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_room)
            await trio.testing.wait_all_tasks_blocked()
            client.stream.close()
        assert outcome == ["gone"]
        assert (peer.send_nowait(b"{}\n"), peer.queued_bytes) == (False, 0)


async def test_the_daemon_can_call_the_client(connect):
    async with connect() as client:
        await client.send({"jsonrpc": "2.0", "id": "q", "method": "ask", "params": {"method": "run.start"}})
        asked = await client.line()
        assert asked == {"jsonrpc": "2.0", "id": 1, "method": "run.start", "params": {"x": 1}}
        await client.send(
            {"jsonrpc": "2.0", "id": 1, "result": {"reply": "hi"}}, {"jsonrpc": "2.0", "id": 1, "result": 2}
        )
        assert await client.line() == {"jsonrpc": "2.0", "id": "q", "result": {"answer": {"reply": "hi"}}}


async def test_a_client_may_answer_with_an_error_or_not_at_all(connect):
    async with connect() as client:
        peer = await get_peer(client)

        async def expect(error, **how):
            with pytest.raises(error) as caught:
                await peer.request("run.start", {}, **how)
            return caught.value

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect, trio.TooSlowError)
            nursery.cancel_scope.cancel()
        lines = await client.lines(2)
        assert [line["method"] for line in lines] == ["run.start", "$/cancelRequest"]
        assert lines[1]["params"] == {"id": lines[0]["id"]}

        async def answer(**members):
            request = await client.line()
            await client.send({"jsonrpc": "2.0", "id": request["id"], **members})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: answer(error={"code": -5, "message": "No.", "data": [1]}))
            failed = await expect(RemoteError)
        assert (failed.code, failed.message, failed.data) == (-5, "No.", [1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: answer(result="text"))
            assert (await expect(RemoteError, result_type=int)).code == 0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: answer(result=[1]))
            assert bytes(await peer.request("x", {}, result_type=msgspec.Raw)) == b"[1]"

        await expect(trio.TooSlowError, timeout=0)
        assert [line["method"] for line in await client.lines(2)] == ["run.start", "$/cancelRequest"]


async def test_a_request_to_the_client_fails_when_the_client_goes(connect):
    async with connect() as client:
        peer = await get_peer(client)

        async def expect_gone():
            with pytest.raises(PeerGone):
                await peer.request("run.start", {})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_gone)
            await client.line()
            await client.stream.send_eof()
        with pytest.raises(PeerGone):
            await peer.request("run.start", {})


async def test_close_callbacks_are_called_also_when_added_after_the_close(connect):
    async with connect() as client:
        peer = await get_peer(client)
        told = []
        peer.on_close(lambda: told.append("early"))
        peer.nursery.start_soon(trio.sleep_forever)  # a subscription's pump ends with the connection
        client.stream.close()
        await peer.closed.wait()
        peer.on_close(lambda: told.append("late"))
        assert told == ["early", "late"]


async def test_a_pump_that_finds_the_connection_closed_is_not_a_fault(connect):
    async with connect() as client:
        peer = await get_peer(client)

        async def pump():
            while True:
                peer.send_nowait(b"x" * 65536 + b"\n")
                await peer.wait_drained(65536)

        peer.nursery.start_soon(pump)
        await trio.testing.wait_all_tasks_blocked()
        client.stream.close()
        await client.ended.wait()


async def test_an_idle_connection_does_not_keep_its_last_message(connect):
    """It has no share of the budget any more: 40 clients with a message of 15 MiB each took 700 MiB."""
    tracemalloc.start()
    try:
        async with connect() as client:
            for size in (1, 4 * MIB):
                assert (await client.call("no such method", {"x": "x" * size}))["error"]["code"] == -32601
            assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()


async def test_the_daemon_can_close_the_connection(connect):
    async with connect() as client:
        peer = await get_peer(client)
        await client.send(WAIT)
        await wait_until(lambda: client.services.started)
        peer.close()
        await client.ended.wait()
        assert await client.rest() == b""


async def test_a_peer_behaves_the_same_in_cbor(connect):
    async with connect(cbor=True) as client:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        bad = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": cbor2.CBORTag(1, 1)}
        await client.send(b"\xd9\xd9\xf7" + cbor2.dumps(ping) + cbor2.dumps(bad) + cbor2.dumps([ping, ping]) + b"\xff")
        data = await client.rest()
        answers = []
        while data:
            answers.append(cbor2.loads(data))
            data = data[len(cbor2.dumps(answers[-1])) :]
        pong = {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert (answers[0], answers[2]) == (pong, [pong, pong])
        assert [answers[at]["error"]["code"] for at in (1, 3)] == [-32600, -32700]


async def test_an_event_and_an_answer_keep_their_order(connect):
    async with connect() as client:
        await client.send({"jsonrpc": "2.0", "id": 1, "method": "subscribe"})
        assert [line.get("method") for line in await client.lines(2)] == ["event", None]


async def test_a_cbor_connection_has_no_limit_on_its_total_requests_and_items(connect):
    """Sends more requests and items than one message may have: the bounds count for each message."""
    ping = cbor2.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    size = len(cbor2.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}))
    async with connect(cbor=True) as client:
        for _ in range(amount(70, 12)):
            await client.stream.send_all(ping * 1000)
            left = 1000 * size
            while left:
                data = await client.stream.receive_some()
                assert data, "the server closed the connection"
                left -= len(data)


async def test_a_refused_ordered_request_does_not_block_the_next_one(connect):
    async with connect() as client:
        calls = [{"jsonrpc": "2.0", "id": number, "method": "refused_in_line"} for number in range(3)]
        await client.send(*calls)
        answers = await client.lines(3)
    assert [(answer["id"], answer["error"]["message"]) for answer in answers] == [
        (number, "There is no such session.") for number in range(3)
    ]
