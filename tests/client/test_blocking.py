from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import pytest
from support.patience import PATIENCE_S

from sessiond.client import (
    BadEnvironment,
    BlockingRun,
    CallTimeout,
    Cancellation,
    Client,
    ClientError,
    ConnectionLost,
    DaemonNotRunning,
    Event,
    RpcError,
)


def test_a_call_initializes_the_connection_and_returns_the_result(fake: Any) -> None:
    fake.answers["add"] = lambda params, _: params["a"] + params["b"]
    with Client(str(fake.path), token="t0ken", name="me", version="2") as client:
        assert client.call("add", {"a": 1}, b=2) == 3
        assert client.caller == {"scopes": ["admin"]}
    assert fake.calls.get(timeout=PATIENCE_S) == (
        "initialize",
        {"protocol": 1, "client": {"name": "me", "version": "2"}, "token": "t0ken"},
    )


def test_a_refusal_is_an_rpc_error(fake: Any, refusal: Any) -> None:
    def forbid(_params: Any, _connection: Any) -> None:
        raise refusal(-32003, "forbidden", "not you", code="spawn_depth_exceeded")

    fake.answers["m"] = forbid
    with Client(str(fake.path)) as client, pytest.raises(RpcError) as caught:
        client.call("m")
    assert (caught.value.code, caught.value.slug, caught.value.message, caught.value.reason) == (
        -32003,
        "forbidden",
        "not you",
        "spawn_depth_exceeded",
    )


def test_without_a_socket_the_error_is_daemon_not_running_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "none.sock"
    with Client(str(path)) as client, pytest.raises(DaemonNotRunning) as caught:
        client.call("ping")
    assert str(caught.value) == f"sessiond is not running (no socket at {path})"


def test_a_path_beyond_107_bytes_is_refused_with_its_length() -> None:
    path = "/tmp/" + "x" * 103
    with pytest.raises(BadEnvironment, match="108 bytes long, a Unix socket takes 107"):
        Client(path).call("ping")
    with pytest.raises(DaemonNotRunning):
        Client(path[:-1]).call("ping")


def test_a_call_that_times_out_is_cancelled_in_the_daemon(fake: Any, no_answer: Any) -> None:
    fake.answers["slow"] = lambda *_: no_answer
    with Client(str(fake.path)) as client, pytest.raises(CallTimeout, match=r"did not answer slow within 0\.05 s"):
        client.call("slow", timeout_s=0.05)
    assert fake.asked("$/cancelRequest") == {"id": 2}


def test_a_lost_connection_fails_the_call_and_the_next_call_connects_again(fake: Any, no_answer: Any) -> None:
    def die(_params: Any, connection: Any) -> Any:
        connection.drop()
        return no_answer

    fake.answers |= {"die": die, "ping": lambda *_: {}}
    with Client(str(fake.path)) as client:
        with pytest.raises(ConnectionLost):
            client.call("die")
        assert client.call("ping") == {}


def test_calls_of_several_threads_get_their_own_answers(fake: Any, no_answer: Any) -> None:
    held: list[Any] = []

    def hold(params: Any, connection: Any) -> Any:
        held.append(params["n"])
        if len(held) == 8:  # only now, and in another order
            for n in reversed(held):
                connection.send({"id": n + 2, "result": n})
        return no_answer

    fake.answers["hold"] = hold
    got: queue.Queue[tuple[int, int]] = queue.Queue()
    with Client(str(fake.path)) as client:
        client.caller  # noqa: B018  # connect now: the ids below count from here
        gate = threading.Lock()
        sent = iter(range(8))

        def work() -> None:
            with gate:
                n = next(sent)
                thread = threading.Thread(target=lambda: got.put((n, client.call("hold", n=n))))
                thread.start()
                assert fake.asked("hold") == {"n": n}
            thread.join(PATIENCE_S)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert sorted(got.get_nowait() for _ in range(8)) == [(n, n) for n in range(8)]


def message(seq: int) -> dict[str, Any]:
    return {
        "sessionKey": "agent:main:main",
        "sessionId": "s",
        "messageId": f"m{seq}",
        "seq": seq,
        "cursor": f"c{seq}",
        "message": {"role": "user", "content": str(seq)},
    }


