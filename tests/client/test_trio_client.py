from __future__ import annotations

import queue
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
from support.patience import PATIENCE_S

from sessiond.client import (
    CallTimeout,
    Client,
    ConnectionLost,
    DaemonNotRunning,
    Event,
    RpcError,
    TrioClient,
    TrioRun,
)


async def taken(box: queue.Queue[Any]) -> Any:
    with trio.fail_after(PATIENCE_S):
        return await trio.to_thread.run_sync(lambda: box.get(timeout=PATIENCE_S))


async def test_calls_run_side_by_side_on_one_connection(fake: Any, no_answer: Any) -> None:
    held: list[int] = []

    def hold(params: Any, connection: Any) -> Any:
        held.append(params["n"])
        if len(held) == 4:
            for n in reversed(range(4)):
                connection.send({"id": held.index(n) + 2, "result": n})
        return no_answer

    fake.answers["hold"] = hold
    results: dict[int, int] = {}
    with trio.fail_after(PATIENCE_S):
        async with TrioClient(str(fake.path)) as client, trio.open_nursery() as nursery:

            async def ask(n: int) -> None:
                results[n] = await client.call("hold", n=n)

            for n in range(4):
                nursery.start_soon(ask, n)
    assert results == {n: n for n in range(4)}
    assert len([name for name, _ in list(fake.calls.queue) if name == "initialize"]) == 1


async def test_errors_are_raised_unchanged(fake: Any, refusal: Any, no_answer: Any) -> None:
    def refuse(*_: Any) -> None:
        raise refusal(-32002, "not_found", "no such session")

    fake.answers |= {"m": refuse, "slow": lambda *_: no_answer}
    with pytest.raises(RpcError, match="no such session"):
        async with TrioClient(str(fake.path)) as client:
            await client.call("m")
    with pytest.raises(CallTimeout):
        async with TrioClient(str(fake.path)) as client:
            await client.call("slow", timeout_s=0.01)
    with pytest.raises(DaemonNotRunning):
        async with TrioClient(str(fake.path) + "x") as client:
            await client.call("m")


async def test_a_search_gives_page_after_page_until_it_is_cancelled(fake: Any, no_answer: Any) -> None:
    pages = [{"matches": [1], "hasMore": True, "nextCursor": "a"}, {"matches": [2], "hasMore": False}]
    fake.answers["sessions_search"] = lambda params, _: pages["cursor" in params]
    async with TrioClient(str(fake.path)) as client:
        assert [page async for page in client.search("x", 7, role="user")] == pages
        first = {"query": "x", "role": "user", "withinMs": 300, "limit": 7}
        assert fake.asked("sessions_search") == first
        assert fake.asked("sessions_search") == {**first, "limit": 6, "cursor": "a"}
        fake.answers["sessions_search"] = lambda *_: no_answer
        with trio.move_on_after(0.01):
            async for _ in client.search("x"):
                raise AssertionError("there is no answer")
        with trio.fail_after(PATIENCE_S):
            await trio.to_thread.run_sync(fake.asked, "$/cancelRequest")


async def test_a_cancelled_call_is_cancelled_in_the_daemon(fake: Any, no_answer: Any) -> None:
    fake.answers["slow"] = lambda *_: no_answer
    async with TrioClient(str(fake.path)) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, "slow")
            await trio.to_thread.run_sync(fake.asked, "slow")
            nursery.cancel_scope.cancel()
        assert await trio.to_thread.run_sync(fake.asked, "$/cancelRequest") == {"id": 2}


async def test_a_lost_connection_fails_the_call_and_the_next_connects_again(fake: Any, no_answer: Any) -> None:
    def die(_params: Any, connection: Any) -> Any:
        connection.drop()
        return no_answer

    fake.answers |= {"die": die, "ping": lambda *_: {}}
    with trio.fail_after(PATIENCE_S):
        async with TrioClient(str(fake.path)) as client:
            with pytest.raises(ConnectionLost):
                await client.call("die")
            assert await client.call("ping") == {}
            assert await client.caller() == {"scopes": ["admin"]}


