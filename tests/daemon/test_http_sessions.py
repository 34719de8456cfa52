"""The HTTP routes of sessions, with curl and httpx; heartbeats on the test's own clock."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
import trio
import trio.testing
from support.foreign_sessions import key_of, pi_file
from support.in_process import in_process_daemon
from support.page_world import AttachedAgent
from support.real_daemon import PATIENCE_S, Daemon, Wire
from support.rows import check_each
from support.sampling import amount
from support.subscribed_connections import Curl, curl
from trio.testing import MockClock

from sessiond.daemon.http_sessions import add_session_routes
from sessiond.errors import InvalidParams
from sessiond.model.caller import OWNER
from sessiond.transports.exchange import EventStreamAnswer, HttpRequest
from sessiond.transports.routes import Router
from sessiond.transports.sse import EventStream

EVENTS = "Accept: text/event-stream"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    config = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }

[[agents.list]]
id = "alice"
runtime = { type = "attached" }
"""
    made = Daemon(tmp_path_factory.mktemp("http")).start(config)
    yield made
    made.stop()


@pytest.fixture
def key(running: Daemon) -> str:
    """The key of a new session with one exchange in it: `hello` and its echo."""
    key = f"agent:main:test:{uuid4()}"
    running.reply(key, "hello")
    return key


def path_of(key: str, query: str = "") -> str:
    return f"/sessions/{quote(key, safe='')}/history{query}"


def get(daemon: Daemon, path: str, *, token: str | None = None, method: str = "GET", **headers: str) -> httpx.Response:
    listener = daemon.agent_socket if token is not None else daemon.socket
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(listener), verify=False), timeout=PATIENCE_S) as client:
        return client.request(method, f"http://daemon{path}", headers=headers)


def inject(daemon: Daemon, key: str, *texts: str, role: str = "user") -> str:
    messages = [{"role": role, "content": text} for text in texts]
    cursor: str = daemon.call("chat.inject", sessionKey=key, messages=messages)["cursor"]
    return cursor


def next_texts(stream: Curl, count: int) -> list[str]:
    """The texts of the next events, which must all be messages."""
    events = [stream.next() for _ in range(count)]
    assert {name for name, _, _ in events} == {"message"}, events
    return [data["message"]["content"] for _, _, data in events]


def test_the_history_route_returns_the_result_of_the_method(running: Daemon, key: str) -> None:
    inject(running, key, "done", role="toolResult")
    for query, params in (("", {}), ("?limit=1", {"limit": 1}), ("?includeTools=1", {"includeTools": True})):
        got = get(running, path_of(key, query))
        assert got.status_code == 200
        assert got.json() == running.call("sessions_history", sessionKey=key, **params)
    older = running.call("sessions_history", sessionKey=key, limit=1)["nextCursor"]
    page = get(running, path_of(key, f"?cursor={older}")).json()
    assert [message["content"] for message in page["messages"]] == ["hello"]


def test_an_unknown_session_gives_404_with_a_json_error(running: Daemon) -> None:
    for headers in ({}, {"Accept": "text/event-stream"}):
        got = get(running, path_of("agent:main:nowhere"), **headers)
        assert (got.status_code, got.json()["ok"], got.json()["error"]["type"]) == (404, False, "not_found")


_BAD_NUMBERS = ["x", "1.5", "1e3", "1_0", "%d9%a3", "%201", "9" * 400]
_BAD_FLAGS = ["?follow=2", "?follow=yes", "?follow=", "?includeTools=maybe", "?includeTools=True", "?soFar=2"]


@check_each(
    "query", [*(f"?limit={text}" for text in _BAD_NUMBERS), *_BAD_FLAGS, "?cursor=x", "?cursor=0-0-000000000000"]
)
def test_a_bad_query_gives_400_and_names_the_field(running: Daemon, key: str, query: str) -> None:
    for path in (path_of(key, query), *([] if "follow" in query else [path_of(key, f"{query}&follow=1")])):
        got = get(running, path)
        assert (got.status_code, got.json()["error"]["type"]) == (400, "invalid_params")
        assert query[1:].partition("=")[0] in got.json()["error"]["field"]


