"""The daemon, as a command talks to it: one client with the command's options, and calls with a bound."""

from __future__ import annotations

import sys

from sessiond import __version__
from sessiond.client.blocking import Client
from sessiond.client.errors import RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.cli.frame.command import Args
    from sessiond.client.cancellation import Cancellation

# Ordinary calls take milliseconds; a daemon that needs this long is stuck, and the person should hear of it.
CALL_TIMEOUT_S = 30.0


class CommandClient(Client):
    """A client that takes labels and beginnings of session ids for keys, and names what was meant."""

    def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        /,
        *,
        timeout_s: float | None = None,
        cancellation: Cancellation | None = None,
        **more: Any,
    ) -> Any:
        given = {**(params or {}), **more}
        try:
            return super().call(method, given, timeout_s=timeout_s, cancellation=cancellation)
        except RpcError as error:
            from sessiond.cli.frame import names

            plain = super().call
            field = next((name for name in names.KEY_PARAMS if isinstance(given.get(name), str)), None)
            if error.reason != "session_not_found" or field is None:
                failure = names.explained(plain, error, method, given)
                raise failure or error from None
            meant = names.meant_session(plain, given[field])
        return super().call(method, {**given, field: meant}, timeout_s=timeout_s, cancellation=cancellation)


def connect(args: Args) -> Client:
    """A client for the socket that the command line or the environment names."""
    return CommandClient(args.socket, name="sessiond-cli", version=__version__, on_reconnect=_say_once)


def ask(args: Args, method: str, params: dict[str, Any] | None = None, *, bounded: bool = True) -> Any:
    """One call on a connection of its own; `bounded=False` for what may rightly take minutes."""
    with connect(args) as client:
        return client.call(method, params or {}, timeout_s=CALL_TIMEOUT_S if bounded else None)


def given(params: dict[str, Any]) -> dict[str, Any]:
    """`params` without what was not given (None, an empty tuple): absent is not null on the wire."""
    return {name: value for name, value in params.items() if value is not None and value != ()}


def _say_once(attempt: int) -> None:
    if attempt == 1:
        sys.stderr.write("reconnecting…\n")
        sys.stderr.flush()
