"""Whether to make a call again after a lost connection, and how long to wait before. Waits for nothing."""

from __future__ import annotations

import random
import secrets

from sessiond.client.errors import ConnectionLost, DaemonNotRunning, NotSent, RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FIRST_DELAY_S = 0.05  # systemd has a killed daemon back in some 0.2 s
MAX_DELAY_S = 2.0
# So long a call waits, each time, for a daemon that was there before: it restarts in less than a second, with much to
# recover in some more. One that was never there is not waited for.
RECONNECT_S = 10.0
# Done twice is done once: these read, or set what they say.
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
        "rpc.discover",
        "session_status",
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
# These take a key under which the daemon does them once.
_KEYED = frozenset({"agent", "chat.send", "sessions.send", "sessions_send", "sessions_spawn"})


class Backoff:
    """The delays between attempts: doubled each time up to `max_s`, each shortened at random by up to a half
    so that many clients do not come back in step."""

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
    """Whether something that lasts is resumed after an error: a subscription, a served connection, a long wait.

    Nothing is resumed that never worked, unless `worked` says that it has.
    """

    def __init__(self, *, worked: bool = False) -> None:
        self.backoff = Backoff()
        self._worked = worked

    def note_success(self) -> None:
        """It works now: the delays begin anew after the next error."""
        self._worked = True
        self.backoff.reset()

    def may_follow(self, error: Exception) -> bool:
        """Whether to try again after this error."""
        return self._worked and worth_retrying(error)


def worth_retrying(error: Exception) -> bool:
    """Whether the daemon may answer soon: for whoever follows, serves or waits, and does nothing twice by asking again.

    A disk that refuses (no descriptor, say) may take it in a second; the daemon itself tries again then, too.
    """
    if isinstance(error, RpcError):
        return error.slug in ("stopping", "overloaded", "storage")
    return isinstance(error, ConnectionLost | DaemonNotRunning)


def is_wait_over(answer: dict[str, Any]) -> bool:
    """Whether to ask no more for the end of a run: it has ended, or it waits for the run of whoever asks."""
    return answer["status"] != "running" or answer.get("reason") == "ancestor_busy"


class Attempts:
    """The attempts of one call: what each asks, and whether one that failed is made again.

    `params_of(left_s)` gives the params with so many seconds left, for each attempt anew. All times are seconds of one
    clock, `deadline` as well.
    """

    def __init__(self, method: str, params_of: Callable[[float], dict[str, Any]], deadline: float) -> None:
        self.backoff = Backoff()
        self._method, self._params_of, self._deadline = method, params_of, deadline
        self._key = f"client-{secrets.token_hex(16)}"
        self._params: dict[str, Any] = {}
        self._began = 0.0
        self._patient_until = 0.0

    def begin(self, now: float) -> dict[str, Any]:
        """The params of the attempt that begins now, with an idempotency key of ours where the method takes one and the
        caller gave none.
        """
        self._began = now
        self._params = self._params_of(self.left_s(now))
        # A message with a slash is a command, which the daemon obeys at once and keeps no key for.
        is_command = str(self._params.get("message", "")).startswith("/")
        if self._method in _KEYED and "idempotencyKey" not in self._params and not is_command:
            self._params = {**self._params, "idempotencyKey": self._key}
        return self._params

    def left_s(self, now: float) -> float:
        return max(0.0, self._deadline - now)

    def may_follow(self, error: Exception, now: float) -> bool:
        """Whether another attempt may follow the one that failed now: the daemon may be back soon, and what is done
        twice is done once.
        """
        # An attempt that lasted was with a daemon that was there: what interrupted it has its own patience.
        was_there = isinstance(error, ConnectionLost) and now - self._began >= MAX_DELAY_S
        if was_there or not self._patient_until:
            self._patient_until = now + RECONNECT_S
            self.backoff.reset()
        is_soon = now < min(self._patient_until, self._deadline)
        return is_soon and may_repeat(error, self._method, self._params)


def may_repeat(error: Exception, method: str, params: dict[str, Any]) -> bool:
    """Whether a call that failed so can be made again, and is then done once."""
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