def test_a_stream_sends_the_history_and_then_each_message(running: Daemon, key: str) -> None:
    for path, headers in ((path_of(key, "?follow=1"), ()), (path_of(key), (EVENTS,))):
        with curl(running, path, *headers) as stream:
            history = running.call("sessions_history", sessionKey=key)
            assert stream.next() == ("history", history["cursor"], history)
            cursor = inject(running, key, "one")
            name, event_id, data = stream.next()
            assert (name, event_id) == ("message", cursor)
            assert data == {
                "sessionKey": key,
                "sessionId": history["sessionId"],
                "messageId": data["messageId"],
                "seq": len(history["messages"]) + 1,
                "cursor": cursor,
                "timestamp": data["timestamp"],
                "message": {"role": "user", "content": "one"},
            }
            inject(running, key, "two", "three")
            assert next_texts(stream, 2) == ["two", "three"]


def test_last_event_id_resumes_without_the_history_and_without_a_gap(running: Daemon, key: str) -> None:
    with curl(running, path_of(key), EVENTS) as stream:
        last = stream.next()[1]
        inject(running, key, "one")
        last = stream.next()[1]
    inject(running, key, "two", "three")
    with curl(running, path_of(key), EVENTS, f"Last-Event-ID: {last}") as stream:
        assert next_texts(stream, 2) == ["two", "three"]
        inject(running, key, "four")
        assert next_texts(stream, 1) == ["four"]


def test_last_event_id_from_before_a_reset_gets_the_missed_messages_and_a_resync(running: Daemon, key: str) -> None:
    last = running.call("sessions_history", sessionKey=key)["cursor"]
    inject(running, key, "tail")
    running.call("sessions.reset", key=key)
    inject(running, key, "new")
    with curl(running, path_of(key), EVENTS, f"Last-Event-ID: {last}") as stream:
        assert next_texts(stream, 1) == ["tail"]
        name, _, data = stream.next()
        assert (name, data["reason"]) == ("resync", "reset")
        assert next_texts(stream, 1) == ["new"]


def test_last_event_id_of_a_vanished_transcript_starts_from_the_beginning(running: Daemon, key: str) -> None:
    other = f"agent:main:test:{uuid4()}"
    running.reply(other, "hidden")
    foreign = running.call("sessions_history", sessionKey=other)["positions"][0]["cursor"]
    last = running.call("sessions_history", sessionKey=key)["cursor"]
    running.call("sessions.reset", key=key)
    for archived in (running.store / "agents/main/sessions/archive").glob("*.jsonl"):
        archived.unlink()
    inject(running, key, "new")
    for gone in (last, foreign, "0-0-000000000000"):
        with curl(running, path_of(key), EVENTS, f"Last-Event-ID: {gone}") as stream:
            heard = [stream.next() for _ in range(2)]
            while heard[-1][0] != "message":
                heard.append(stream.next())
        reasons = [data["reason"] for name, _, data in heard if name == "resync"]
        assert "reset" in reasons
        assert [data["message"]["content"] for name, _, data in heard if name == "message"] == ["new"]


def test_a_bad_last_event_id_gives_400_and_no_content(running: Daemon, key: str) -> None:
    stale = running.call("sessions_history", sessionKey=key)["cursor"]
    running.call("sessions.reset", key=key)
    for bad in ("x", "99999999999999999999-0-000000000000", stale + "0"):
        got = get(running, path_of(key), Accept="text/event-stream", **{"Last-Event-ID": bad})
        assert (got.status_code, got.headers["content-type"]) == (400, "application/json")
        error = got.json()["error"]
        assert (error["type"], error["field"]) == ("invalid_params", "Last-Event-ID")


