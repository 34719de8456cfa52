import base64
import errno
import json
import os
from contextlib import asynccontextmanager

import cbor2
import h11
import pytest
import trio
import trio_websocket
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.rpc import cbor_items
from sessiond.rpc.budget import MIB
from sessiond.rpc.limits import Limits
from sessiond.transports.exchange import HttpError
from sessiond.transports.websocket import check_upgrade, handshake_bytes

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
PONG = {"jsonrpc": "2.0", "id": 1, "result": {}}
KEY = base64.b64encode(b"0123456789abcdef").decode()


async def wait_until(condition):
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the kernel and other processes have a part in it
            await trio.sleep(0.001)


@asynccontextmanager
async def connect(running):
    """A WebSocket client; its stream is closed here, since the library leaves one open that the server closed."""
    host, port = running.tcp.split(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream, trio.open_nursery() as nursery:
        with trio.fail_after(PATIENCE_S):
            yield await trio_websocket.wrap_client_stream(
                nursery, stream, running.tcp, "/ws", extra_headers=[(b"Authorization", b"Bearer reader")]
            )
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_upgraded_stream(running):
    """A bare stream on which the handshake has been answered."""
    host, port = running.tcp.split(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(handshake(running).encode())
        with trio.fail_after(PATIENCE_S):
            head = await stream.receive_some()
            assert head.startswith(b"HTTP/1.1 101 ") and head.endswith(b"\r\n\r\n")
            assert b"extensions" not in head.lower()
            yield stream


async def ask(connection, message):
    with trio.fail_after(PATIENCE_S):
        if isinstance(message, bytes):
            await connection.send_message(message)
        else:
            await connection.send_message(json.dumps(message))
        answer = await connection.get_message()
    return json.loads(answer) if isinstance(answer, str) else cbor2.loads(answer)


async def test_text_is_json_and_binary_is_cbor(open_server):
    async with open_server() as running:
        async with connect(running) as connection:
            assert await ask(connection, PING) == PONG
            assert await ask(connection, [PING, PING]) == [PONG, PONG]
            assert (await ask(connection, {**PING, "method": "whoami"}))["result"] == {"token": "t-reader"}
        async with connect(running) as connection:
            assert await ask(connection, cbor2.dumps(PING)) == PONG
            assert await ask(connection, b"\xd9\xd9\xf7" + cbor2.dumps(PING)) == PONG


async def test_a_connection_keeps_to_one_kind_of_frame(open_server):
    async with open_server() as running:
        async with connect(running) as connection:
            assert await ask(connection, PING) == PONG
            assert (await ask(connection, cbor2.dumps(PING)))["error"]["code"] == -32600
            with pytest.raises(trio_websocket.ConnectionClosed) as closed:
                await connection.get_message()
            assert closed.value.reason.code == 1003


@check_each("frame", [cbor2.dumps(PING) + b"\x00", b"\xa1", b"\x81" * 100])
async def test_a_binary_frame_must_be_one_whole_cbor_item(open_server, frame):
    async with open_server() as running:
        async with connect(running) as connection:
            answer = await ask(connection, frame)
            assert (answer["id"], answer["error"]["code"] in (-32700, -32600)) == (None, True)


async def test_bad_text_is_answered_and_the_connection_stays_open(open_server):
    async with open_server() as running:
        async with connect(running) as connection:
            await connection.send_message("nonsense")
            assert json.loads(await connection.get_message())["error"]["code"] == -32700
            await connection.send_message("  \n")
            assert await ask(connection, PING) == PONG


async def test_events_have_the_kind_of_frame_of_the_request(open_server):
    async with open_server() as running:
        for encode, decode in ((json.dumps, json.loads), (cbor2.dumps, cbor2.loads)):
            async with connect(running) as connection:
                await connection.send_message(encode({**PING, "method": "subscribe"}))
                with trio.fail_after(PATIENCE_S):
                    got = [decode(await connection.get_message()) for _ in range(4)]
                assert PONG | {"result": {"subscribed": True}} in got
                assert [message["params"]["n"] for message in got if "method" in message] == [0, 1, 2]


async def test_a_listening_client_gets_its_pings_answered(open_server):
    async with open_server() as running:
        async with connect(running) as connection:
            await connection.send_message(json.dumps({**PING, "method": "subscribe"}))
            for _ in range(4):
                await connection.get_message()
            await connection.ping(b"x")
            await connection.ping(b"y")


async def test_a_close_cancels_the_requests_of_the_connection(open_server):
    async with open_server() as running:
        async with connect(running) as connection:
            await connection.send_message(json.dumps({**PING, "method": "wait"}))
            await wait_until(lambda: running.services.started)
        await wait_until(lambda: running.services.ended == 1)
        await wait_until(lambda: running.server.connections == 0)
        assert running.services.faults == []


async def test_when_a_client_vanishes_its_requests_are_cancelled(open_server):
    async with open_server() as running:
        async with open_upgraded_stream(running) as stream:
            body = json.dumps({**PING, "method": "wait"}).encode()
            await stream.send_all(bytes([0x81, 0x80 | len(body), 0, 0, 0, 0]) + body)
            await wait_until(lambda: running.services.started)
        await wait_until(lambda: running.services.ended == 1)
        await wait_until(lambda: running.server.connections == 0)
        assert running.services.faults == []


async def test_a_message_over_the_limit_closes_the_connection(open_server):
    async with open_server(limits=Limits(max_frame_bytes=10_000)) as running:
        async with connect(running) as connection:
            text = "x" * 9_900
            answer = await ask(connection, {**PING, "method": "echo", "params": {"text": text}})
            assert answer["result"] == {"text": text}
            await connection.send_message(" " * 10_001)
            with pytest.raises(trio_websocket.ConnectionClosed) as closed, trio.fail_after(PATIENCE_S):
                await connection.get_message()
            assert closed.value.reason.code == 1009


async def test_revoking_a_token_closes_its_websocket(open_server):
    async with open_server() as running:
        async with connect(running) as connection:
            assert await ask(connection, PING) == PONG
            assert running.server.active_connections.close_where(lambda caller: caller.token_id == "t-reader") == 1
            with pytest.raises(trio_websocket.ConnectionClosed), trio.fail_after(PATIENCE_S):
                await connection.get_message()


LONG_MESSAGE = b"\x81\xff" + (8 * MIB).to_bytes(8, "big") + bytes(4) + b" " * 300_000  # the beginning of one


def masked(first_byte, payload):
    return bytes([first_byte, 0x80 | len(payload), 0, 0, 0, 0]) + payload


async def read_close(stream):
    """Read up to the close frame; its code."""
    received = b""
    while (at := received.find(b"\x88\x02")) < 0 or len(received) < at + 4:
        more = await stream.receive_some()
        assert more, received
        received += more
    return int.from_bytes(received[at + 2 : at + 4], "big")


def close_reader(running):
    assert running.server.active_connections.close_where(lambda caller: caller.token_id == "t-reader") == 1


async def test_what_a_client_sends_after_its_connection_was_ended_reserves_nothing(open_server):
    async with open_server() as running:
        others = running.dispatcher.budgets.others
        ping = masked(0x81, json.dumps(PING).encode())
        for begin, more in ((LONG_MESSAGE, b" " * 1000), (ping + masked(0x82, b"\x80"), LONG_MESSAGE)):
            async with open_upgraded_stream(running) as stream:
                await stream.send_all(begin)
                if begin is LONG_MESSAGE:
                    await wait_until(lambda: others.used_bytes)
                    close_reader(running)
                assert await read_close(stream) in (1000, 1003)
                await stream.send_all(more)
            await wait_until(lambda: running.server.connections == 0)
            assert others.used_bytes == 0


async def test_a_connection_that_ends_while_it_waits_for_room_reserves_nothing(open_server):
    async with open_server() as running:
        others = running.dispatcher.budgets.others
        full = await others.take("t-reader", 48 * MIB)
        async with open_upgraded_stream(running) as stream:
            await stream.send_all(LONG_MESSAGE)
            await wait_until(lambda: others._waiting)
            close_reader(running)
            assert await read_close(stream) == 1000
            full.release()
        await wait_until(lambda: running.server.connections == 0)
        assert others.used_bytes == 0


async def test_a_shortage_of_threads_closes_with_try_again_later(open_server, monkeypatch):
    async def lack_thread(*_):
        await trio.lowlevel.checkpoint()
        raise OSError(errno.EAGAIN, "no thread")

    monkeypatch.setattr(cbor_items, "run_in_thread", lack_thread)
    async with open_server() as running, connect(running) as connection:
        await connection.send_message(cbor2.dumps({**PING, "params": {"text": "x" * 20_000}}))
        assert cbor2.loads(await connection.get_message())["error"]["code"] == -32007
        with pytest.raises(trio_websocket.ConnectionClosed) as closed:
            await connection.get_message()
        assert closed.value.reason.code == 1013


def handshake(running, **changes):
    headers = {
        "Host": running.tcp,
        "Authorization": "Bearer reader",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Extensions": "permessage-deflate",
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join(["GET /ws HTTP/1.1", *lines]) + "\r\n\r\n"


@check_each(
    ("changes", "status"),
    [
        ({"Authorization": None}, 401),
        ({"Authorization": "Bearer bad"}, 401),
        ({"Host": "evil"}, 403),
        ({"Origin": "http://evil"}, 403),
        ({"Origin": "null"}, 403),
        ({"Upgrade": None}, 426),
        ({"Upgrade": "h2c"}, 426),
        ({"Connection": "keep-alive"}, 426),
        ({"Sec_WebSocket_Version": "8"}, 426),
        ({"Sec_WebSocket_Version": None}, 426),
        ({"Sec_WebSocket_Key": None}, 400),
        ({"Sec_WebSocket_Key": "short"}, 400),
        ({"Sec_WebSocket_Key": base64.b64encode(b"x").decode()}, 400),
        ({"Content_Length": "5"}, 400),
    ],
)
async def test_a_bad_handshake_is_refused_at_once(open_server, changes, status):
    async with open_server() as running:
        with trio.fail_after(PATIENCE_S):
            data = await running.raw_tcp(handshake(running, **changes).encode())
        assert data.startswith(b"HTTP/1.1 %d " % status), data
        if status == 426:
            assert b"\r\nUpgrade: websocket\r\n" in data or b"\r\nSec-WebSocket-Version: 13\r\n" in data


async def test_frames_sent_before_the_handshake_is_answered_are_refused(open_server):
    async with open_server() as running:
        data = await running.raw_tcp(handshake(running).encode() + b"\x88\x80\x00\x00\x00\x00")
        assert data.startswith(b"HTTP/1.1 400 ")


@check_each(
    ("frames", "code"),
    [
        (b"\x88\x80\0\0\0\0", None),  # a close without a code is answered with one
        (b"\x88\x82\0\0\0\0\x03\xe8", 1000),
        (b"\x88\x81\0\0\0\0\x03", 1002),  # half a code
        (b"\xff\xff\xff", 1002),
        (b"\x81\x05hello", 1002),  # not masked
        (b"\x83\x80\0\0\0\0", 1002),  # no such opcode
        (b"\xc1\x80\0\0\0\0", 1002),  # a reserved bit
        (b"\x80\x80\0\0\0\0", 1002),  # a continuation of no message
        (b"\x09\x80\0\0\0\0", 1002),  # a ping in pieces
        (b"\x81\xfe\0\x05\0\0\0\0hello", 1002),  # a length longer than it need be
        (b"\x81\x82\0\0\0\0\xff\xff", 1007),
    ],
)
async def test_a_close_or_an_invalid_frame_ends_the_connection_with_the_right_code(open_server, frames, code):
    async with open_server() as running:
        async with open_upgraded_stream(running) as stream:
            await stream.send_all(frames)
            await stream.send_eof()
            said = b"".join([chunk async for chunk in stream])
            assert said[:1] == b"\x88" and len(said) == 2 + said[1], "one close frame, and nothing else"
            assert (int.from_bytes(said[2:4], "big") if code is not None else None) == code
        await wait_until(lambda: running.server.connections == 0)
        assert running.services.faults == []


@check_each(
    ("frames", "code", "reason"),
    [
        (b"\x88\x82\0\0\0\0\x03\xe7", 1002, "There is no such code for a close."),
        (b"\x88\x82\0\0\0\0\x03\xed", 1002, "There is no such code for a close."),
        (b"\x88\x81\0\0\0\0\x03", 1002, "A close has no code or a whole one."),
        (b"\x01\x80\0\0\0\0\x81\x80\0\0\0\0", 1002, "A new message began before the one before it had ended."),
        (b"\x80\x80\0\0\0\0", 1002, "A fragment goes on with a message that never began."),
        (b"\x83\x80\0\0\0\0", 1002, "There is no such kind of frame."),
        (b"\xc1\x80\0\0\0\0", 1002, "A reserved bit is set, and no extension was agreed on."),
        (b"\x09\x80\0\0\0\0", 1002, "A ping, a pong or a close comes in one frame."),
        (b"\x89\xfe\0\x80\0\0\0\0", 1002, "A ping, a pong or a close has at most 125 bytes."),
        (b"\x81\x05hello", 1002, "A client masks its frames."),
        (b"\x81\xfe\0\x05\0\0\0\0", 1002, "The length of a frame is written as short as it can be."),
        (b"\x81\xff" + b"\xff" * 12, 1002, "The length of a frame is a positive number."),
        (b"\x81\x82\0\0\0\0\xff\xfe", 1007, "The text of the message is not UTF-8."),
        (b"\x88\x84\0\0\0\0\x03\xe8\xff\xff", 1007, "The reason of the close is not UTF-8."),
        (b"\x01\x80\0\0\0\0" + b"\x00\x81\0\0\0\0x" * 5000, 1009, "A message has at most 4096 fragments,"),
    ],
)
async def test_an_invalid_frame_is_answered_with_a_reason_in_words(open_server, frames, code, reason):
    """The client keeps its half open and reads, so that the library's reader uses the stream meanwhile."""
    async with open_server() as running:
        async with open_upgraded_stream(running) as stream:
            await stream.send_all(frames)
            said = b"".join([chunk async for chunk in stream])
        assert (said[:1], int.from_bytes(said[2:4], "big")) == (b"\x88", code)
        assert said[4:].decode().startswith(reason) and len(said) == 2 + said[1]
        await wait_until(lambda: running.server.connections == 0)
        assert running.services.faults == []


async def test_answers_to_requests_before_an_invalid_frame_can_still_be_read(open_server):
    async with open_server() as running:
        async with open_upgraded_stream(running) as stream:
            await stream.send_all(b"\x81\x82\0\0\0\0{}" * 3 + b"\x83\x80\0\0\0\0" + os.urandom(4096))
            said = b"".join([chunk async for chunk in stream])
            assert b"\x88" in said and int.from_bytes(said[said.rindex(b"\x88") :][2:4], "big") == 1002
        await wait_until(lambda: running.server.connections == 0)


async def test_random_frames_end_only_their_own_connection(open_server):
    async with open_server() as running:
        for _ in range(50):
            async with open_upgraded_stream(running) as stream:
                await stream.send_all(os.urandom(200))
        await wait_until(lambda: running.server.connections == 0)
        async with connect(running) as connection:
            assert await ask(connection, PING) == PONG
        assert running.services.faults == []


async def test_websocket_works_on_the_unix_socket_with_another_client(open_server):
    async with open_server() as running:
        script = (
            "import sys, json\n"
            "from websockets.sync.client import unix_connect\n"
            "with unix_connect(sys.argv[1], uri='ws://sessiond/ws') as ws:\n"
            "    ws.send(json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': 'whoami'}))\n"
            "    print(ws.recv(), ws.protocol.extensions)\n"
        )
        import sys

        out = await running.run(sys.executable, "-c", script, running.owner)
        assert out.decode().strip() == '{"jsonrpc":"2.0","id":1,"result":{"token":null}} []'


def test_the_handshake_is_passed_on_with_only_the_headers_that_matter():
    request = h11.Request(
        method="GET",
        target="/ws?x",
        headers=[
            ("Host", "h"),
            ("Authorization", "Bearer secret"),
            ("Upgrade", "WebSocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", KEY),
            ("Sec-WebSocket-Extensions", "permessage-deflate"),
        ],
    )
    check_upgrade(request)
    assert handshake_bytes(request).decode().split("\r\n") == [
        "GET /ws HTTP/1.1",
        "host: h",
        "upgrade: WebSocket",
        "connection: Upgrade",
        "sec-websocket-version: 13",
        f"sec-websocket-key: {KEY}",
        "",
        "",
    ]
    with pytest.raises(HttpError):
        check_upgrade(h11.Request(method="POST", target="/ws", headers=request.headers))
