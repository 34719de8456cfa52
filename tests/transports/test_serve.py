import os
import resource
import socket
import subprocess
import sys

import cbor2
import msgspec
import pytest
import trio
from support.patience import PATIENCE_S
from support.rows import check_each
from support.shortage import no_free_descriptor

from sessiond.rpc.limits import Limits
from sessiond.store.kept_files import KeptFile, KeptFiles
from sessiond.transports.serve import ServerLimits

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
WAIT = b'{"jsonrpc":"2.0","id":2,"method":"wait"}\n'
PONG = {"jsonrpc": "2.0", "id": 1, "result": {}}


def intro(token):
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"token": token}}) + b"\n"


def error_of(data):
    """Code and message of the one error in `data`."""
    [line] = data.splitlines()
    answer = msgspec.json.decode(line)
    assert answer["id"] is None
    return answer["error"]["code"], answer["error"]["message"]


async def wait_until(condition):
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the kernel and other processes have a part in it
            await trio.sleep(0.001)


async def test_socat_gets_its_answers_after_its_half_close(open_server):
    async with open_server() as running:
        assert await running.socat(PING + PING) == [PONG, PONG]
        assert await running.socat(PING.rstrip()) == [PONG]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_release_when_started, running, 1)
            assert await running.socat(WAIT) == [{"jsonrpc": "2.0", "id": 2, "result": {"released": True}}]


async def _release_when_started(running, count):
    await wait_until(lambda: running.services.started >= count)
    running.services.release.set()


async def test_a_json_rpc_library_can_talk_to_the_server(open_server):
    import jsonrpcclient

    async with open_server() as running:
        batch = [
            jsonrpcclient.request("echo", {"text": "hé"}),
            jsonrpcclient.request("nope"),
            jsonrpcclient.notification("ping"),
        ]
        [answers] = await running.socat(msgspec.json.encode(batch) + b"\n")
        ok, error = jsonrpcclient.parse(answers)
        assert (ok, error.code) == (jsonrpcclient.Ok({"text": "hé"}, batch[0]["id"]), -32601)


async def test_cbor_works_on_the_same_socket(open_server):
    async with open_server() as running:
        ping = cbor2.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert cbor2.loads(await running.raw(ping)) == PONG
        assert cbor2.loads(await running.raw(b"\xd9\xd9\xf7" + ping)) == PONG
        refused = cbor2.loads(await running.raw(b"\x81" * 100_000))
        assert (refused["id"], refused["error"]["code"]) == (None, -32600)


@check_each(
    ("first", "words"),
    [
        (b"Content-Length: 40\r\n\r\n" + PING, "LSP framing"),
        (b"\x16\x03\x01hello", "0x16"),
        (b"quit\n", "0x71"),
        (b"\xef\xbb\xbf" + PING, "0xef"),
    ],
)
async def test_an_unknown_dialect_gets_one_clear_error(open_server, first, words):
    async with open_server() as running:
        code, message = error_of(await running.raw(first))
        assert code == -32600 and words in message and "NDJSON" not in message and "one JSON message a line" in message


async def test_the_dialect_is_recognized_when_bytes_arrive_one_by_one(open_server):
    async with open_server() as running:
        for words in (b"Content-Length: 1", b"CONNECT x HTTP/1.1\r\n\r\n"):
            async with await trio.open_unix_socket(running.owner) as stream:
                for byte in words:
                    await stream.send_all(bytes([byte]))
                await stream.send_eof()
                answer = b"".join([chunk async for chunk in stream])
            assert b"LSP" in answer if b"Length" in words else answer.startswith(b"HTTP/1.1 400")
        assert await running.raw(b"") == b""
        assert (await running.raw(b"Con")).startswith(b"HTTP/1.1 400")


async def test_on_the_agent_socket_an_unauthenticated_client_may_only_initialize(open_server):
    async with open_server() as running:
        answers = await running.socat(PING + intro("bad") + intro("lister") + PING, running.agent)
        assert [answer.get("error", {}).get("code") for answer in answers] == [-32001, -32001, None, None]
        over = await running.raw(b" " * (64 * 1024 + 1), running.agent)
        assert error_of(over) == (-32005, "A message holds at most 65536 bytes here.")


async def test_authenticated_clients_may_send_frames_up_to_the_limit(open_server):
    async with open_server(limits=Limits(max_frame_bytes=3_000_000)) as running:

        def echo(size):
            return (
                msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": "x" * size}})
                + b"\n"
            )

        size = 3_000_000 - len(echo(0)) + 1
        [answer] = await running.socat(echo(size))
        assert len(answer["result"]["text"]) == size
        [_, answer] = await running.socat(intro("reader") + echo(size), running.agent)
        assert len(answer["result"]["text"]) == size
        code, _ = error_of(await running.raw(echo(size + 1)))
        assert code == -32005


