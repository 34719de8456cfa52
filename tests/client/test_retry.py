"""How a call is retried over lost connections, on the test's own clock."""

from __future__ import annotations

import math
from typing import Any

from support.rows import check_each

from sessiond.client import CallTimeout, ConnectionLost, DaemonNotRunning, RpcError
from sessiond.client.errors import NotSent
from sessiond.client.retry import FIRST_DELAY_S, MAX_DELAY_S, RECONNECT_S, Attempts, Backoff, Reconnection

GONE = DaemonNotRunning("/run/sessiond.sock", "no such file")
LOST = ConnectionLost("sessiond closed the connection")
STOPPING = RpcError(-32008, "stopping", "sessiond is stopping")
CUT_OFF = RpcError(-32008, "stopping", "sessiond is stopping", {"begun": True})


def attempts_of(method: str, deadline: float = math.inf, **params: Any) -> Attempts:
    return Attempts(method, lambda _left_s: params, deadline)


def retry_until_given_up(attempts: Attempts, *errors: Exception) -> float:
    """For how many seconds the call is retried if each attempt fails at once; the last error repeats for ever."""
    now, steps = 0.0, list(errors)
    while True:
        attempts.begin(now)
        if not attempts.may_retry(steps.pop(0) if len(steps) > 1 else steps[0], now):
            return now
        now += attempts.backoff.next_s()


@check_each("error", [GONE, LOST, STOPPING])
def test_calls_are_retried_for_some_seconds_while_the_daemon_is_away(error: Exception) -> None:
    assert RECONNECT_S <= retry_until_given_up(attempts_of("sessions_list"), error) < RECONNECT_S + MAX_DELAY_S


def test_the_callers_deadline_ends_the_retries() -> None:
    assert 1 <= retry_until_given_up(attempts_of("sessions_list", deadline=1), LOST, GONE) < 1 + MAX_DELAY_S


def test_each_interruption_of_a_long_wait_has_its_own_time_for_retries() -> None:
    attempts = Attempts("sessions_inbox", lambda left_s: {"wait": left_s}, 1000)
    asked: list[float] = []
    for began, lost in ((0, 100), (100, 150), (150, 152), (152, 161.9), (163, 1000)):
        asked.append(attempts.begin(began)["wait"])
        assert attempts.may_retry(LOST, lost) is (lost < 1000)
    assert asked == [1000, 900, 850, 848, 837]


def test_retries_end_if_the_daemon_dies_at_every_attempt() -> None:
    attempts = attempts_of("sessions_list")
    for began in range(10):
        attempts.begin(began)
        assert attempts.may_retry(LOST, began + 0.5)
    attempts.begin(10)
    assert not attempts.may_retry(LOST, RECONNECT_S + 0.5)


def test_retries_end_if_the_daemon_is_stuck_however_long_each_attempt_takes() -> None:
    attempts = attempts_of("sessions_list")
    attempts.begin(0)
    assert attempts.may_retry(GONE, RECONNECT_S)
    attempts.begin(RECONNECT_S)
    assert not attempts.may_retry(GONE, 2 * RECONNECT_S)


@check_each(
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
def test_a_call_that_may_have_been_carried_out_is_retried_if_repeating_is_safe(
    method: str, params: dict[str, Any], keyed: bool, repeats: bool
) -> None:
    attempts = attempts_of(method, **params)
    first = attempts.begin(0)
    assert ("idempotencyKey" in first) is keyed
    for may_be_done in (LOST, CUT_OFF):
        assert attempts.may_retry(may_be_done, 0) is repeats
    # A call that the daemon never got, or refused before doing anything, is always retried.
    assert attempts.may_retry(NotSent("gone"), 0) and attempts.may_retry(STOPPING, 0)
    assert not attempts.may_retry(CallTimeout("slow"), 0)
    assert attempts.begin(1) == first


def test_an_idempotency_key_of_the_caller_is_kept() -> None:
    assert attempts_of("chat.send", message="x", idempotencyKey="k").begin(0)["idempotencyKey"] == "k"


class TestReconnection:
    def test_a_connection_that_never_worked_is_not_retried(self) -> None:
        retry = Reconnection()
        assert not retry.may_retry(LOST)
        retry.note_success()
        assert retry.may_retry(LOST) and retry.may_retry(GONE) and retry.may_retry(CUT_OFF)
        assert not retry.may_retry(RpcError(-32002, "not_found", "no such session"))

    def test_each_success_resets_the_delays(self) -> None:
        retry = Reconnection(worked=True)
        assert retry.may_retry(LOST)
        waited = [retry.backoff.next_s() for _ in range(20)]
        assert all(delay_s <= MAX_DELAY_S for delay_s in waited) and waited[-1] >= MAX_DELAY_S / 2
        retry.note_success()
        assert retry.backoff.next_s() <= FIRST_DELAY_S

    def test_delays_stay_within_their_bounds(self) -> None:
        backoff = Backoff(1.0, 60.0)
        waited = [backoff.next_s() for _ in range(20)]
        assert 0.5 <= waited[0] <= 1.0
        assert all(30.0 <= delay_s <= 60.0 for delay_s in waited[6:])