def test_a_subscription_resumes_from_its_cursor_after_the_daemon_dies(fake: Any) -> None:
    rounds = iter([[1, 2], [2, 3], [4]])

    def subscribe(params: Any, connection: Any) -> Any:
        for seq in next(rounds):
            connection.push("session.message", **message(seq))
        return {"subscribed": True, "key": "agent:main:main", "cursor": params.get("cursor", "c0")}

    fake.answers["sessions.messages.subscribe"] = subscribe
    attempts: list[int] = []
    with Client(str(fake.path), on_reconnect=attempts.append) as client:
        events = client.subscribe("main")
        assert [next(events)["seq"], next(events)["seq"]] == [1, 2]
        fake.stop()
        fake.start()
        assert next(events) == Event("session.message", message(3))
        fake.drop()
        assert next(events)["seq"] == 4
    assert attempts and attempts[0] == 1
    asked = [fake.asked("sessions.messages.subscribe") for _ in range(3)]
    assert asked == [
        {"key": "main"},
        {"key": "agent:main:main", "cursor": "c2"},
        {"key": "agent:main:main", "cursor": "c3"},
    ]


@pytest.mark.parametrize("slug", ["storage", "overloaded", "stopping"])
def test_a_subscription_that_is_refused_for_the_moment_is_tried_again(fake: Any, refusal: Any, slug: str) -> None:
    """For example, the daemon may be out of file descriptors while all clients reconnect."""
    answers = iter(["", slug, slug, ""])

    def subscribe(params: Any, connection: Any) -> Any:
        if refused := next(answers):
            raise refusal(-32009, refused, "could not read the transcript; try again")
        connection.push("session.message", **message(1 if "cursor" not in params else 2))
        return {"subscribed": True, "key": "agent:main:main", "cursor": params.get("cursor", "c0")}

    fake.answers["sessions.messages.subscribe"] = subscribe
    with Client(str(fake.path)) as client:
        events = client.subscribe("main")
        assert next(events)["seq"] == 1
        fake.drop()
        assert next(events)["seq"] == 2
    assert next(answers, None) is None


def test_a_refused_subscription_raises_and_a_closed_client_ends_it(fake: Any, refusal: Any) -> None:
    def refuse(_params: Any, _connection: Any) -> None:
        raise refusal(-32002, "not_found", "no such session")

    fake.answers["sessions.messages.subscribe"] = refuse
    fake.answers["sessions_list"] = lambda *_: {"sessions": [], "hasMore": False}
    fake.answers["sessions.subscribe"] = lambda *_: {"subscribed": True}
    with Client(str(fake.path)) as client:
        with pytest.raises(RpcError, match="no such session"):
            next(client.subscribe("nobody"))
        rest: queue.Queue[list[Event]] = queue.Queue()
        thread = threading.Thread(target=lambda: rest.put(list(client.subscribe())))
        thread.start()
        fake.asked("sessions.subscribe")
    thread.join(PATIENCE_S)
    assert rest.get_nowait() == []