async def test_a_line_over_the_limit_is_refused_while_it_is_still_being_sent(open_server):
    async with open_server(limits=Limits(max_frame_bytes=100_000)) as running:
        assert error_of(await running.raw(b"[" * 10_000_000)) == (-32005, "A message holds at most 100000 bytes here.")


async def test_a_process_of_another_user_is_refused(open_server):
    async with open_server(uid=os.geteuid() + 1) as running:
        assert error_of(await running.raw(PING)) == (-32001, "This socket is another user's.")
        assert (await running.socat(intro("lister"), running.agent))[0]["result"] == {"caller": "t-lister"}


async def test_the_server_survives_half_messages_and_vanished_clients(open_server):
    async with open_server() as running:
        for path, data in [
            (running.owner, PING[:20]),
            (running.agent, b"{"),
            (running.owner, WAIT),
            (running.owner, b"GET /ha"),
        ]:
            stream = await trio.open_unix_socket(path)
            await stream.send_all(data)
            await stream.aclose()
        with socket.socket(socket.AF_INET) as abrupt:  # a reset in the middle of a request
            host, port = running.tcp.split(":")
            abrupt.connect((host, int(port)))
            abrupt.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            abrupt.send(b"GET /hang HTTP/1.1\r\nHost: x\r\n")
        await wait_until(lambda: running.server.connections == 0)
        assert running.services.started == running.services.ended
        assert await running.socat(PING) == [PONG]
        assert running.services.faults == []


async def test_clients_that_never_finish_their_first_message_are_disconnected(open_server):
    async with open_server(rules=ServerLimits(first_message_s=2)) as running:

        async def silent(path, data, expected):
            async with await trio.open_unix_socket(path) as stream:
                if data:
                    await stream.send_all(data)
                answer = b"".join([chunk async for chunk in stream])
            assert expected in answer and (expected or not answer)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(silent, running.owner, b"", b"")
                nursery.start_soon(silent, running.owner, b'{"json', b"No message came within 2 seconds")
                nursery.start_soon(silent, running.owner, b"\xa1", b"No message came within 2 seconds")
                nursery.start_soon(silent, running.agent, PING, b"Nobody said who they are within 2 seconds")
                nursery.start_soon(silent, running.owner, b"GET / HT", b"HTTP/1.1 408")
        await wait_until(lambda: running.server.connections == 0)
        assert running.dispatcher.budgets.closed == {"silent": 4}


async def test_sending_a_byte_at_a_time_does_not_extend_the_time_limit(open_server):
    async with open_server(rules=ServerLimits(first_message_s=0.3)) as running:
        stream = await trio.open_unix_socket(running.owner)

        async def drip():
            for byte in PING.rstrip() * 1000:
                await stream.send_all(bytes([byte]))
                await trio.sleep(0.01)

        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            await drip()
        assert running.server.connections == 0
        await stream.aclose()


async def test_authenticated_connections_may_be_idle(open_server):
    # Long enough for a first message on any machine.
    async with open_server(rules=ServerLimits(first_message_s=3)) as running, trio.open_nursery() as nursery:

        async def rest(path, first):
            async with await trio.open_unix_socket(path) as stream:
                await stream.send_all(first)
                await stream.receive_some()
                with trio.move_on_after(3.3):
                    assert await stream.receive_some() and False, "no data arrives and the connection stays open"
                await stream.send_all(PING)
                assert msgspec.json.decode(await stream.receive_some()) == PONG

        nursery.start_soon(rest, running.owner, PING)
        nursery.start_soon(rest, running.agent, intro("lister"))


async def test_connections_are_accepted_up_to_the_limit_and_not_beyond(open_server):
    async with open_server() as running:
        streams = [await trio.open_unix_socket(running.owner) for _ in range(300)]
        for stream in streams[:256]:
            await stream.send_all(PING)
            assert msgspec.json.decode(await stream.receive_some()) == PONG
        told = [await stream.receive_some() for stream in streams[256:]]
        refused = {"type": "overloaded", "retryAfterMs": 1000}
        answers = [msgspec.json.decode(answer)["error"] for answer in told if answer]
        assert [(error["code"], error["data"]) for error in answers] == [(-32007, refused)] * 32
        for stream in streams:
            await stream.aclose()
        await wait_until(lambda: running.server.connections == 0)
        assert running.dispatcher.budgets.closed == {"turned_away": 44}
        assert await running.socat(PING) == [PONG]


