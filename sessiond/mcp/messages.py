"""The messages of MCP over standard input and output: one JSON-RPC 2.0 object a line. Does no I/O.

Source: the MCP specification 2025-11-25, "Transports", and JSON-RPC 2.0.
"""

from __future__ import annotations

import json
from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

RequestId = str | int
Params = dict[str, Any]


class ToolClientRequest:
    """A request of the client, which needs an answer."""

    __slots__ = ("id", "method", "params")

    def __init__(self, request_id: RequestId, method: str, params: Params) -> None:
        self.id, self.method, self.params = request_id, method, params


class ToolClientNotice:
    """A notification of the client, which gets no answer."""

    __slots__ = ("method", "params")

    def __init__(self, method: str, params: Params) -> None:
        self.method, self.params = method, params


class MalformedMessage(Exception):
    """A line that is not a request, notification or response. `answer` is the error response to send."""

    def __init__(self, request_id: RequestId | None, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = error(request_id, code, message)


def parse(line: bytes) -> ToolClientRequest | ToolClientNotice | None:
    """The message in a line; None for a response, because the server sends no requests. MalformedMessage."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise MalformedMessage(None, PARSE_ERROR, "the line is not JSON") from None
    if not isinstance(message, dict):
        raise MalformedMessage(None, INVALID_REQUEST, "a message is one JSON object; batches are not taken")
    given_id = message.get("id")
    request_id = given_id if isinstance(given_id, RequestId) and not isinstance(given_id, bool) else None
    method, params = message.get("method"), message.get("params", {})
    if not isinstance(method, str):
        if "result" in message or "error" in message:
            return None
        raise MalformedMessage(request_id, INVALID_REQUEST, "`method` is missing or no text")
    if "id" not in message:
        return ToolClientNotice(method, params if isinstance(params, dict) else {})
    if request_id is None:
        raise MalformedMessage(None, INVALID_REQUEST, "`id` is to be text or a whole number")
    if not isinstance(params, dict):
        raise MalformedMessage(request_id, INVALID_PARAMS, "`params` is to be an object")
    return ToolClientRequest(request_id, method, params)


def result(request_id: RequestId, value: Params) -> bytes:
    """The line with the result of a request."""
    return _line({"jsonrpc": "2.0", "id": request_id, "result": value})


def error(request_id: RequestId | None, code: int, message: str) -> bytes:
    """The line with the error of a request; without an id if none could be read."""
    identified = {} if request_id is None else {"id": request_id}
    return _line({"jsonrpc": "2.0", **identified, "error": {"code": code, "message": message}})


def notification(method: str, params: Params) -> bytes:
    """The line of a notification."""
    return _line({"jsonrpc": "2.0", "method": method, "params": params})


def _line(message: Params) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # lone surrogates cannot be encoded as UTF-8; send them as JSON escapes
        return json.dumps(message, separators=(",", ":")).encode() + b"\n"