async def test_a_subscription_resumes_from_its_cursor(fake: Any) -> None:
    rounds = iter([[1, 2], [2, 3]])

    def subscribe(params: Any, connection: Any) -> Any:
        for seq in next(rounds):
            connection.push(
                "session.message", sessionKey="k", sessionId="s", messageId="m", seq=seq, cursor=f"c{seq}", message={}
            )
        return {"subscribed": True, "key": "k", "cursor": "c0"}

    fake.answers["sessions.messages.subscribe"] = subscribe
    attempts: list[int] = []
    stood: list[int] = []

    async def note_connection() -> None:
        stood.append(len(seen))

    with trio.fail_after(PATIENCE_S):
        async with TrioClient(str(fake.path), on_reconnect=attempts.append) as client:
            seen: list[Event] = []
            async for event in client.subscribe("main", on_connect=note_connection):
                seen.append(event)
                if len(seen) == 2:
                    fake.stop()
                    fake.start()
                if len(seen) == 3:
                    break
    assert [event["seq"] for event in seen] == [1, 2, 3]
    assert attempts[0] == 1
    assert stood == [0, 2]
    assert fake.asked("sessions.messages.subscribe") == {"key": "main"}
    assert fake.asked("sessions.messages.subscribe") == {"key": "k", "cursor": "c2"}


async def test_a_subscription_that_is_cancelled_while_it_connects_connects_again(fake: Any, no_answer: Any) -> None:
    """As `move_on_after` around `anext` does: the next wait must not be on a connection without a subscription."""
    holds = iter([True, False])

    def subscribe(_params: Any, connection: Any) -> Any:
        if next(holds):
            return no_answer
        connection.push("session.message", sessionKey="k", sessionId="s", messageId="m", seq=1, cursor="c1", message={})
        return {"subscribed": True, "key": "k", "cursor": "c0"}

    begun, ran = trio.Event(), []

    async def note_connection() -> None:
        ran.append(begun.is_set())
        if not begun.is_set():
            begun.set()
            await trio.sleep_forever()

    fake.answers["sessions.messages.subscribe"] = subscribe
    with trio.fail_after(PATIENCE_S):
        async with TrioClient(str(fake.path)) as client:
            events = client.subscribe("main", on_connect=note_connection)
            for wait in (lambda: trio.to_thread.run_sync(fake.asked, "sessions.messages.subscribe"), begun.wait):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(anext, events)
                    await wait()
                    nursery.cancel_scope.cancel()
            assert (await anext(events))["seq"] == 1
    assert ran == [False, True]


async def test_a_subscription_to_all_sessions_survives_a_momentary_refusal(fake: Any, refusal: Any) -> None:
    """One of many sessions is refused while resuming: no message of the others is missed or arrives twice."""
    refuses = iter([True, False, False])
    places = {"agent:main:a": "a1", "agent:main:b": "b1"}

    def listed(_params: Any, _connection: Any) -> Any:
        rows = [{"key": key, "sessionId": key, "messageCount": 1, "cursor": place} for key, place in places.items()]
        return {"sessions": rows, "hasMore": False}

    def resume(params: Any, connection: Any) -> Any:
        key = params["key"]
        if key == "agent:main:b" and next(refuses):
            raise refusal(-32009, "storage", "could not read the transcript; try again")
        if params["cursor"] == f"{key[-1]}1":
            connection.push(
                "session.message", sessionKey=key, sessionId=key, messageId="m", seq=2, cursor=places[key], message={}
            )
        return {"subscribed": True, "key": key, "cursor": places[key]}

    fake.answers["sessions_list"] = listed
    fake.answers["sessions.subscribe"] = lambda *_: {"subscribed": True}
    fake.answers["sessions.messages.subscribe"] = resume
    fake.answers["sessions.messages.unsubscribe"] = lambda *_: {"subscribed": False}
    with trio.fail_after(PATIENCE_S):
        async with TrioClient(str(fake.path)) as client:

            async def lose() -> None:
                if places["agent:main:a"] == "a1":
                    places.update({"agent:main:a": "a2", "agent:main:b": "b2"})
                    fake.drop()

            seen: list[str] = []
            async for event in client.subscribe(on_connect=lose):
                seen.append(event["sessionKey"])
                if len(seen) == 2:
                    break
    assert sorted(seen) == ["agent:main:a", "agent:main:b"]


