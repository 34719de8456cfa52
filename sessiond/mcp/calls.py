"""One tool call: asked of the daemon, waited for as long as the tool says, over restarts of the daemon.

Knows the seat and the methods' parameters. Does not know MCP.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from typing import Any

import trio

from sessiond.client import ClientError, ConnectionLost, DaemonNotRunning, RpcError
from sessiond.client.retry import Backoff
from sessiond.mcp.seat import ANSWER_S, Seat

Params = dict[str, Any]

# What the documents say where nothing is given.
DEFAULT_WAIT_S = 30.0
MAX_WAIT_S = 86_400.0
# Agent programs hand a model the whole answer; the daemon's own default, a megabyte, is more than it can hold.
HISTORY_BYTES = 64 * 1024
# systemd has a killed daemon back in a second; one that was stopped on purpose is said to be so after this long.
PATIENCE_S = 5.0


class Call:
    """What is asked. `wait_s` is how long it may rightly take, 0 where it does not wait at all.

    `request(left_s)` gives method and params with so much time left: whoever asks again does not wait anew.
    """

    def __init__(self, wait_s: float, request: Callable[[float], tuple[str, Params]]) -> None:
        self.wait_s = wait_s
        self.request = request


def call_of(tool: str, arguments: Params) -> Call:
    """The call that a tool stands for."""
    if tool == "sessions_wait":
        return _waiting(arguments)
    if tool == "sessions_inbox":
        return Call(_seconds(arguments.get("wait"), 0.0), lambda left_s: (tool, _with(arguments, "wait", left_s)))
    if tool == "sessions_send":
        # With a key of its own it may be asked again after a lost connection, and is still said once.
        keyed = {"idempotencyKey": f"mcp-{uuid.uuid4()}", **arguments}
        wait_s = _seconds(arguments.get("timeoutSeconds"), DEFAULT_WAIT_S)
        return Call(wait_s, lambda left_s: (tool, _with(keyed, "timeoutSeconds", left_s)))
    if tool == "sessions_spawn":
        keyed = {"idempotencyKey": f"mcp-{uuid.uuid4()}", **arguments}
        return Call(0.0, lambda _left_s: (tool, keyed))
    if tool == "sessions_history":
        return Call(0.0, lambda _left_s: (tool, {"maxBytes": HISTORY_BYTES, **arguments}))
    return Call(0.0, lambda _left_s: (tool, arguments))


def _waiting(arguments: Params) -> Call:
    others = {name: value for name, value in arguments.items() if name != "timeoutSeconds"}
    given = arguments.get("timeoutSeconds")
    if given is not None and not _is_number(given):
        # The daemon says what is wrong with it, in its own words.
        return Call(0.0, lambda _left_s: ("agent.wait", {**others, "timeoutMs": given}))
    return Call(_seconds(given, DEFAULT_WAIT_S), lambda left_s: ("agent.wait", {**others, "timeoutMs": left_s * 1000}))


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


async def ask(seat: Seat, call: Call) -> Any:
    """The daemon's answer. ClientError where there is none; RpcError has the daemon's own words."""
    deadline = trio.current_time() + call.wait_s
    troubled_since = math.inf
    backoff = Backoff()
    renewed = False
    while True:
        began = trio.current_time()
        left_s = max(0.0, deadline - began)
        method, params = call.request(left_s)
        client = None
        try:
            client = await seat.client()
            answer = await client.call(method, params, timeout_s=left_s + ANSWER_S)
        except RpcError as error:
            if error.slug == "unauthenticated" and client is not None and not renewed and seat.give_up(client):
                renewed = True
                continue
            if error.slug != "stopping":
                raise
            trouble: ClientError = error
        except (ConnectionLost, DaemonNotRunning) as error:
            trouble = error
        else:
            seat.was_taken = True
            return answer
        now = trio.current_time()
        if troubled_since == math.inf or now - began >= PATIENCE_S:
            troubled_since = now
            backoff.reset()
        # One that was never there is not coming back.
        if not seat.was_taken or now - troubled_since >= PATIENCE_S:
            raise trouble
        await trio.sleep(backoff.next_s())