async def test_idle_owner_connections_yield_to_active_clients(open_server):
    async with open_server(rules=ServerLimits(max_connections=16)) as running:
        idle = [await trio.open_unix_socket(running.owner) for _ in range(40)]
        for path, first in ((running.owner, PING), (running.agent, intro("lister"))):
            async with await trio.open_unix_socket(path) as stream:
                await stream.send_all(first)
                assert b'"result"' in await stream.receive_some()
        assert running.dispatcher.budgets.closed["yielded"] == 2
        for stream in idle:
            await stream.aclose()


async def test_idle_unauthenticated_clients_keep_nobody_out(open_server):
    async with open_server(rules=ServerLimits(max_connections=10, max_strangers=4)) as running:
        strangers = [await trio.open_unix_socket(running.agent) for _ in range(4)]
        await wait_until(lambda: running.server.connections == 4)
        assert await running.socat(PING) == [PONG]
        # A client that authenticates makes room for the next unauthenticated one.
        await strangers[0].send_all(intro("lister"))
        await strangers[0].receive_some()
        strangers.append(await trio.open_unix_socket(running.agent))
        await wait_until(lambda: running.server.connections == 5)
        # A client that sends a message displaces the longest idle one, and nobody else.
        assert (await running.socat(PING, running.agent))[0]["error"]["code"] == -32001
        with trio.fail_after(PATIENCE_S):
            assert await strangers[1].receive_some() == b""
        await strangers[0].send_all(PING)
        assert msgspec.json.decode(await strangers[0].receive_some()) == PONG
        for stream in strangers:
            await stream.aclose()


async def test_a_connection_that_has_sent_a_message_is_not_displaced(open_server):
    async with open_server(rules=ServerLimits(max_connections=3)) as running:
        streams = [await trio.open_unix_socket(running.owner) for _ in range(3)]
        for stream in streams:
            await stream.send_all(PING)
            assert msgspec.json.decode(await stream.receive_some()) == PONG
        assert (await running.socat(PING))[0]["error"]["code"] == -32007
        for stream in streams:
            await stream.aclose()


async def test_a_thousand_idle_connections_do_not_keep_a_new_client_out(open_server):
    async with open_server() as running:
        for path in (running.agent, running.owner):
            idle = [await trio.open_unix_socket(path) for _ in range(500)]
            assert await running.socat(PING) == [PONG]
            assert (await running.socat(intro("lister") + PING, path))[-1] == PONG
            for stream in idle:
                await stream.aclose()


async def test_an_http_client_over_the_connection_limit_is_refused_in_http(open_server):
    async with open_server(rules=ServerLimits(max_connections=0)) as running:
        status, body = await running.curl("/healthz")
        assert (status, msgspec.json.decode(body)["error"]["code"]) == (503, -32007)
        assert cbor2.loads(await running.raw(b"\xa0"))["error"]["code"] == -32007
        assert error_of(await running.raw(b"Content-Length: 1"))[0] == -32600


OUT_OF_DESCRIPTORS = """
import resource, socket, sys, trio
from sessiond.rpc.dispatch import Dispatcher
from sessiond.rpc.limits import Limits
from sessiond.transports.active_connections import ActiveConnections
from sessiond.transports.listener import bind_unix
from sessiond.transports.serve import Server
from pathlib import Path
import os

async def main():
    listener = bind_unix(Path(sys.argv[1]), "sessiond")
    dispatcher = Dispatcher([], None, limits=Limits(), on_fault=lambda *what: print(what, flush=True))
    server = Server(dispatcher, ActiveConnections(), authenticate=None, peer_uid=lambda sock: os.geteuid(),
                    with_room=lambda accept: accept())
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [listener])
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        os.write(1, b"ready")
trio.run(main)
"""


async def test_the_server_survives_running_out_of_file_descriptors(open_server, folder):
    path = folder / "few.sock"
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", OUT_OF_DESCRIPTORS, str(path)], stdout=subprocess.PIPE
    )
    try:
        with trio.fail_after(PATIENCE_S):
            assert await process.stdout.receive_some() == b"ready"
            streams = [await trio.open_unix_socket(path) for _ in range(30)]
            for stream in streams:
                await stream.send_all(b'{"jsonrpc":"2.0","id":1,"method":"x"}\n')
            assert b"-32601" in await streams[0].receive_some()
            with trio.move_on_after(0.3) as unanswered:
                await streams[29].receive_some()
            assert unanswered.cancelled_caught
            for stream in streams[:25]:
                await stream.aclose()
            assert b"-32601" in await streams[29].receive_some()
            for stream in streams[25:]:
                await stream.aclose()
    finally:
        process.kill()
        await process.wait()
        await process.stdout.aclose()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 20


