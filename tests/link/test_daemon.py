"""The daemon's socket for asyncio, with a stand-in that drops connections, and with the real daemon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.fake_daemon import NO_ANSWER, FakeDaemon, Refusal
from support.patience import PATIENCE_S
from support.real_daemon import Daemon

from sessiond.client.errors import CallTimeout, ConnectionLost, RpcError
from sessiond.client.wire import Event
from sessiond.link.daemon import DaemonClient


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path / "s")
    yield daemon
    daemon.stop()


def run_with(client: DaemonClient, body: Callable[[], Awaitable[None]]) -> None:
    async def both() -> None:
        async with asyncio.timeout(PATIENCE_S):
            running = asyncio.create_task(client.run())
            try:
                await body()
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

    asyncio.run(both())


def test_calls_are_answered_side_by_side_and_errors_unchanged(daemon: Daemon) -> None:
    daemon.start()
    client = DaemonClient(str(daemon.socket), say=print)

    async def body() -> None:
        made, listed = await asyncio.gather(
            client.call("sessions.create", key="agent:main:one"), client.call("sessions_list", {"limit": 5})
        )
        assert made["key"] == "agent:main:one" and "sessions" in listed
        with pytest.raises(RpcError) as caught:
            await client.call("sessions_history", sessionKey="missing")
        assert caught.value.slug == "not_found"

    run_with(client, body)


def test_a_call_waits_for_a_daemon_that_is_away_and_it_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    client = DaemonClient(str(tmp_path / "s"), say=said.append, max_pause_s=0.02)
    daemons: list[FakeDaemon] = []

    async def body() -> None:
        waiting = asyncio.create_task(client.call("hello"))
        with pytest.raises(CallTimeout, match="did not answer hello within"):
            await client.call("hello", timeout_s=0.2)
        assert said == [f"sessiond is not running (no socket at {tmp_path / 's'}); trying again"]
        daemons.append(FakeDaemon(tmp_path / "s"))
        daemons[0].answers["hello"] = lambda *_: "you"
        assert await waiting == "you"
        assert said[1:] == ["sessiond is back"]

    run_with(client, body)
    daemons[0].stop()


def test_a_lost_call_is_repeated_only_where_that_does_no_harm(fake: FakeDaemon) -> None:
    drops = {"sessions_list": 1, "sessions.create": 1}

    def drop_first(method: str) -> Callable[..., Any]:
        def answer(_params: Any, connection: Any) -> Any:
            drops[method] -= 1
            if drops[method] >= 0:
                connection.drop()
                return NO_ANSWER
            return "answered"

        return answer

    fake.answers |= {method: drop_first(method) for method in drops}
    client = DaemonClient(str(fake.path), say=print, max_pause_s=0.02)

    async def body() -> None:
        assert await client.call("sessions_list") == "answered"
        with pytest.raises(ConnectionLost):
            await client.call("sessions.create", key="agent:main:one")

    run_with(client, body)
    assert drops == {"sessions_list": -1, "sessions.create": 0}


def test_every_connection_is_attached_before_it_is_used(fake: FakeDaemon) -> None:
    seen: list[str] = []
    fake.answers |= {
        "agents.attach": lambda *_: seen.append("attach"),
        "ping": lambda *_: seen.append("ping"),
    }
    client = DaemonClient(
        str(fake.path),
        say=print,
        on_connect=[lambda link: link.call("agents.attach", agentId="mars")],
        max_pause_s=0.02,
    )

    async def body() -> None:
        link = await client.current_link()
        await client.call("ping")
        fake.drop()
        await link.ended.wait()
        await client.call("ping")

    run_with(client, body)
    assert seen == ["attach", "ping", "attach", "ping"]


def test_a_hook_that_is_refused_is_said_once_and_tried_again(fake: FakeDaemon) -> None:
    said: list[str] = []
    refusals = [2]

    def attach(*_: Any) -> Any:
        refusals[0] -= 1
        if refusals[0] >= 0:
            raise Refusal(-32002, "not_found", "there is no agent mars")
        return {}

    fake.answers |= {"agents.attach": attach, "ping": lambda *_: {}}
    hook = [lambda link: link.call("agents.attach", agentId="mars")]
    client = DaemonClient(str(fake.path), say=said.append, on_connect=hook, max_pause_s=0.02)

    async def body() -> None:
        await client.call("ping")

    run_with(client, body)
    assert said == ["there is no agent mars; trying again", "sessiond is back"]


@pytest.mark.parametrize("slug", ["invalid_params", "method_not_found"])
def test_a_daemon_of_another_release_is_said(fake: FakeDaemon, slug: str) -> None:
    said: list[str] = []
    refusals = [Refusal(-32602, slug, "`$.sources`: there is no such parameter.")]

    def subscribe(*_: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return {}

    fake.answers |= {"sessions.subscribe": subscribe, "ping": lambda *_: {}}
    hook = [lambda link: link.call("sessions.subscribe", sources=["sessiond"])]
    client = DaemonClient(str(fake.path), say=said.append, on_connect=hook, max_pause_s=0.02)

    async def body() -> None:
        await client.call("ping")

    run_with(client, body)
    assert said == [
        "sessiond refuses what this link asks of it (`$.sources`: there is no such parameter); see that both are of"
        " one release; trying again",
        "sessiond is back",
    ]


def test_requests_of_the_daemon_are_answered_and_can_be_called_off(fake: FakeDaemon) -> None:
    ends: list[str] = []

    async def start(_link: Any, request: Any) -> object:
        if request.params["runId"] == "long":
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("called off")
        return {"reply": request.params["message"]}

    client = DaemonClient(str(fake.path), say=print, handlers={"run.start": start})
    fake.answers["ping"] = lambda *_: {}

    async def body() -> None:
        await client.call("ping")
        connection = fake.connections[0]
        short = connection.ask("run.start", runId="short", message="hi")
        assert (await asyncio.to_thread(short.get, timeout=PATIENCE_S))["result"] == {"reply": "hi"}
        unknown = connection.ask("what")
        assert (await asyncio.to_thread(unknown.get, timeout=PATIENCE_S))["error"]["code"] == -32601
        long = connection.ask("run.start", runId="long", message="hi")
        connection.call_off()
        assert (await asyncio.to_thread(long.get, timeout=PATIENCE_S))["error"]["code"] == -32800
        connection.ask("run.start", runId="long", message="hi")
        await client.call("ping")
        await client.call("ping")
        fake.drop()
        await client.call("ping")

    run_with(client, body)
    assert ends == ["called off"] * 2


def test_a_client_that_ends_answers_nothing_that_was_asked_of_it(fake: FakeDaemon) -> None:
    """Else the daemon would take it for the end of a run, which goes on over there and is asked for again."""
    answers: list[Any] = []

    async def start(_link: Any, _request: Any) -> object:
        await asyncio.Event().wait()
        return None

    client = DaemonClient(str(fake.path), say=print, handlers={"run.start": start})
    fake.answers["ping"] = lambda *_: {}

    async def body() -> None:
        await client.call("ping")
        answers.append(fake.connections[0].ask("run.start", runId="long"))
        await client.call("ping")

    closed = threading.Event()
    fake.when_closed = closed.set
    run_with(client, body)
    assert closed.wait(PATIENCE_S) and answers[0].empty()


def test_a_call_that_is_cancelled_is_cancelled_in_the_daemon(fake: FakeDaemon) -> None:
    fake.answers["slow"] = lambda *_: NO_ANSWER
    client = DaemonClient(str(fake.path), say=print)

    async def body() -> None:
        with pytest.raises(CallTimeout, match=r"slow within 0\.05 s"):
            await client.call("slow", timeout_s=0.05)
        cancelled = await asyncio.to_thread(fake.asked, "$/cancelRequest")
        assert cancelled == {"id": 2}

    run_with(client, body)


def test_a_line_that_is_no_message_ends_the_connection_and_another_is_made(fake: FakeDaemon) -> None:
    fake.answers["ping"] = lambda *_: "pong"

    def garble(_params: Any, connection: Any) -> Any:
        connection._socket.sendall(b"not json\n")
        return NO_ANSWER

    fake.answers["once"] = garble
    client = DaemonClient(str(fake.path), say=print, max_pause_s=0.02)

    async def body() -> None:
        with pytest.raises(ConnectionLost, match="not JSON"):
            await client.call("once")
        assert await client.call("ping") == "pong"

    run_with(client, body)


def test_events_of_a_subscription_come_and_come_again_after_a_restart(daemon: Daemon) -> None:
    daemon.start()
    events: asyncio.Queue[Event] = asyncio.Queue()
    client = DaemonClient(
        str(daemon.socket),
        say=print,
        on_event=events.put_nowait,
        on_connect=[lambda link: link.call("sessions.subscribe")],
        max_pause_s=0.02,
    )

    async def until(name: str) -> Event:
        while True:
            event = await events.get()
            if event.name == name:
                return event

    async def body() -> None:
        await client.call("sessions.create", key="agent:main:one")
        for text in ("a", "b"):
            await client.call("chat.inject", sessionKey="agent:main:one", messages=[{"role": "user", "content": text}])
            assert (await until("session.message"))["sessionKey"] == "agent:main:one"
            await asyncio.to_thread(daemon.kill)
            await asyncio.to_thread(daemon.start)

    run_with(client, body)