async def test_an_attached_agent_answers_streams_and_can_be_cancelled(fake: Any, no_answer: Any) -> None:
    attached: queue.Queue[Any] = queue.Queue()
    fake.answers["agents.attach"] = lambda params, connection: (attached.put(connection), {"attached": True})[1]
    cancelled = trio.Event()

    async def handler(run: TrioRun) -> object:
        if run.message == "hello":
            run.delta("he")
            return "hello to you"
        if run.message == "bad":
            raise ValueError("cannot")
        if run.message == "ask":
            return (await run.ask("May I?", detail="d"))["optionId"]
        if run.message == "ask for ever":
            with trio.move_on_after(0.01):
                await run.ask("And now?")
            return "never mind"
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    def start(connection: Any, text: str) -> Any:
        return connection.ask("run.start", runId="r1", sessionKey="k", message=text)

    with trio.fail_after(PATIENCE_S):
        async with TrioClient(str(fake.path)) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.attach, "alice", handler)
            connection = await taken(attached)
            assert (await taken(start(connection, "hello")))["result"] == {"reply": "hello to you"}
            event = await trio.to_thread.run_sync(fake.asked, "run.event")
            assert event == {"runId": "r1", "type": "delta", "text": "he"}
            fake.answers["agents.ask"] = lambda params, _: {"questionId": "q", "outcome": "answered", "optionId": "no"}
            assert (await taken(start(connection, "ask")))["result"] == {"reply": "no"}
            asked = await trio.to_thread.run_sync(fake.asked, "agents.ask")
            assert (asked["runId"], asked["title"], asked["detail"], len(asked["options"])) == ("r1", "May I?", "d", 2)
            fake.answers["agents.ask"] = lambda params, _: no_answer
            assert (await taken(start(connection, "ask for ever")))["result"] == {"reply": "never mind"}
            assert "id" in await trio.to_thread.run_sync(fake.asked, "$/cancelRequest")
            assert (await taken(start(connection, "bad")))["error"]["message"] == "ValueError: cannot"
            answer = start(connection, "wait")
            connection.call_off()
            assert (await taken(answer))["error"]["code"] == -32800
            await cancelled.wait()
            fake.drop()
            assert await taken(attached) is not connection
            nursery.cancel_scope.cancel()


async def test_a_channel_adapter_acknowledges_by_returning(fake: Any) -> None:
    attached: queue.Queue[Any] = queue.Queue()
    fake.answers["channels.attach"] = lambda params, connection: (attached.put((params, connection)), {})[1]
    delivered: list[Any] = []

    async def deliver(params: Any) -> None:
        delivered.append(params["text"])

    async with TrioClient(str(fake.path)) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.attach_channel, "irc", deliver)
        params, connection = await taken(attached)
        assert params == {"channel": "irc"}
        assert (await taken(connection.ask("channel.deliver", deliveryId="d", text="hi")))["result"] == {}
        nursery.cancel_scope.cancel()
    assert delivered == ["hi"]


async def test_a_wait_for_a_run_that_waits_for_the_caller_ends(fake: Any) -> None:
    fake.answers["agent.wait"] = lambda *_: {"runId": "r1", "status": "running", "reason": "ancestor_busy"}
    with trio.fail_after(PATIENCE_S):
        async with TrioClient(str(fake.path)) as client:
            assert (await client.wait("r1"))["reason"] == "ancestor_busy"


async def test_a_wait_goes_on_over_a_lost_connection(fake: Any, no_answer: Any) -> None:
    answers = iter(["drop", "running", "ok"])

    def wait(params: Any, connection: Any) -> Any:
        step = next(answers)
        if step == "drop":
            connection.drop()
            return no_answer
        return {"runId": params["runId"], "status": step}

    fake.answers["agent.wait"] = wait
    with trio.fail_after(PATIENCE_S):
        async with TrioClient(str(fake.path)) as client:
            assert await client.wait("r1") == {"runId": "r1", "status": "ok"}


async def test_the_limit_of_a_call_bounds_its_connection_too(tmp_path: Path) -> None:
    """A daemon that hangs takes connections and answers nothing."""
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(tmp_path / "d.sock"))
        hanging.listen()
        async with TrioClient(str(tmp_path / "d.sock")) as client:
            with pytest.raises(CallTimeout):
                await client.call("ping", timeout_s=0.05)
        with Client(str(tmp_path / "d.sock")) as client, pytest.raises(CallTimeout):
            client.call("ping", timeout_s=0.05)