async def test_where_no_descriptor_is_free_idle_ones_are_given_back_for_a_new_client(open_server):
    files = KeptFiles()
    async with open_server(files=files) as running:
        assert await running.socat(PING) == [PONG]  # everything is imported
        files.keep("idle", KeptFile(os.open(os.devnull, os.O_RDONLY), 0, 0, 0, b""))
        with trio.socket.socket(socket.AF_UNIX) as client, no_free_descriptor(), trio.fail_after(PATIENCE_S):
            await client.connect(str(running.owner))
            await client.send(PING)
            assert msgspec.json.decode(await client.recv(1024)) == PONG
        assert files.take("idle") is None


async def test_draining_answers_what_is_in_flight_and_ends(open_server):
    async with open_server() as running:
        async with await trio.open_unix_socket(running.owner) as stream:
            await stream.send_all(WAIT)
            await wait_until(lambda: running.services.started)
            with trio.fail_after(PATIENCE_S):
                await running.server.drain(0.05)
                answer = b"".join([chunk async for chunk in stream])
        assert msgspec.json.decode(answer)["error"] == {
            "code": -32008,
            "message": "The daemon is stopping before this has ended: it may have been done or not."
            " Look first when it is back, unless doing it twice is no harm.",
            "data": {"type": "stopping", "retryAfterMs": 1000, "begun": True},
        }


def http_request(path: str, body: bytes = b"") -> bytes:
    verb = "POST" if body else "GET"
    head = f"{verb} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def test_draining_answers_http_requests_too(open_server):
    """That of a method as every peer, that of another road with 503; an event stream and an idle client get none."""
    requests = {
        "method": http_request("/rpc", WAIT),
        "road": http_request("/hang"),
        "stream": http_request("/events?follow=1"),
        "idle": b"GET /hang HTTP/1.1\r\n",
    }
    streams, answers = {}, {}
    async with open_server() as running:
        for name, request in requests.items():
            streams[name] = await trio.open_unix_socket(running.owner)
            await streams[name].send_all(request)
        await wait_until(lambda: running.services.started == 3)
        with trio.fail_after(PATIENCE_S):
            await running.server.drain(0.05)
            for name, stream in streams.items():
                async with stream:
                    answers[name] = b"".join([chunk async for chunk in stream])
    for name in ("method", "road"):
        head, _, body = answers[name].partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        error = msgspec.json.decode(body)["error"]
        assert error.get("data", error)["begun"] is True and "may have been done" in error["message"]
    assert msgspec.json.decode(body)["ok"] is False
    assert answers["idle"] == b""


async def test_draining_waits_for_http_requests_that_end_in_time(open_server):
    async with open_server() as running, trio.open_nursery() as nursery:
        async with await trio.open_unix_socket(running.owner) as stream:
            await stream.send_all(http_request("/rpc", WAIT))
            await wait_until(lambda: running.services.started)
            nursery.start_soon(running.server.drain, 10 * PATIENCE_S)
            running.services.release.set()
            with trio.fail_after(PATIENCE_S):
                answer = b"".join([chunk async for chunk in stream])
        assert b" 200 " in answer and msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["result"] == {
            "released": True
        }


async def test_draining_waits_for_requests_that_end_in_time(open_server):
    async with open_server() as running, trio.open_nursery() as nursery:
        async with await trio.open_unix_socket(running.owner) as stream:
            await stream.send_all(WAIT)
            await wait_until(lambda: running.services.started)
            nursery.start_soon(running.server.drain, 10 * PATIENCE_S)
            running.services.release.set()
            with trio.fail_after(PATIENCE_S):
                answer = b"".join([chunk async for chunk in stream])
        assert msgspec.json.decode(answer)["result"] == {"released": True}


async def test_revoking_a_token_ends_its_connections_and_no_others(open_server):
    async with open_server() as running:
        streams = {}
        for token in ("lister", "reader"):
            streams[token] = await trio.open_unix_socket(running.agent)
            await streams[token].send_all(intro(token))
            await streams[token].receive_some()
        assert running.server.active_connections.close_where(lambda caller: caller.token_id == "t-lister") == 1
        with trio.fail_after(PATIENCE_S):
            assert await streams["lister"].receive_some() == b""
        await streams["reader"].send_all(PING)
        assert msgspec.json.decode(await streams["reader"].receive_some()) == PONG
        for stream in streams.values():
            await stream.aclose()