def test_an_attached_agent_answers_streams_and_learns_that_its_run_ended(fake: Any) -> None:
    fake.answers["agents.attach"] = lambda params, connection: (attached.put(connection), {"attached": True})[1]
    fake.answers["sessions_list"] = lambda params, _: {"asked": params}
    attached: queue.Queue[Any] = queue.Queue()
    release = threading.Event()
    seen: queue.Queue[Any] = queue.Queue()

    def handler(run: BlockingRun) -> object:
        match run.message:
            case "hello":
                run.delta("he")
                return f"{run.message} to you: {client.call('sessions_list', limit=1, _meta=run.meta)}"
            case "wait":
                release.wait(PATIENCE_S)
                seen.put(run.cancelled())
                return None
            case "dict":
                return {"reply": "r", "model": "m"}
            case "ask":
                options = [{"id": "a", "label": "All", "kind": "allow_always"}]
                return f"{run.ask('May I?')['optionId']} {run.ask('All?', options, detail='d', timeout_s=9)['outcome']}"
        raise ValueError("cannot")

    def start(connection: Any, text: str) -> Any:
        return connection.ask("run.start", runId="r1", sessionKey="k", message=text)

    client = Client(str(fake.path))
    thread = threading.Thread(target=lambda: client.attach("alice", handler, steer=lambda *given: seen.put(given)))
    thread.start()
    connection = attached.get(timeout=PATIENCE_S)
    assert fake.asked("agents.attach") == {"agentId": "alice", "capabilities": ["steer"]}
    reply = "hello to you: {'asked': {'limit': 1, '_meta': {'runId': 'r1'}}}"
    assert start(connection, "hello").get(timeout=PATIENCE_S)["result"] == {"reply": reply}
    assert fake.asked("run.event") == {"runId": "r1", "type": "delta", "text": "he"}
    fake.answers["agents.ask"] = lambda params, _: (questions.append(params), ends.pop(0))[1]
    questions: list[Any] = []
    ends = [{"questionId": "q", "outcome": "answered", "optionId": "yes"}, {"questionId": "r", "outcome": "expired"}]
    assert start(connection, "ask").get(timeout=PATIENCE_S)["result"] == {"reply": "yes expired"}
    yes_or_no = [
        {"id": "yes", "label": "Yes", "kind": "allow_once"},
        {"id": "no", "label": "No", "kind": "reject_once"},
    ]
    assert questions == [
        {"runId": "r1", "title": "May I?", "options": yes_or_no},
        {
            "runId": "r1",
            "title": "All?",
            "options": [{"id": "a", "label": "All", "kind": "allow_always"}],
            "detail": "d",
            "timeoutSeconds": 9,
        },
    ]
    assert start(connection, "dict").get(timeout=PATIENCE_S)["result"] == {"reply": "r", "model": "m"}
    assert start(connection, "bad").get(timeout=PATIENCE_S)["error"] == {
        "code": -32603,
        "message": "ValueError: cannot",
        "data": {"type": "internal"},
    }
    assert connection.ask("run.steer", runId="r1", message="left").get(timeout=PATIENCE_S)["result"] is None
    assert seen.get(timeout=PATIENCE_S) == ("r1", "left")
    answer = start(connection, "wait")
    connection.call_off()
    assert connection.ask("unheard.of").get(timeout=PATIENCE_S)["error"]["code"] == -32601
    release.set()
    assert answer.get(timeout=PATIENCE_S)["error"]["code"] == -32800
    assert seen.get(timeout=PATIENCE_S) is True
    fake.drop()
    assert attached.get(timeout=PATIENCE_S) is not connection, "it attaches again by itself"
    client.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_channel_adapter_acknowledges_by_returning(fake: Any) -> None:
    attached: queue.Queue[Any] = queue.Queue()
    fake.answers["channels.attach"] = lambda params, connection: (attached.put((params, connection)), {})[1]
    delivered: list[Any] = []
    client = Client(str(fake.path))
    thread = threading.Thread(
        target=lambda: client.attach_channel("irc", delivered.append, bind_thread=lambda params: {"threadId": "t1"})
    )
    thread.start()
    params, connection = attached.get(timeout=PATIENCE_S)
    assert params == {"channel": "irc", "threads": True}
    assert connection.ask("channel.deliver", deliveryId="d", text="hi").get(timeout=PATIENCE_S)["result"] == {}
    assert connection.ask("channel.bindThread", sessionKey="k").get(timeout=PATIENCE_S)["result"] == {"threadId": "t1"}
    assert delivered == [{"deliveryId": "d", "text": "hi"}]
    client.close()
    thread.join(PATIENCE_S)


def test_requests_of_the_daemon_are_answered_between_calls_if_handlers_are_given(fake: Any) -> None:
    held: queue.Queue[Any] = queue.Queue()
    fake.answers["ping"] = lambda _, connection: (held.put(connection), {})[1]
    with Client(str(fake.path), on_request={"echo": lambda params: params}) as client:
        client.call("ping")
        assert held.get(timeout=PATIENCE_S).ask("echo", a=1).get(timeout=PATIENCE_S)["result"] == {"a": 1}


def test_a_wait_for_a_run_that_waits_for_the_caller_ends(fake: Any) -> None:
    fake.answers["agent.wait"] = lambda *_: {"runId": "r1", "status": "running", "reason": "ancestor_busy"}
    with Client(str(fake.path)) as client:
        assert client.wait("r1")["reason"] == "ancestor_busy"


def test_a_wait_goes_on_over_a_restart_and_ends_at_its_own_limit(fake: Any, no_answer: Any) -> None:
    answers = iter(["drop", "running", "ok"])

    def wait(params: Any, connection: Any) -> Any:
        step = next(answers, "running")
        if step == "drop":
            connection.drop()
            return no_answer
        return {"runId": params["runId"], "status": step}

    fake.answers["agent.wait"] = wait
    with Client(str(fake.path)) as client:
        assert client.wait("r1", slice_s=0.5) == {"runId": "r1", "status": "ok"}
        assert client.wait("r1", timeout_s=0) == {"runId": "r1", "status": "running"}
    asked = [fake.asked("agent.wait") for _ in range(4)]
    assert asked == [{"runId": "r1", "timeoutMs": 500}] * 3 + [{"runId": "r1", "timeoutMs": 0}]


def test_nonsense_from_the_daemon_is_a_client_error(fake: Any, no_answer: Any) -> None:
    fake.answers["m"] = lambda _, connection: (connection._socket.sendall(b"Hello\n"), no_answer)[1]
    with Client(str(fake.path)) as client, pytest.raises(ClientError, match="not JSON"):
        client.call("m")


