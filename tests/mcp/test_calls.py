"""A tool call: its call to the daemon, its time limit, and what happens when the daemon no longer accepts the token."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.rows import check_each

from sessiond.client import Cancellation, ConnectionLost, RpcError
from sessiond.client.retry import Attempts
from sessiond.mcp import calls, tools
from sessiond.mcp.calls import ToolCall, ask, build_call, hint_of, useful_part
from sessiond.mcp.daemon_connection import ANSWER_S

Step = Exception | dict[str, Any]


class Connection:
    """A connection whose calls do the next of `steps`, the last one for ever, and take time on the test's own clock."""

    def __init__(self, *steps: Step, took_s: float = 0.0) -> None:
        self.steps = list(steps)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.now_s = 0.0
        self._took_s = took_s
        self.given_up = 0
        self.cancellation = Cancellation()

    def client(self) -> Connection:
        return self

    def drop_client(self, client: Connection) -> None:
        assert client is self
        self.given_up += 1

    def call_within(
        self, method: str, params_of: Callable[[float], dict[str, Any]], /, *, timeout_s: float, cancellation: Any
    ) -> Any:
        assert cancellation is self.cancellation
        self.asked.append((method, params_of(timeout_s)))
        self.now_s += self._took_s
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        return step


def answer(connection: Connection, tool: str, **arguments: Any) -> Any:
    return ask(connection, build_call(tool, arguments), connection.cancellation, now=lambda: connection.now_s)


def failure(connection: Connection, tool: str, **arguments: Any) -> Exception:
    with pytest.raises(RpcError) as caught:
        answer(connection, tool, **arguments)
    return caught.value


ARGUMENTS = {
    "sessions_send": {"message": "x"},
    "sessions_spawn": {"task": "x"},
    "sessions_history": {"sessionKey": "main"},
    "sessions_search": {"query": "x"},
    "sessions_wait": {"runId": "r"},
}


@check_each("tool", tools.NAMES)
def test_repeating_any_tool_call_after_a_lost_connection_is_safe(tool: str) -> None:
    call = build_call(tool, ARGUMENTS.get(tool, {}))
    attempts = Attempts(call.method, call.params_of, deadline=60)
    first = attempts.begin(0)
    assert attempts.may_retry(ConnectionLost("sessiond closed the connection"), 1)
    again = attempts.begin(1)
    assert first.get("idempotencyKey") == again.get("idempotencyKey")
    assert ("idempotencyKey" in first) is (tool in ("sessions_send", "sessions_spawn"))


def test_a_repeated_call_waits_only_for_the_remaining_time() -> None:
    send = build_call("sessions_send", {"message": "x"})
    assert [send.params_of(left)["timeoutSeconds"] for left in (30, 20, 0)] == [30, 20, 0]
    inbox = build_call("sessions_inbox", {"wait": 1000})
    assert [inbox.params_of(left)["wait"] for left in (1000, 899.5, 0)] == [1000, 900, 0]


def test_the_client_waits_somewhat_longer_than_the_daemon() -> None:
    connection = Connection({"status": "running"})
    answer(connection, "sessions_wait", runId="r", timeoutSeconds=7)
    assert connection.asked == [("agent.wait", {"runId": "r", "timeoutMs": 7000})]
    seen: list[float] = []
    connection.call_within = lambda *_, timeout_s, cancellation: seen.append(timeout_s)  # type: ignore[method-assign]
    answer(connection, "sessions_wait", runId="r", timeoutSeconds=7)
    assert seen == [7 + ANSWER_S]


def test_an_idempotency_key_of_the_model_is_kept() -> None:
    connection = Connection({"status": "accepted"})
    answer(connection, "sessions_spawn", task="x", idempotencyKey="mine")
    assert connection.asked == [("sessions_spawn", {"task": "x", "idempotencyKey": "mine"})]


def test_a_history_is_limited_to_what_a_model_can_hold_unless_it_asks_for_more() -> None:
    connection = Connection({"messages": []})
    answer(connection, "sessions_history", sessionKey="main")
    answer(connection, "sessions_history", sessionKey="main", maxBytes=1_000_000)
    assert [params["maxBytes"] for _, params in connection.asked] == [calls.HISTORY_BYTES, 1_000_000]


def test_other_errors_are_not_retried() -> None:
    refused = RpcError(-32007, "overloaded", "too many")
    connection = Connection(refused)
    assert failure(connection, "sessions_list") is refused
    assert len(connection.asked) == 1