def test_a_stream_goes_on_over_resets_and_deletion_of_the_session(running: Daemon, key: str) -> None:
    with curl(running, path_of(key), EVENTS) as stream:
        stream.next()
        inject(running, key, "before")
        assert next_texts(stream, 1) == ["before"]
        for text in ("after one", "after two"):
            running.call("sessions.reset", key=key)
            inject(running, key, text)
            name, event_id, data = stream.next()
            assert (name, data["reason"], data["cursor"]) == ("resync", "reset", event_id)
            with curl(running, path_of(key), EVENTS, f"Last-Event-ID: {event_id}") as resumed:
                assert next_texts(resumed, 1) == [text]
            assert next_texts(stream, 1) == [text]
        running.call("sessions.delete", key=key)
        running.call("sessions.create", key=key)
        inject(running, key, "made again")
        assert stream.next()[0] == "resync"
        assert next_texts(stream, 1) == ["made again"]


def test_live_text_has_no_event_id(running: Daemon, key: str) -> None:
    with curl(running, path_of(key), EVENTS) as stream:
        stream.next()
        running.reply(key, "echo this")
        events = [stream.next() for _ in range(3)]
        assert [(name, event_id is None) for name, event_id, _ in events] == [
            ("message", False),
            ("delta", True),
            ("message", False),
        ]
        assert events[1][2]["text"] == "echo this"


def test_a_stream_that_begins_during_a_run_has_the_text_so_far_where_it_asks_for_it(running: Daemon) -> None:
    key, so_far = "agent:alice:live", "?follow=1&soFar=1"
    key_pieces = ["The key is sk-ant-api03-aaaaaaaaaaaa", "aaaaaaaaaaaa and "]
    with running.connect() as wire:
        agent = AttachedAgent(wire, "alice")
        running.call("chat.send", sessionKey=key, message="hello")
        run_id = agent.begin()["runId"]
        token = running.call("tokens.mint", scopes=["read"], sessionKey=key)["token"]
        said = {"role": "assistant", "content": [{"type": "text", "text": "This is a message."}]}
        agent.tell("delta", text="This is a message.")
        agent.tell("message", message=said)
        while not running.call("chat.history", sessionKey=key)["messages"][1:]:
            pass
        with curl(running, path_of(key, so_far)) as early:
            early.next()
            for text in key_pieces:
                agent.tell("delta", text=text)
            # What was written before the message is not told, and nothing twice. The pieces may come before the stream
            # follows: then they are what was written so far.
            text = ""
            while len(text) < len("".join(key_pieces)):
                told = early.next()[2]
                text = told["text"] if "soFar" in told else text + told["text"]
            assert text == "".join(key_pieces)
        whole = {"sessionKey": key, "runId": run_id, "text": "".join(key_pieces), "soFar": True}
        last = running.call("chat.history", sessionKey=key)["cursor"]
        with (
            curl(running, path_of(key, so_far)) as begun,
            curl(running, path_of(key, so_far), f"Last-Event-ID: {last}") as resumed,
            curl(running, path_of(key, so_far), token=token) as masked,
            curl(running, path_of(key, "?follow=1")) as plain,
        ):
            for stream in (begun, masked, plain):
                stream.next()
            assert [stream.next() for stream in (begun, resumed)] == [("delta", None, whole)] * 2
            text = masked.next()[2]["text"]
            assert text.startswith("The key is ") and text.endswith(" and ") and "aaaaa" not in text
            agent.tell("delta", text="more")
            live = ("delta", None, {"sessionKey": key, "runId": run_id, "text": "more"})
            assert [stream.next() for stream in (begun, resumed, masked)] == [live] * 3
            agent.end("Over.")
            assert begun.next()[2]["message"]["content"][0]["text"] == "Over."
            while "message" not in (event := plain.next()[2]):  # it may have begun to follow behind the last piece
                assert "soFar" not in event
        with curl(running, path_of(key, so_far)) as late:
            late.next()
            inject(running, key, "after the run")
            assert next_texts(late, 1) == ["after the run"]


