"""The daemon while it still reads the store: what it answers at once, what waits, and what comes of it.

The thread that reads is held by the callback that it reports its progress to.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.patience import PATIENCE_S

from sessiond.daemon.http_sessions import add_session_routes
from sessiond.daemon.lifecycle import _DaemonProcess
from sessiond.model.caller import OWNER
from sessiond.transports.exchange import HttpRequest, HttpResponse
from sessiond.transports.routes import Router

KEY = "agent:main:old"
NAME = "00000000-0000-4000-8000-000000000001"


def write_session(folder: Path, key: str | None, name: str, text: str) -> Path:
    sessions = folder / "store" / "agents" / "main" / "sessions"
    sessions.mkdir(parents=True, exist_ok=True, mode=0o700)
    header: dict[str, Any] = {"type": "session", "version": 3, "id": name, "timestamp": "2026-01-01T00:00:00.000Z"}
    message = {"type": "message", "id": "0" * 16, "message": {"role": "user", "content": text}}
    named = {**header, "cwd": "/", **({"sessionKey": key, "agentId": "main"} if key else {})}
    path = sessions / f"{name}.jsonl"
    path.write_text(f"{json.dumps(named)}\n{json.dumps(message)}\n")
    return path


class HeldLoading:
    """A daemon that goes on reading its store when `go` is set."""

    def __init__(self, go: threading.Event) -> None:
        self.go = go
        self.daemon: InProcessDaemon

    async def finish(self) -> None:
        self.go.set()
        await self.daemon.services.loaded.wait()


@contextmanager
def released(event: threading.Event) -> Iterator[threading.Event]:
    """Set at the end, so that the thread ends where a test fails."""
    try:
        yield event
    finally:
        event.set()


@asynccontextmanager
async def held_loading(folder: Path, config: str = "") -> AsyncIterator[HeldLoading]:
    with released(threading.Event()) as go:
        held = HeldLoading(go)

        def hold(done: int, total: int, agent_id: str) -> None:
            go.wait(PATIENCE_S / 2)

        async with in_process_daemon(folder, config, progress=hold) as daemon:
            held.daemon = daemon
            try:
                yield held
            finally:
                go.set()


async def settle(daemon: InProcessDaemon, connection: Connection) -> None:
    """Return when the daemon has taken what was sent on the connection before."""
    assert await connection.call("ping") == {}


async def answers_to(client: Connection, requests: list[int]) -> list[dict[str, Any]]:
    """The answers to these requests and no others, whatever order they come in."""
    answers = {(answer := await client.receive())["id"]: answer for _ in requests}
    return [answers[request] for request in requests]


def texts(page: dict[str, Any]) -> list[str]:
    return [message["content"] for message in page["messages"]]


async def test_what_needs_no_session_is_answered_while_it_loads(tmp_path: Path) -> None:
    write_session(tmp_path, KEY, NAME, "hello")
    async with held_loading(tmp_path) as held, held.daemon.connect() as client:
        assert await client.call("ping") == {}
        hello = await client.call("initialize", protocol=1, client={"name": "test"})
        assert hello["protocol"] == 1
        assert (await client.call("rpc.discover"))["openrpc"]
        status = await client.call("daemon.status")
        assert (status["loading"], status["sessions"]) == (True, 0)
        await held.finish()
        status = await client.call("daemon.status")
        assert ("loading" in status, status["sessions"]) == (False, 1)


async def test_calls_on_sessions_wait_and_then_begin_in_their_order(tmp_path: Path) -> None:
    write_session(tmp_path, KEY, NAME, "old")
    async with held_loading(tmp_path) as held, held.daemon.connect() as client:
        listed = await client.send("sessions_list")
        created = await client.send("sessions.create", key=KEY)
        said = [
            await client.send("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": str(number)}])
            for number in range(20)
        ]
        missing = await client.send("sessions_history", sessionKey="agent:main:none")
        await settle(held.daemon, client)
        assert client.events == []  # nothing was answered
        held.go.set()
        rows, made, none, *injected = await answers_to(client, [listed, created, missing, *said])
        assert [row["key"] for row in rows["result"]["sessions"]] == [KEY]
        assert made["result"] == {"key": KEY, "sessionId": NAME, "created": False}
        assert all("result" in one for one in injected)
        assert none["error"]["data"]["code"] == "session_not_found"
        page = await client.call("chat.history", sessionKey=KEY)
        assert texts(page) == ["old", *map(str, range(20))]


async def test_messages_sent_meanwhile_get_their_replies_in_order(tmp_path: Path) -> None:
    write_session(tmp_path, KEY, NAME, "old")
    async with held_loading(tmp_path) as held, held.daemon.connect() as client:
        sent = [await client.send("chat.send", sessionKey=KEY, message=f"m{number}") for number in range(5)]
        await settle(held.daemon, client)
        held.go.set()
        for run in [answer["result"]["runId"] for answer in await answers_to(client, sent)]:
            ended = await client.call("agent.wait", runId=run, timeoutMs=PATIENCE_S * 1000)
            assert ended["status"] == "ok"
        page = await client.call("chat.history", sessionKey=KEY)
        asked = [message["content"] for message in page["messages"] if message["role"] == "user"]
        assert asked == ["old", *(f"m{number}" for number in range(5))]


async def test_a_call_that_waits_can_be_cancelled_and_is_not_carried_out(tmp_path: Path) -> None:
    write_session(tmp_path, KEY, NAME, "old")
    async with held_loading(tmp_path) as held, held.daemon.connect() as client:
        first = await client.send("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "not this"}])
        second = await client.send("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "this"}])
        await client.write(b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":%d}}\n' % first)
        assert (await client.answer(first))["error"]["code"] == -32800
        held.go.set()
        assert "result" in await client.answer(second)
        assert texts(await client.call("chat.history", sessionKey=KEY)) == ["old", "this"]


async def test_calls_that_wait_are_limited_like_others_in_flight(tmp_path: Path) -> None:
    write_session(tmp_path, KEY, NAME, "old")
    config = "[limits]\nmaxInFlight = 2\n"
    async with held_loading(tmp_path, config) as held, held.daemon.connect() as client:
        waiting = [await client.send("sessions_list") for _ in range(2)]
        refused = await client.failure("sessions_list")
        assert refused["data"]["limit"] == "limits.maxInFlight"
        held.go.set()
        assert all("result" in answer for answer in await answers_to(client, waiting))


async def test_a_daemon_that_stops_while_it_loads_refuses_what_waits(tmp_path: Path) -> None:
    write_session(tmp_path, KEY, NAME, "old")
    async with held_loading(tmp_path) as held, held.daemon.connect() as client:
        waiting = await client.send("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "no"}])
        await settle(held.daemon, client)
        held.daemon.app.dispatcher.stop()
        error = (await client.answer(waiting))["error"]
        assert error["code"] == -32008
        assert "begun" not in error["data"]  # a client may send it to the next daemon


async def test_a_daemon_that_stops_while_it_loads_begins_no_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_session(tmp_path, KEY, NAME, "old")
    before = path.read_bytes()
    monkeypatch.setenv("SESSIOND_SOCKET", str(tmp_path / "d.sock"))
    async with held_loading(tmp_path) as held:
        app = held.daemon.app
        process = _DaemonProcess(tmp_path / "store", tmp_path / "config.toml")
        process._stop.set()
        await process._serve(app, app.services.config)
        assert app.loading.cancel_called
        held.go.set()
        while not app.loading.cancelled_caught:
            await trio.testing.wait_all_tasks_blocked(0.001)
        assert not app.services.loaded.is_set()
    assert path.read_bytes() == before


async def test_a_daemon_that_stops_while_it_loads_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    """An index with the sessions found so far would hide the names that another program's index has for the others."""
    paths = [write_session(tmp_path, None, f"{number:08d}-0000-4000-8000-000000000000", "x") for number in range(9)]
    names = {f"agent:main:n{number}": {"sessionId": path.stem} for number, path in enumerate(paths)}
    index = paths[0].with_name("sessions.json")
    index.write_text(json.dumps(names))
    before = index.read_bytes()
    calls: list[int] = []
    reading = trio.Event()
    with released(threading.Event()) as go:

        def hold(done: int, total: int, agent_id: str) -> None:
            calls.append(done)
            trio.from_thread.run_sync(reading.set)
            go.wait(PATIENCE_S / 2)

        with trio.CancelScope() as scope:
            async with in_process_daemon(tmp_path, progress=hold):
                await reading.wait()
                trio.lowlevel.spawn_system_task(_set_soon, go)
                scope.cancel()
    # The file that was being read was finished, and no other one begun.
    assert calls == [0]
    assert index.read_bytes() == before
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        found = (await client.call("sessions_list", limit=200))["sessions"]
        assert {row["key"]: row["sessionId"] for row in found} == {key: row["sessionId"] for key, row in names.items()}


async def _set_soon(go: threading.Event) -> None:
    await trio.testing.wait_all_tasks_blocked()
    go.set()


@pytest.mark.parametrize("route", ["history", "kill"])
async def test_an_http_request_waits_while_loading(tmp_path: Path, route: str) -> None:
    write_session(tmp_path, KEY, NAME, "old")
    async with held_loading(tmp_path) as held:
        router = Router()
        add_session_routes(router, held.daemon.services)
        method = "GET" if route == "history" else "POST"
        found, params = router.find(method, f"/sessions/{KEY}/{route}")
        asked = HttpRequest(
            method=method, path="", params=params, query={}, headers={}, body=b"", caller=OWNER, unsent=[]
        )
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await found.handler(asked))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert answers == []
            held.go.set()
        [answer] = answers
        assert isinstance(answer, HttpResponse) and answer.status == 200
        assert route == "kill" or texts(json.loads(answer.body)) == ["old"]
