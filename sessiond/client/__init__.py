"""The client library: calls, live events, and programs that run agents or deliver for channels. Standard library only.

    from sessiond.client import Client

    with Client() as client:
        print(client.call("sessions_list", limit=5)["sessions"])
        for event in client.subscribe("main"):
            print(event.name, event.params)

`Client` blocks; `TrioClient` is the same for Trio, which is imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessiond.client.agent import AttachedRun, BlockingRun
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
    from sessiond.client.trio_client import TrioClient, TrioRun
    from sessiond.client.wire import Event

# Where each name is from. All are imported when asked for: whoever wants one module of the package, as the daemon and
# some commands do, does not pay for the others.
_PLACES = {
    "agent": ("AttachedRun", "BlockingRun"),
    "blocking": ("Client",),
    "cancellation": ("Cancellation",),
    "errors": (
        "BadAttachment",
        "BadEnvironment",
        "CallTimeout",
        "ClientError",
        "ConnectionLost",
        "DaemonNotRunning",
        "NotPermitted",
        "RpcError",
    ),
    "trio_client": ("TrioClient", "TrioRun"),
    "wire": ("Event",),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}

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
    if name == "Run":  # as it was called in 0.1
        name = "AttachedRun"
    if name in _MODULES:
        return getattr(import_module(f"sessiond.client.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
