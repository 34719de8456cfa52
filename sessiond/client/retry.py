"""Whether to make a call again after a lost connection, and how long to wait before. Waits for nothing."""

from __future__ import annotations

import random
import secrets

from sessiond.client.errors import ConnectionLost, DaemonNotRunning, NotSent, RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIRST_DELAY_S = 0.05  # systemd has a killed daemon back in some 0.2 s
MAX_DELAY_S = 2.0
# So long a call waits for a daemon that was there before: it restarts in less than a second, with much to recover in
# some more. One that was never there is not waited for.
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
    """The delays between attempts: doubled each time up to `MAX_DELAY_S`, each shortened at random by up to a half
    so that many clients do not come back in step."""

    def __init__(self) -> None:
        self.attempt = 0

    def next_s(self) -> float:
        delay = min(FIRST_DELAY_S * (1 << min(self.attempt, 16)), MAX_DELAY_S)
        self.attempt += 1
        return delay * (0.5 + random.random() / 2)

    def reset(self) -> None:
        self.attempt = 0


def worth_retrying(error: Exception) -> bool:
    """Whether the daemon may be there again soon."""
    if isinstance(error, RpcError):
        return error.slug in ("stopping", "overloaded")
    return isinstance(error, ConnectionLost | DaemonNotRunning)


def safe_params(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The params of a call, with an idempotency key of ours where the method takes one and the caller gave none."""
    # A message with a slash is a command, which the daemon obeys at once and keeps no key for.
    if method not in _KEYED or "idempotencyKey" in params or str(params.get("message", "")).startswith("/"):
        return params
    return {**params, "idempotencyKey": f"client-{secrets.token_hex(16)}"}


def may_repeat(error: Exception, method: str, params: dict[str, Any]) -> bool:
    """Whether a call that failed so can be made again, and is then done once."""
    if isinstance(error, NotSent | DaemonNotRunning):
        return True
    if isinstance(error, RpcError):
        return error.slug == "stopping"  # refused before anything was done
    return isinstance(error, ConnectionLost) and (
        method in _REPEATABLE or (method in _KEYED and "idempotencyKey" in params)
    )