def test_calls_succeed_after_a_restart_while_the_client_was_idle(fake: Any) -> None:
    fake.answers |= {"sessions_list": lambda *_: {"count": 0}, "chat.inject": lambda *_: {"ids": ["1"]}}
    with Client(str(fake.path)) as client:
        for _ in range(3):
            assert client.call("sessions_list") == {"count": 0}
            # Even a call that must not be repeated: the old daemon never saw it.
            assert client.call("chat.inject", messages=[]) == {"ids": ["1"]}
            fake.stop()
            fake.start()


@pytest.mark.parametrize("method", ["sessions_list", "chat.send"])
def test_an_unanswered_call_is_repeated_if_repeating_is_safe(fake: Any, no_answer: Any, method: str) -> None:
    asked: list[Any] = []

    def answer(params: Any, connection: Any) -> Any:
        asked.append(params)
        if len(asked) == 1:
            connection.drop()
            return no_answer
        return {}

    fake.answers[method] = answer
    with Client(str(fake.path)) as client:
        assert client.call(method, message="hello") == {}
    assert len(asked) == 2 and asked[0] == asked[1]
    assert ("idempotencyKey" in asked[0]) is (method == "chat.send")


@pytest.mark.parametrize(("method", "message"), [("chat.inject", "hello"), ("chat.send", "/reset")])
def test_an_unanswered_call_raises_if_it_could_be_done_twice(
    fake: Any, no_answer: Any, method: str, message: str
) -> None:
    fake.answers[method] = lambda _, connection: (connection.drop(), no_answer)[1]
    with Client(str(fake.path)) as client, pytest.raises(ConnectionLost):
        client.call(method, message=message)
    assert fake.asked(method) == {"message": message}
    assert fake.calls.empty()


def test_a_stopping_daemon_is_waited_for_and_one_that_never_ran_is_not(fake: Any, refusal: Any) -> None:
    answers = iter([True, False])

    def answer(_params: Any, _connection: Any) -> Any:
        if next(answers):
            raise refusal(-32008, "stopping", "sessiond is stopping")
        return {"ids": ["1"]}

    fake.answers["chat.inject"] = answer
    with Client(str(fake.path)) as client:
        assert client.call("chat.inject", messages=[]) == {"ids": ["1"]}
    with Client(str(fake.path) + ".none") as client, pytest.raises(DaemonNotRunning):
        client.call("chat.inject", messages=[])


def test_a_cancelled_call_is_not_repeated(fake: Any, no_answer: Any) -> None:
    fake.answers |= {"ping": lambda *_: {}, "sessions_list": lambda _, connection: (connection.drop(), no_answer)[1]}
    cancellation = Cancellation()
    cancellation.cancel()
    with Client(str(fake.path)) as client:
        client.call("ping")
        with pytest.raises(ConnectionLost):
            client.call("sessions_list", cancellation=cancellation)
    asked = [method for method, _ in list(fake.calls.queue)]
    assert asked.count("sessions_list") == 1


def test_a_repeated_wait_keeps_its_deadline(fake: Any, no_answer: Any) -> None:
    asked: list[float] = []

    def answer(params: Any, connection: Any) -> Any:
        asked.append(params["wait"])
        if len(asked) < 3:
            connection.drop()
            return no_answer
        return {"messages": []}

    fake.answers["sessions_inbox"] = answer
    with Client(str(fake.path)) as client:
        assert client.call_within("sessions_inbox", lambda left_s: {"wait": left_s}, timeout_s=30) == {"messages": []}
    assert asked[0] == pytest.approx(30) and asked[0] > asked[1] > asked[2] > 0


def test_a_search_gives_page_after_page(fake: Any) -> None:
    pages = [
        {"matches": [1, 2], "hasMore": True, "nextCursor": "a"},
        {"matches": [], "hasMore": True, "nextCursor": "b"},
    ]
    pages += [{"matches": [3], "hasMore": True, "nextCursor": "c"}, {"matches": [4], "hasMore": False}]
    fake.answers["sessions_search"] = lambda params, _: pages[" abc".index(params.get("cursor", " "))]
    with Client(str(fake.path)) as client:
        assert list(client.search("x", role="user")) == pages
        first = {"query": "x", "role": "user", "withinMs": 300, "limit": 50}
        assert fake.asked("sessions_search") == first
        assert fake.asked("sessions_search") == {**first, "limit": 48, "cursor": "a"}
        assert list(client.search("x", 3)) == pages[:3]
        assert next(client.search("x", withinMs=5)) == pages[0]
