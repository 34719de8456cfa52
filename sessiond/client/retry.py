"""How long to wait before the next attempt to connect. Knows numbers. Waits for nothing."""

from __future__ import annotations

import random

from sessiond.client.errors import ConnectionLost, DaemonNotRunning, RpcError

FIRST_DELAY_S = 0.05  # systemd has a killed daemon back in some 0.2 s
MAX_DELAY_S = 2.0


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
