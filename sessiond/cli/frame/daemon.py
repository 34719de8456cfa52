"""How commands call the daemon: a client with the options of the command, and calls with a time limit."""

from __future__ import annotations

import os
import sys
import time

from sessiond import __version__
from sessiond.cli.frame.failures import NOT_RUNNING, CommandFailed
from sessiond.cli.frame.input import decode_words
from sessiond.cli.frame.progress import show_progress
from sessiond.client import locate
from sessiond.client.blocking import Client
from sessiond.client.errors import DaemonNotRunning, RpcError
from sessiond.client.starting import is_listening, start_progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from sessiond.cli.frame.command import Args
    from sessiond.client.cancellation import Cancellation
    from sessiond.client.wire import Event

# Ordinary calls take milliseconds; if one takes this long, the daemon is stuck, and the command says so.
CALL_TIMEOUT_S = 30.0
LOOK_AGAIN_S = 0.05
# While the daemon still reads the store, too.
_ANSWERED_AT_ONCE = ("ping", "daemon.status")


class CommandClient(Client):
    """A client that also accepts labels and prefixes of session ids as keys, and suggests names in errors.

    Before its first call it waits for a daemon that is starting, and shows its progress.
    """

    # Not `_was_connected`: a daemon that is starting accepts connections as well.
    _start_is_over = False

    @property
    def caller(self) -> dict[str, Any]:
        self._wait_for_start()
        return super().caller

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
        given = decode_words({**(params or {}), **more})
        if method not in _ANSWERED_AT_ONCE:
            self._wait_for_start()
        try:
            return super().call(method, given, timeout_s=timeout_s, cancellation=cancellation)
        except DaemonNotRunning as error:
            if not self._show_start():
                # The configuration of a daemon whose socket was given on the command line is not known here.
                raise (error if self._given_socket else _with_reason(error)) from None
            return self.call(method, given, timeout_s=timeout_s, cancellation=cancellation)
        except RpcError as error:
            from sessiond.cli.frame import names

            plain = super().call
            field = names.missing_session(error, given)
            if field is None:
                failure = names.explain(plain, error, method, given)
                raise failure or error from None
            if method == "sessions.create" and field == "key":
                raise names.describe_bad_key(given[field]) or error from None
            key = error.data.get("sessionKey")
            # sessions_send does not create sessions, unlike chat.send, with which the owner sends.
            hint = names.hint_at_beginning(key or given[field]) if method == "sessions_send" else None
            meant = names.find_meant_session(plain, given[field], key, hint=hint)
        return super().call(method, {**given, field: meant}, timeout_s=timeout_s, cancellation=cancellation)

    def subscribe(self, key: str | None = None, cursor: str | None = None, **more: Any) -> Iterator[Event]:
        key = decode_words(key)
        self._wait_for_start()
        try:
            yield from super().subscribe(key, cursor, **more)
        except RpcError as error:
            from sessiond.cli.frame import names

            if key is None or names.missing_session(error, {"key": key}) is None:
                raise
            meant = names.find_meant_session(super().call, key, error.data.get("sessionKey"))
            yield from super().subscribe(meant, cursor, **more)

    def _wait_for_start(self) -> None:
        if not self._start_is_over:
            self._show_start()
            self._start_is_over = True

    def _show_start(self) -> bool:
        """Wait while a daemon is starting, and show its progress; whether it answers then.

        It accepts connections before it has read the store, but the call would wait then, and nobody would know why.
        """
        path = locate.socket_path(self._given_socket)
        last_text = None
        while (text := start_progress(path)) is not None:
            if text != last_text:
                sys.stderr.write(f"sessiond is starting{f': {text}' if text else ''}\n")
                sys.stderr.flush()
                last_text = text
            time.sleep(LOOK_AGAIN_S)  # noqa: TID251 - at a process border: nothing tells of the end of a start
        return last_text is not None and is_listening(path)


def _with_reason(error: DaemonNotRunning) -> DaemonNotRunning | CommandFailed:
    """The failure to report if no daemon runs because its configuration is bad."""
    from pathlib import Path

    from sessiond.config.settings import load
    from sessiond.errors import ConfigError

    given = os.environ.get("SESSIOND_CONFIG")
    try:
        load(Path(given).expanduser() if given else None)
    except ConfigError as problem:
        hint = f"its configuration keeps it from starting: {problem}"
        return CommandFailed(str(error), hint=hint, status=NOT_RUNNING)
    return error


def wait_for_daemon(client: Client, limit_s: float) -> None:
    """Return when a daemon that is being started answers. DaemonNotRunning after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            client.call("ping", timeout_s=CALL_TIMEOUT_S)
        except DaemonNotRunning:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOOK_AGAIN_S)  # noqa: TID251 - as above
        else:
            return


def connect(args: Args) -> Client:
    """A client for the socket that the command line or the environment names."""
    return CommandClient(args.socket, name="sessiond-cli", version=__version__, on_reconnect=_say_once)


def connect_quietly(args: Args) -> Client:
    """A second client that prints nothing about lost connections, because that of `connect` does."""
    return CommandClient(args.socket, name="sessiond-cli", version=__version__)


def ask(args: Args, method: str, params: dict[str, Any] | None = None) -> Any:
    """One call on a connection of its own."""
    with connect(args) as client:
        return client.call(method, params or {}, timeout_s=CALL_TIMEOUT_S)


def ask_long(args: Args, method: str, params: dict[str, Any], what: str) -> Any:
    """One call that may take minutes; on a terminal a line shows `what` meanwhile."""
    with connect(args) as client, show_progress(what):
        return client.call(method, params)


def drop_absent(params: dict[str, Any]) -> dict[str, Any]:
    """`params` without those that were not given (None, an empty tuple): on the wire absent differs from null."""
    return {name: value for name, value in params.items() if value is not None and value != ()}


def _say_once(attempt: int) -> None:
    if attempt == 1:
        sys.stderr.write("reconnecting…\n")
        sys.stderr.flush()
