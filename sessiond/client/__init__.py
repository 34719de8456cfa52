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
    from sessiond.client.agent import AttachedRun, BlockingRun
    from sessiond.client.trio_client import TrioClient, TrioRun

__all__ = [
    "AttachedRun",
    "BadAttachment",
    "BadEnvironment",
    "BlockingRun",
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
    "TrioRun",
]


def __getattr__(name: str) -> object:
    if name in ("TrioClient", "TrioRun"):
        from sessiond.client import trio_client

        return getattr(trio_client, name)
    if name in ("AttachedRun", "BlockingRun", "Run"):  # the last is a name in 0.1
        from sessiond.client import agent

        return agent.AttachedRun if name == "Run" else getattr(agent, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
