"""The client library: calls, live events, and programs that run agents or deliver for channels. Standard library only.

    from sessiond.client import Client

    with Client() as client:
        print(client.call("sessions_list", limit=5)["sessions"])
        for event in client.subscribe("main"):
            print(event.name, event.params)

`Client` blocks; `TrioClient` is the same for Trio, which is imported when it is asked for.
"""

from __future__ import annotations

from sessiond.client.blocking import Client
from sessiond.client.cancellation import Cancellation
from sessiond.client.errors import (
    BadAttachment,
    BadEnvironment,
    CallTimeout,
    ClientError,
    ConnectionLost,
    DaemonNotRunning,
    NotPermitted,
    RpcError,
)
from sessiond.client.wire import Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessiond.client.agent import AttachedRun
    from sessiond.client.trio_client import TrioClient

__all__ = [
    "AttachedRun",
    "BadAttachment",
    "BadEnvironment",
    "CallTimeout",
    "Cancellation",
    "Client",
    "ClientError",
    "ConnectionLost",
    "DaemonNotRunning",
    "Event",
    "NotPermitted",
    "RpcError",
    "TrioClient",
]


def __getattr__(name: str) -> object:
    if name == "TrioClient":
        from sessiond.client.trio_client import TrioClient

        return TrioClient
    if name in ("AttachedRun", "Run"):  # its name in 0.1
        from sessiond.client.agent import AttachedRun

        return AttachedRun
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
