"""The attempts of a call over lost connections, on a clock of the test."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sessiond.client import CallTimeout, ConnectionLost, DaemonNotRunning, RpcError
from sessiond.client.errors import NotSent
from sessiond.client.retry import FIRST_DELAY_S, MAX_DELAY_S, RECONNECT_S, Attempts, Backoff, Reconnection

GONE = DaemonNotRunning("/run/sessiond.sock", "no such file")
LOST = ConnectionLost("sessiond closed the connection")
STOPPING = RpcError(-32008, "stopping", "sessiond is stopping")
CUT_OFF = RpcError(-32008, "stopping", "sessiond is stopping", {"begun": True})


def attempts_of(method: str, deadline: float = math.inf, **params: Any) -> Attempts:
    return Attempts(method, lambda _left_s: params, deadline)


def waited_s(attempts: Attempts, *errors: Exception) -> float:
    """How long the call is made again where each attempt fails at once, the last error for good."""
    now, steps = 0.0, list(errors)
    while True:
        attempts.begin(now)
        if not attempts.may_retry(steps.pop(0) if len(steps) > 1 else steps[0], now):
            return now
        now += attempts.backoff.next_s()


@pytest.mark.parametrize("error", [GONE, LOST, STOPPING])
def test_a_daemon_that_went_away_has_some_seconds_to_come_back(error: Exception) -> None:
    assert RECONNECT_S <= waited_s(attempts_of("sessions_list"), error) < RECONNECT_S + MAX_DELAY_S


def test_the_callers_own_limit_comes_first() -> None:
    assert 1 <= waited_s(attempts_of("sessions_list", deadline=1), LOST, GONE) < 1 + MAX_DELAY_S


def test_each_interruption_of_a_long_wait_has_its_own_patience() -> None:
    attempts = Attempts("sessions_inbox", lambda left_s: {"wait": left_s}, 1000)
    asked: list[float] = []
    for began, lost in ((0, 100), (100, 150), (150, 152), (152, 161.9), (163, 1000)):
        asked.append(attempts.begin(began)["wait"])
        assert attempts.may_retry(LOST, lost) is (lost < 1000)
    assert asked == [1000, 900, 850, 848, 837]


def test_a_daemon_that_ends_at_every_attempt_is_given_up() -> None:
    attempts = attempts_of("sessions_list")
    for began in range(10):
        attempts.begin(began)
        assert attempts.may_retry(LOST, began + 0.5)
    attempts.begin(10)
    assert not attempts.may_retry(LOST, RECONNECT_S + 0.5)


def test_a_daemon_that_is_stuck_is_given_up_however_long_each_attempt_takes() -> None:
    attempts = attempts_of("sessions_list")
    attempts.begin(0)
    assert attempts.may_retry(GONE, RECONNECT_S)
    attempts.begin(RECONNECT_S)
    assert not attempts.may_retry(GONE, 2 * RECONNECT_S)


@pytest.mark.parametrize(
    ("method", "params", "keyed", "repeats"),
    [
        ("sessions_list", {}, False, True),
        ("sessions_inbox", {}, False, True),
        ("chat.send", {"message": "x"}, True, True),
        ("chat.send", {"message": "/reset"}, False, False),
        ("chat.inject", {"messages": []}, False, False),
        ("sessions_spawn", {"task": "x"}, True, True),
    ],
)
def test_what_may_have_been_done_is_asked_again_where_it_is_done_once(
    method: str, params: dict[str, Any], keyed: bool, repeats: bool
) -> None:
    attempts = attempts_of(method, **params)
    first = attempts.begin(0)
    assert ("idempotencyKey" in first) is keyed
    for may_be_done in (LOST, CUT_OFF):
        assert attempts.may_retry(may_be_done, 0) is repeats
    # What the daemon never had, or refused before it did anything, is asked again whatever it is.
    assert attempts.may_retry(NotSent("gone"), 0) and attempts.may_retry(STOPPING, 0)
    assert not attempts.may_retry(CallTimeout("slow"), 0)
    assert attempts.begin(1) == first


def test_a_key_of_the_callers_own_is_kept() -> None:
    assert attempts_of("chat.send", message="x", idempotencyKey="k").begin(0)["idempotencyKey"] == "k"


class TestReconnection:
    def test_what_never_worked_is_not_tried_again(self) -> None:
        retry = Reconnection()
        assert not retry.may_retry(LOST)
        retry.note_success()
        assert retry.may_retry(LOST) and retry.may_retry(GONE) and retry.may_retry(CUT_OFF)
        assert not retry.may_retry(RpcError(-32002, "not_found", "no such session"))

    def test_each_success_begins_the_delays_anew(self) -> None:
        retry = Reconnection(worked=True)
        assert retry.may_retry(LOST)
        waited = [retry.backoff.next_s() for _ in range(20)]
        assert all(delay_s <= MAX_DELAY_S for delay_s in waited) and waited[-1] >= MAX_DELAY_S / 2
        retry.note_success()
        assert retry.backoff.next_s() <= FIRST_DELAY_S

    def test_delays_keep_to_their_bounds(self) -> None:
        backoff = Backoff(1.0, 60.0)
        waited = [backoff.next_s() for _ in range(20)]
        assert 0.5 <= waited[0] <= 1.0
        assert all(30.0 <= delay_s <= 60.0 for delay_s in waited[6:])
