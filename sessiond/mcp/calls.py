"""One tool call: which request it makes to the daemon, and how long it waits for the answer.

Knows the methods' parameters. Does not know MCP, nor how a lost connection is replaced.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from sessiond.client import Cancellation, ClientError, RpcError
from sessiond.client.files import read_attachment
from sessiond.mcp.daemon_connection import ANSWER_S
from sessiond.ranges import SEND_WAIT_S

Params = dict[str, Any]

# Agent programs pass the whole answer to a model. The daemon's default of a mebibyte is too much for its context.
HISTORY_BYTES = 64 * 1024
# How long an agent may take to start and to say whether it has a session, as `startSeconds` has it.
_RESUME_S = 60.0
# Of a session in the list; the rest is for programs, and a model would pay for it in every list.
ROW_FIELDS = (
    "key", "kind", "source", "awaySince", "title", "cwd", "readOnly", "partial", "label", "displayName", "status",
    "queuedRuns", "updatedAt", "messageCount", "model", "spawnedBy", "childSessions", "sandboxed",
    "archived", "messages",
)  # fmt: skip

# The methods of tools that are not called like them.
_METHODS = {"questions_list": "questions.list", "questions_answer": "questions.answer"}

ParamsOf = Callable[[float], Params]


class CallableClient(Protocol):
    """The part of the client library's `Client` that is used here."""

    def call_within(
        self, method: str, params_of: ParamsOf, /, *, timeout_s: float, cancellation: Cancellation
    ) -> Any: ...


class TokenConnection(Protocol):
    """The part of `DaemonConnection` that is used here."""

    def client(self) -> CallableClient: ...
    def drop_client(self, client: Any) -> None: ...


class ToolCall:
    """A request to the daemon. `wait_s` is how long the daemon may wait before it answers; 0: it does not wait.

    `params_of(left_s)` gives the params for a wait of `left_s`, so that a repeated request waits only for the rest.
    """

    def __init__(self, wait_s: float, method: str, params_of: ParamsOf) -> None:
        self.wait_s, self.method, self.params_of = wait_s, method, params_of


def build_call(tool: str, arguments: Params) -> ToolCall:
    """The request that a tool makes. BadAttachment if a file that it names cannot be read."""
    # A model may write null for a parameter that it does not set.
    given = {name: value for name, value in arguments.items() if value is not None}
    if tool == "sessions_wait":
        return _wait_for_run(given)
    if tool == "sessions_inbox":
        return ToolCall(_seconds(given.get("wait"), 0.0), tool, lambda left_s: _with_time_left(given, "wait", left_s))
    if tool == "sessions_send":
        wait_s = _seconds(given.get("timeoutSeconds"), SEND_WAIT_S.default)
        return ToolCall(wait_s, tool, lambda left_s: _with_time_left(given, "timeoutSeconds", left_s))
    if tool == "sessions_spawn":
        given = _with_files(given)
        # The agent may have to be started, to see whether it has the session.
        return ToolCall(_RESUME_S if "resumeSessionId" in given else 0.0, tool, lambda _left_s: given)
    if tool == "sessions_history":
        given = {"maxBytes": HISTORY_BYTES, **given}
    return ToolCall(0.0, _METHODS.get(tool, tool), lambda _left_s: given)


def build_read_call(tool: str, answer: Params) -> ToolCall | None:
    """The request that marks the inbox messages in an answer as read; None if the answer has none."""
    if tool != "sessions_inbox" or not answer.get("messages"):
        return None
    # Imported on first use, to keep the start of the server quick.
    from sessiond.mcp.words import count_shown

    messages = answer["messages"]
    count = count_shown(messages)
    cursor = messages[count - 1]["cursor"] if count < len(messages) else answer["cursor"]
    return ToolCall(0.0, tool, lambda _left_s: {"cursor": cursor})


def useful_part(tool: str, answer: Params) -> Params:
    """The answer without what a model cannot use."""
    rows = answer.get("sessions")
    if tool != "sessions_list" or not isinstance(rows, list):
        return answer
    return {**answer, "sessions": [{name: row[name] for name in ROW_FIELDS if name in row} for row in rows]}


def hint_of(tool: str, call: ToolCall, error: ClientError) -> str:
    """What a model can do where it writes to a session that is not there, which may only not have begun."""
    if tool != "sessions_send" or not isinstance(error, RpcError) or error.reason != "session_not_found":
        return ""
    key = error.data.get("sessionKey") or call.params_of(0.0).get("sessionKey")
    if not isinstance(key, str) or not key.startswith("agent:"):
        return ""
    return (
        f". If nobody has written to it yet, the owner of this machine makes it with: sessiond create {key}; or give"
        " its agent a task with sessions_spawn and `agentId`"
    )


def _with_files(arguments: Params) -> Params:
    """The arguments, with the content of each attachment that is given as a path."""
    attachments = arguments.get("attachments")
    if not isinstance(attachments, list):
        return arguments  # the daemon refuses it with the right error
    return {**arguments, "attachments": [_read(one) for one in attachments]}


def _read(given: Any) -> Any:
    if not isinstance(given, dict) or not isinstance(given.get("path"), str) or "content" in given:
        return given
    name = given.get("name")
    others = {field: value for field, value in given.items() if field not in ("path", "name", "encoding")}
    return {**others, **read_attachment(given["path"], name if isinstance(name, str) else None)}


def _wait_for_run(arguments: Params) -> ToolCall:
    others = {name: value for name, value in arguments.items() if name != "timeoutSeconds"}
    given = arguments.get("timeoutSeconds")
    if given is not None and not _is_number(given):
        # Pass it on: the daemon refuses it with the right error.
        return ToolCall(0.0, "agent.wait", lambda _left_s: {**others, "timeoutMs": given})
    wait_s = _seconds(given, SEND_WAIT_S.default)
    return ToolCall(wait_s, "agent.wait", lambda left_s: {**others, "timeoutMs": left_s * 1000})


def _with_time_left(arguments: Params, name: str, left_s: float) -> Params:
    """The arguments with the wait parameter `name` cut to `left_s`, unless its value is not a number."""
    given = arguments.get(name)
    if given is not None and not _is_number(given):
        return arguments
    left = math.ceil(left_s)
    return {**arguments, name: left if given is None else min(given, left)}


def _seconds(given: Any, default: float) -> float:
    return min(max(0.0, float(given)), SEND_WAIT_S.most) if _is_number(given) else default


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def ask(
    connection: TokenConnection,
    call: ToolCall,
    cancellation: Cancellation,
    *,
    now: Callable[[], float] = time.monotonic,
) -> Any:
    """The daemon's answer. RpcError if it answers with an error, another ClientError if it does not answer.

    After a cancellation it returns or raises soon; the result is not used.
    """
    deadline = now() + call.wait_s
    is_renewed = False
    while True:
        timeout_s = max(0.0, deadline - now()) + ANSWER_S
        client = connection.client()
        try:
            return client.call_within(
                call.method,
                lambda left_s: call.params_of(max(0.0, left_s - ANSWER_S)),
                timeout_s=timeout_s,
                cancellation=cancellation,
            )
        except RpcError as error:
            if error.slug != "unauthenticated" or is_renewed:
                raise
        # The token has expired or was revoked; the next client gets another one.
        connection.drop_client(client)
        is_renewed = True
