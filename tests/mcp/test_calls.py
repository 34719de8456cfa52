"""One tool call against a daemon that is gone, comes back, or no longer takes the token; waiting adds to the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sessiond.client import Cancellation, ConnectionLost, DaemonNotRunning, RpcError
from sessiond.mcp import calls
from sessiond.mcp.calls import ToolCall, ask, call_of

Step = Exception | dict[str, Any]
GONE = DaemonNotRunning("/run/sessiond.sock", "no such file")
LOST = ConnectionLost("sessiond closed the connection")


class Connection(Cancellation):
    """A daemon that does the next of `steps` with every call, and the last one for good; and the clock of it all."""

    def __init__(self, *steps: Step, was_there: bool = True, took_s: float = 0.0, renews: bool = True) -> None:
        super().__init__()
        self.steps = list(steps)
        self.was_there = was_there
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.now_s = 0.0
        self._took_s, self._renews = took_s, renews
        self.given_up = 0

    def client(self) -> Connection:
        return self

    def give_up(self, client: Connection) -> bool:
        self.given_up += 1
        return self._renews

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.is_cancelled

    def call(self, method: str, params: dict[str, Any], /, *, timeout_s: float, cancellation: Any) -> Any:
        assert cancellation is self
        self.asked.append((method, params))
        self.now_s += self._took_s
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        return step


def answer(connection: Connection, tool: str, **arguments: Any) -> Any:
    return ask(connection, call_of(tool, arguments), connection, now=lambda: connection.now_s)


def failure(connection: Connection, tool: str, **arguments: Any) -> tuple[Exception, float]:
    with pytest.raises((ConnectionLost, DaemonNotRunning, RpcError)) as caught:
        answer(connection, tool, **arguments)
    return caught.value, connection.now_s


def test_a_call_that_was_called_off_is_not_asked_again() -> None:
    connection = Connection(LOST)
    connection.cancel()
    assert failure(connection, "sessions_list")[0] is LOST
    assert len(connection.asked) == 1


def test_a_daemon_that_never_was_there_is_not_waited_for() -> None:
    error, took_s = failure(Connection(GONE, was_there=False), "sessions_list")
    assert (error, took_s) == (GONE, 0)


def test_a_daemon_that_went_away_has_some_seconds_to_come_back() -> None:
    error, took_s = failure(Connection(LOST, GONE), "sessions_list")
    assert error is GONE
    assert calls.PATIENCE_S <= took_s < calls.PATIENCE_S + 3


@pytest.mark.parametrize("trouble", [GONE, LOST, RpcError(-32008, "stopping", "sessiond is stopping")])
def test_a_call_is_asked_again_where_the_daemon_comes_back(trouble: Exception) -> None:
    connection = Connection(trouble, trouble, {"count": 0})
    assert answer(connection, "sessions_list", limit=3) == {"count": 0}
    assert connection.asked == [("sessions_list", {"limit": 3})] * 3


def test_each_interruption_of_a_long_wait_has_its_own_patience() -> None:
    connection = Connection(LOST, LOST, LOST, {"messages": []}, took_s=100)
    assert answer(connection, "sessions_inbox", wait=1000) == {"messages": []}
    waits = [params["wait"] for _, params in connection.asked]
    assert waits[0] == 1000 and waits[1] in (900, 899) and waits == sorted(waits, reverse=True)


def test_what_is_sent_again_has_the_same_key_and_what_is_left_of_the_wait() -> None:
    connection = Connection(LOST, {"status": "ok"}, took_s=10)
    answer(connection, "sessions_send", sessionKey="main", message="x")
    (first, again) = (params for _, params in connection.asked)
    assert first["idempotencyKey"].startswith("mcp-")
    assert (first["timeoutSeconds"], again["timeoutSeconds"]) == (30, 20)
    assert {**again, "timeoutSeconds": 30} == first


def test_a_key_of_the_models_own_is_kept() -> None:
    connection = Connection({"status": "accepted"})
    answer(connection, "sessions_spawn", task="x", idempotencyKey="mine")
    assert connection.asked == [("sessions_spawn", {"task": "x", "idempotencyKey": "mine"})]


def test_a_history_is_no_longer_than_a_model_can_hold_unless_it_asks() -> None:
    connection = Connection({"messages": []})
    answer(connection, "sessions_history", sessionKey="main")
    answer(connection, "sessions_history", sessionKey="main", maxBytes=1_000_000)
    assert [params["maxBytes"] for _, params in connection.asked] == [calls.HISTORY_BYTES, 1_000_000]


def test_other_refusals_are_final() -> None:
    refused = RpcError(-32007, "overloaded", "too many")
    connection = Connection(refused)
    assert failure(connection, "sessions_list") == (refused, 0)
    assert len(connection.asked) == 1


def test_a_dead_token_is_replaced_once() -> None:
    dead = RpcError(-32001, "unauthenticated", "the token was revoked")
    connection = Connection(dead, {"count": 0})
    assert answer(connection, "sessions_list") == {"count": 0}
    connection = Connection(dead)
    assert failure(connection, "sessions_list") == (dead, 0)
    assert connection.given_up == 1
    connection = Connection(dead, renews=False)
    assert failure(connection, "sessions_list") == (dead, 0)
    assert len(connection.asked) == 1


def request(call: ToolCall, left_s: float) -> dict[str, Any]:
    return call.request(left_s)[1]


@pytest.mark.parametrize(
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
def test_how_long_a_call_may_take(tool: str, arguments: dict[str, Any], wait_s: float) -> None:
    assert call_of(tool, arguments).wait_s == wait_s


@pytest.mark.parametrize(
    ("tool", "name", "wrong"),
    [
        ("sessions_send", "timeoutSeconds", "soon"),
        ("sessions_inbox", "wait", [1]),
        ("sessions_inbox", "wait", True),
    ],
)
def test_what_is_no_number_is_left_for_the_daemon_to_refuse(tool: str, name: str, wrong: Any) -> None:
    assert request(call_of(tool, {name: wrong}), 3)[name] == wrong


def test_a_wait_that_is_no_number_is_left_for_the_daemon_to_refuse() -> None:
    assert request(call_of("sessions_wait", {"runId": "r", "timeoutSeconds": "x"}), 3) == {
        "runId": "r",
        "timeoutMs": "x",
    }


def test_a_negative_wait_is_left_for_the_daemon_to_refuse() -> None:
    made: Callable[[float], tuple[str, dict[str, Any]]] = call_of("sessions_send", {"timeoutSeconds": -1}).request
    assert made(0)[1]["timeoutSeconds"] == -1