def test_tool_results_are_left_out_of_a_stream_only_on_request(running: Daemon, key: str) -> None:
    follow, spared = path_of(key, "?follow=1"), path_of(key, "?follow=1&includeTools=0")
    with curl(running, follow) as whole, curl(running, spared) as part:
        for stream in (whole, part):
            stream.next()
        inject(running, key, "done", role="toolResult")
        inject(running, key, "said")
        assert next_texts(whole, 2) == ["done", "said"]
        assert next_texts(part, 1) == ["said"]


def test_a_key_in_a_path_may_be_an_alias_and_have_any_characters(running: Daemon) -> None:
    running.reply("main", "hello")
    assert get(running, path_of("main")).json()["sessionKey"] == "agent:main:main"
    odd = "agent:main:a/b?c d%41é"
    running.reply(odd, "hello")
    with curl(running, path_of(odd), EVENTS) as stream:
        assert stream.next()[2]["sessionKey"] == odd


def test_a_reader_that_stops_for_a_while_misses_nothing(running: Daemon, key: str) -> None:
    texts = [f"{number} " + "x" * 4000 for number in range(amount(2000, 1200))]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(str(running.socket))
        sock.sendall(f"GET {path_of(key)} HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n".encode())
        with sock.makefile("rb") as stream:
            while b"event: history" not in stream.readline():
                pass
            for start in range(0, len(texts), 100):
                inject(running, key, *texts[start : start + 100])
            inject(running, key, "the last")
            names: list[str] = []
            heard: list[str] = []
            while not heard or heard[-1] != "the last":
                line = stream.readline()
                if line.startswith(b"event: "):
                    names.append(line[7:-1].decode())
                elif line.startswith(b"data: ") and names and names[-1] == "message":
                    heard.append(json.loads(line[6:])["message"]["content"])
        assert heard == [*texts, "the last"]
        assert names.count("resync") == 1


def test_scopes_and_visibility_are_those_of_the_methods(running: Daemon, key: str) -> None:
    def token(*scopes: str, of: str = key) -> str:
        text: str = running.call("tokens.mint", scopes=list(scopes), sessionKey=of)["token"]
        return text

    reader, lister, stranger = token("read"), token("list"), token("read", of="agent:other:main")
    kill = f"/sessions/{quote(key, safe='')}/kill"
    assert get(running, path_of(key), token=reader).status_code == 200
    assert get(running, path_of(key), token=lister).status_code == 403
    assert get(running, path_of(key), token=lister, Accept="text/event-stream").status_code == 403
    assert get(running, path_of(key), token=stranger).status_code == 404
    assert get(running, path_of(key), token="nonsense").status_code == 401
    assert get(running, kill, token=reader, method="POST").status_code == 403
    assert get(running, "/metrics", token=reader).status_code == 403
    assert get(running, kill, method="POST").json() == {"ok": True, "killed": False}
    assert get(running, "/sessions/nowhere/kill", method="POST").status_code == 404
    with curl(running, path_of(key), EVENTS, token=reader) as stream:
        assert "hunter2" not in str(stream.next())
        inject(running, key, "password=hunter2hunter2")
        assert "hunter2" not in next_texts(stream, 1)[0]


def test_the_kill_route_ends_a_run(daemon: Daemon) -> None:
    program = '["sh", "-c", "touch started; sleep 60"]'
    daemon.start(f'''
[[agents.list]]
id = "main"
workspace = "{daemon.folder}"
runtime = {{ type = "exec", command = {program} }}
''')
    sent = daemon.call("chat.send", sessionKey="main", message="x")
    daemon.wait_for((daemon.folder / "started").exists, "the program was not started")
    assert get(daemon, "/sessions/main/kill", method="POST").json() == {"ok": True, "killed": True}
    assert daemon.call("agent.wait", runId=sent["runId"])["status"] == "aborted"