def test_a_refused_token_is_replaced_once_and_the_wait_goes_on() -> None:
    dead = RpcError(-32001, "unauthenticated", "the token was revoked")
    connection = Connection(dead, {"messages": []}, took_s=100)
    assert answer(connection, "sessions_inbox", wait=1000) == {"messages": []}
    assert [params["wait"] for _, params in connection.asked] == [1000, 900]
    connection = Connection(dead)
    assert failure(connection, "sessions_list") is dead
    assert (connection.given_up, len(connection.asked)) == (1, 2)


def request(call: ToolCall, left_s: float) -> dict[str, Any]:
    return call.params_of(left_s)


@check_each(
    ("tool", "arguments", "wait_s"),
    [
        ("sessions_wait", {"runId": "r"}, 30),
        ("sessions_wait", {"runId": "r", "timeoutSeconds": 0}, 0),
        ("sessions_send", {"message": "x", "timeoutSeconds": 7.5}, 7.5),
        ("sessions_send", {"message": "x", "timeoutSeconds": -1}, 0),
        ("sessions_send", {"message": "x", "timeoutSeconds": 1e300}, 86_400),
        ("sessions_inbox", {}, 0),
        ("sessions_inbox", {"wait": 5}, 5),
        ("sessions_inbox", {"wait": True}, 0),
        ("sessions_history", {"sessionKey": "main"}, 0),
    ],
)
def test_the_wait_of_a_call_is_read_from_its_arguments(tool: str, arguments: dict[str, Any], wait_s: float) -> None:
    assert build_call(tool, arguments).wait_s == wait_s


@check_each(
    ("tool", "name", "wrong"),
    [
        ("sessions_send", "timeoutSeconds", "soon"),
        ("sessions_inbox", "wait", [1]),
        ("sessions_inbox", "wait", True),
    ],
)
def test_a_time_limit_of_the_wrong_type_is_left_for_the_daemon_to_refuse(tool: str, name: str, wrong: Any) -> None:
    assert request(build_call(tool, {name: wrong}), 3)[name] == wrong


def test_a_wait_that_is_not_a_number_is_left_for_the_daemon_to_refuse() -> None:
    assert request(build_call("sessions_wait", {"runId": "r", "timeoutSeconds": "x"}), 3) == {
        "runId": "r",
        "timeoutMs": "x",
    }


def test_a_negative_wait_is_left_for_the_daemon_to_refuse() -> None:
    assert request(build_call("sessions_send", {"timeoutSeconds": -1}), 0)["timeoutSeconds"] == -1


ROW = {
    "key": "agent:main:mcp:claude-code",
    "kind": "other",
    "channel": "unknown",
    "updatedAt": 1795337921820,
    "createdAt": 1795337921820,
    "sessionId": "20ccfe50-d518-4593-8c90-41b74236ef14",
    "model": "a-model",
    "totalTokens": 1234,
    "inputTokens": 1234,
    "outputTokens": 1234,
    "estimatedCostUsd": 0.1234,
    "status": "ok",
    "startedAt": 1795337921820,
    "endedAt": 1795337921820,
    "runtimeMs": 2,
    "messageCount": 2,
    "transcriptPath": "/home/u/.local/state/sessiond/agents/main/sessions/20ccfe50-d518-4593-8c90-41b74236ef14.jsonl",
}


def test_listed_sessions_have_only_the_fields_that_a_model_can_use() -> None:
    listed = useful_part("sessions_list", {"sessions": [ROW], "hasMore": False, "visibility": "all"})
    assert listed == {
        "sessions": [{name: ROW[name] for name in ("key", "kind", "status", "updatedAt", "messageCount", "model")}],
        "hasMore": False,
        "visibility": "all",
    }
    assert len(json.dumps(listed["sessions"][0], separators=(",", ":"))) < 150
    # Other answers, and those of a daemon of another release, are unchanged.
    for tool, data in (("sessions_history", {"sessions": [ROW]}), ("sessions_list", {"sessions": None})):
        assert useful_part(tool, data) is data


def test_sending_to_an_unknown_session_tells_the_model_what_to_do() -> None:
    def hint(tool: str, key: str, slug: str = "session_not_found", **data: str) -> str:
        error = RpcError(-32002, "not_found", "no session", {"code": slug, **data})
        return hint_of(tool, build_call(tool, {"sessionKey": key, "message": "x"}), error)

    assert "sessiond create agent:b:main" in hint("sessions_send", "agent:b:main")
    assert "sessiond create agent:a:main" in hint("sessions_send", "main", sessionKey="agent:a:main")
    assert "sessions_spawn" in hint("sessions_send", "agent:b:main")
    assert hint("sessions_send", "0e821bfa") == ""
    assert hint("sessions_send", "agent:b:main", "agent_not_found") == ""
    assert hint("sessions_history", "agent:b:main") == ""
