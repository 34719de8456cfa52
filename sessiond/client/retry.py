"""Whether to repeat a call after a lost connection, and after which delay. Does not wait itself."""

from __future__ import annotations

import random
import secrets

from sessiond.client.errors import ConnectionLost, DaemonNotRunning, NotSent, RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FIRST_DELAY_S = 0.05  # systemd restarts a killed daemon in about 0.2 s
MAX_DELAY_S = 2.0
# How long a call waits, after each failure, for a daemon that was there before: it restarts within a second, or a few
# more with much to recover. If the first connection fails, nothing is waited for.
RECONNECT_S = 10.0
# How often in a row the disk may refuse before that counts as lasting: after some 25 seconds.
MAX_REFUSED = 15
# Idempotent methods: they read, or set a given state.
_REPEATABLE = frozenset(
    {
        "agent.wait",
        "agents_list",
        "agents.attach",
        "channels.attach",
        "chat.history",
        "daemon.doctor",
        "daemon.status",
        "ping",
        "questions.list",
        "rpc.discover",
        "sessions.bytes",
        "sessions.heads",
        "sessions_history",
        "sessions_inbox",
        "sessions_list",
        "sessions.list",
        "sessions.messages.subscribe",
        "sessions.messages.unsubscribe",
        "sessions.patch",
        "sessions.preview",
        "sessions.resolve",
        "sessions_search",
        "sessions.subscribe",
        "sessions.unsubscribe",
        "sessions.usage",
        "tokens.list",
        "tokens.revoke",
    }
)
# Methods with an idempotency key, with which the daemon carries a repeated call out only once.
_KEYED = frozenset({"agent", "chat.send", "sessions.send", "sessions_send", "sessions_spawn"})


class Backoff:
    """The delays between attempts: doubled each time up to `max_s`, each shortened at random by up to a half, so that
    many clients do not reconnect at the same moment.
    """

    def __init__(self, first_s: float = FIRST_DELAY_S, max_s: float = MAX_DELAY_S) -> None:
        self.attempt = 0
        self._first_s, self._max_s = first_s, max_s

    def next_s(self) -> float:
        delay = min(self._first_s * (1 << min(self.attempt, 16)), self._max_s)
        self.attempt += 1
        return delay * (0.5 + random.random() / 2)

    def reset(self) -> None:
        self.attempt = 0


class Reconnection:
    """Whether something long-lived is resumed after an error: a subscription, a served connection, a long wait.

    It is not resumed if it never worked before. `worked=True` counts it as having worked.
    """

    def __init__(self, *, worked: bool = False) -> None:
        self.backoff = Backoff()
        self._worked, self._refused = worked, 0

    def note_success(self) -> None:
        """It works now, so the delays begin anew after the next error."""
        self._worked, self._refused = True, 0
        self.backoff.reset()

    def may_retry(self, error: Exception) -> bool:
        """Whether to try again after this error."""
        if isinstance(error, RpcError) and error.slug == "storage":
            self._refused += 1  # a file that stays unreadable is told to the caller in the end
        return self._worked and self._refused <= MAX_REFUSED and is_retryable(error)


def is_retryable(error: Exception) -> bool:
    """Whether the daemon may answer soon. For callers that follow, serve or wait, where repeating does no harm.

    A storage error may be temporary too (no free descriptor, say).
    """
    if isinstance(error, RpcError):
        return error.slug in ("stopping", "overloaded", "storage")
    return isinstance(error, ConnectionLost | DaemonNotRunning)


def is_wait_over(answer: dict[str, Any]) -> bool:
    """Whether to stop waiting for the end of a run: it has ended, or it waits for the caller's own run itself."""
    return answer["status"] != "running" or answer.get("reason") == "ancestor_busy"


class Attempts:
    """The attempts of one call: the params of each, and whether another may follow a failed one.

    `params_of(left_s)` returns the params for an attempt with so many seconds left. All times, `deadline` too, are
    seconds of the same clock.
    """

    def __init__(self, method: str, params_of: Callable[[float], dict[str, Any]], deadline: float) -> None:
        self.backoff = Backoff()
        self._method, self._params_of, self._deadline = method, params_of, deadline
        self._key = f"client-{secrets.token_hex(16)}"
        self._params: dict[str, Any] = {}
        self._began = 0.0
        self._retry_until = 0.0

    def begin(self, now: float) -> dict[str, Any]:
        """The params of the attempt that begins now, with a generated idempotency key where the method takes one and
        the caller gave none.
        """
        self._began = now
        self._params = self._params_of(self.left_s(now))
        # A message that begins with a slash is a command, for which the daemon keeps no idempotency key.
        is_command = str(self._params.get("message", "")).startswith("/")
        if self._method in _KEYED and "idempotencyKey" not in self._params and not is_command:
            self._params = {**self._params, "idempotencyKey": self._key}
        return self._params

    def left_s(self, now: float) -> float:
        return max(0.0, self._deadline - now)

    def may_retry(self, error: Exception, now: float) -> bool:
        """Whether to make another attempt after this error: the daemon may be back soon, and repeating does no harm."""
        # If the attempt took a while, the daemon was there in between, so that the time to wait for it begins anew.
        was_there = isinstance(error, ConnectionLost) and now - self._began >= MAX_DELAY_S
        if was_there or not self._retry_until:
            self._retry_until = now + RECONNECT_S
            self.backoff.reset()
        is_soon = now < min(self._retry_until, self._deadline)
        return is_soon and may_repeat(error, self._method, self._params)


def may_repeat(error: Exception, method: str, params: dict[str, Any]) -> bool:
    """Whether a call that failed with this error can be repeated without being carried out twice."""
    if isinstance(error, NotSent | DaemonNotRunning):
        return True
    if isinstance(error, RpcError):
        if error.slug != "stopping":
            return False
        if not error.data.get("begun"):
            return True  # refused before anything was done
    elif not isinstance(error, ConnectionLost):
        return False
    return method in _REPEATABLE or (method in _KEYED and "idempotencyKey" in params)
