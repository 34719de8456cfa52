"""One tool call: asked of the daemon, waited for as long as the tool says, over restarts of the daemon.

Knows the daemon connection and the methods' parameters. Does not know MCP.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from sessiond.client import Cancellation, ClientError, ConnectionLost, DaemonNotRunning, RpcError
from sessiond.client.files import attachment
from sessiond.client.retry import Backoff
from sessiond.mcp.daemon_connection import ANSWER_S

Params = dict[str, Any]

# What the documents say where nothing is given.
DEFAULT_WAIT_S = 30.0
MAX_WAIT_S = 86_400.0
# Agent programs hand a model the whole answer; the daemon's own default, a megabyte, is more than it can hold.
HISTORY_BYTES = 64 * 1024
# systemd has a killed daemon back in a second; one that was stopped on purpose is said to be so after this long.
PATIENCE_S = 5.0


class CallableClient(Protocol):
    """What is needed of a client of the daemon."""

    def call(self, method: str, params: Params, /, *, timeout_s: float, cancellation: Cancellation | None) -> Any: ...


class Connection(Protocol):
    """What is needed of the connection to the daemon (`DaemonConnection`)."""

    was_there: bool

    def client(self) -> CallableClient: ...
    def give_up(self, client: Any) -> bool: ...


class ToolCall:
    """What is asked. `wait_s` is how long it may rightly take, 0 where it does not wait at all.

    `request(left_s)` gives method and params with so much time left: whoever asks again does not wait anew.
    """

    def __init__(self, wait_s: float, request: Callable[[float], tuple[str, Params]]) -> None:
        self.wait_s = wait_s
        self.request = request


def call_of(tool: str, arguments: Params) -> ToolCall:
    """The call that a tool stands for. BadAttachment where a file that it names cannot be read."""
    # A model that writes null means that it says nothing.
    given = {name: value for name, value in arguments.items() if value is not None}
    if tool == "sessions_wait":
        return _wait_for_run(given)
    if tool == "sessions_inbox":
        return ToolCall(_seconds(given.get("wait"), 0.0), lambda left_s: (tool, _with(given, "wait", left_s)))
    if tool == "sessions_send":
        # With a key of its own it may be asked again after a lost connection, and is still said once.
        keyed = {"idempotencyKey": f"mcp-{uuid.uuid4()}", **given}
        wait_s = _seconds(given.get("timeoutSeconds"), DEFAULT_WAIT_S)
        return ToolCall(wait_s, lambda left_s: (tool, _with(keyed, "timeoutSeconds", left_s)))
    if tool == "sessions_spawn":
        keyed = {"idempotencyKey": f"mcp-{uuid.uuid4()}", **_with_files(given)}
        return ToolCall(0.0, lambda _left_s: (tool, keyed))
    if tool == "sessions_history":
        return ToolCall(0.0, lambda _left_s: (tool, {"maxBytes": HISTORY_BYTES, **given}))
    return ToolCall(0.0, lambda _left_s: (tool, given))


def _with_files(arguments: Params) -> Params:
    """The arguments with the content of each attachment that is given by its path."""
    attachments = arguments.get("attachments")
    if not isinstance(attachments, list):
        return arguments  # the daemon says what is wrong with it, in its own words
    return {**arguments, "attachments": [_read(one) for one in attachments]}


def _read(given: Any) -> Any:
    if not isinstance(given, dict) or not isinstance(given.get("path"), str) or "content" in given:
        return given
    name = given.get("name")
    others = {field: value for field, value in given.items() if field not in ("path", "name", "encoding")}
    return {**others, **attachment(given["path"], name if isinstance(name, str) else None)}


def _wait_for_run(arguments: Params) -> ToolCall:
    others = {name: value for name, value in arguments.items() if name != "timeoutSeconds"}
    given = arguments.get("timeoutSeconds")
    if given is not None and not _is_number(given):
        # The daemon says what is wrong with it, in its own words.
        return ToolCall(0.0, lambda _left_s: ("agent.wait", {**others, "timeoutMs": given}))
    wait_s = _seconds(given, DEFAULT_WAIT_S)
    return ToolCall(wait_s, lambda left_s: ("agent.wait", {**others, "timeoutMs": left_s * 1000}))


def _with(arguments: Params, name: str, left_s: float) -> Params:
    """The arguments with what is left of the wait. What is no number stays, for the daemon to say so."""
    given = arguments.get(name)
    if given is not None and not _is_number(given):
        return arguments
    left = math.ceil(left_s)
    return {**arguments, name: left if given is None else min(given, left)}


def _seconds(given: Any, default: float) -> float:
    return min(max(0.0, float(given)), MAX_WAIT_S) if _is_number(given) else default


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def ask(
    connection: Connection,
    call: ToolCall,
    cancellation: Cancellation,
    *,
    now: Callable[[], float] = time.monotonic,
) -> Any:
    """The daemon's answer. ClientError where there is none; RpcError has the daemon's own words.

    After a cancellation it returns or raises soon, with whatever it has; nobody wants it any more.
    """
    deadline = now() + call.wait_s
    troubled_since = math.inf
    backoff = Backoff()
    renewed = False
    while True:
        began = now()
        left_s = max(0.0, deadline - began)
        method, params = call.request(left_s)
        client = None
        try:
            client = connection.client()
            answer = client.call(method, params, timeout_s=left_s + ANSWER_S, cancellation=cancellation)
        except RpcError as error:
            if error.slug == "unauthenticated" and client is not None and not renewed and connection.give_up(client):
                renewed = True
                continue
            if error.slug != "stopping":
                raise
            trouble: ClientError = error
        except (ConnectionLost, DaemonNotRunning) as error:
            trouble = error
        else:
            connection.was_there = True
            return answer
        failed_at = now()
        if troubled_since == math.inf or failed_at - began >= PATIENCE_S:
            troubled_since = failed_at
            backoff.reset()
        # One that was never there is not coming back.
        if not connection.was_there or failed_at - troubled_since >= PATIENCE_S:
            raise trouble
        if cancellation.wait(backoff.next_s()):
            raise trouble