def test_a_revoked_token_ends_its_stream_at_once(running: Daemon, key: str) -> None:
    minted = running.call("tokens.mint", scopes=["read"], sessionKey=key)
    with curl(running, path_of(key), EVENTS, token=minted["token"]) as stream:
        stream.next()
        running.call("tokens.revoke", id=minted["id"])
        inject(running, key, "secret")
        with pytest.raises(ConnectionError):
            stream.next()


def test_a_half_closed_client_still_gets_events_and_a_closed_one_is_unsubscribed(running: Daemon, key: str) -> None:
    def followers() -> int:
        count: int = running.call("daemon.status")["subscribers"]
        return count

    before = followers()
    with Wire(running.socket) as wire:
        wire.send(f"GET {path_of(key)} HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n".encode())
        wire.socket.shutdown(socket.SHUT_WR)
        running.wait_for(lambda: followers() == before + 1, "nobody follows")
        inject(running, key, "heard")
        with wire.socket.makefile("rb") as stream:
            while b"heard" not in stream.readline():
                pass
    running.wait_for(lambda: followers() == before, "it is still followed")


def test_a_rewritten_file_sends_a_resync(running: Daemon, key: str, tmp_path: Path) -> None:
    path = Path(next(row["transcriptPath"] for row in running.rows() if row["key"] == key))
    with curl(running, path_of(key), EVENTS) as stream:
        stream.next()
        (tmp_path / "new").write_bytes(path.read_bytes())
        os.replace(tmp_path / "new", path)
        name, _, data = stream.next()
        assert (name, data["reason"]) == ("resync", "rewritten")
        assert next_texts(stream, 2) == ["hello", [{"type": "text", "text": "hello"}]]


async def test_a_quiet_stream_sends_a_comment_every_fifteen_seconds(tmp_path: Path, mock_clock: MockClock) -> None:
    written: list[bytes] = []

    async def send(data: bytes) -> None:
        written.append(data)
        await trio.lowlevel.checkpoint()

    async with in_process_daemon(tmp_path) as daemon, trio.open_nursery() as nursery:
        services = daemon.services
        await services.store.create("agent:main:main", "main")
        router = Router()
        add_session_routes(router, services)
        route, params = router.find("GET", "/sessions/main/history")
        request = HttpRequest("GET", "/", params, {"follow": "1"}, {}, b"", OWNER)
        answer: Any = await route.handler(request)
        assert isinstance(answer, EventStreamAnswer)
        stream = EventStream(send, OWNER)
        nursery.start_soon(stream.run, answer.run, trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert [data.partition(b"\n")[0] for data in written] == [b"event: history"]
        for jump_s, beats in ((14.9, 0), (0.1, 1), (14.9, 1)):
            mock_clock.jump(jump_s)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert written[1:] == [b": \n\n"] * beats
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("follow", ["0", "1"])
async def test_a_page_that_is_refused_leaves_no_memory_reserved(tmp_path: Path, follow: str) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        services = daemon.services
        await services.store.create("agent:main:main", "main")
        router = Router()
        add_session_routes(router, services)
        route, params = router.find("GET", "/sessions/main/history")
        request = HttpRequest("GET", "/", params, {"follow": follow, "cursor": "garbage"}, {}, b"", OWNER)
        with pytest.raises(InvalidParams):
            await route.handler(request)
        [share] = request.unsent
        assert services.budgets.owner.used_bytes == share.size > 0
        share.release()  # as the connection does for all of `unsent` when the exchange is over
        assert services.budgets.owner.used_bytes == 0


def test_a_session_of_another_program_is_read_and_never_killed(running: Daemon) -> None:
    pi_file(running.folder, 7, "from pi")
    path = f"/sessions/{quote(key_of(7), safe='')}"
    running.wait_for(lambda: get(running, f"{path}/history").status_code == 200, "the session of pi is not shown")
    [message] = get(running, f"{path}/history").json()["messages"]
    assert message["content"][0]["text"] == "from pi"
    refused = get(running, f"{path}/kill", method="POST")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")
