"""The frames of the Agent Client Protocol on the agent's side: one JSON-RPC 2.0 object a line. Does no I/O.

Source: the Agent Client Protocol, version 1, "Transports"; JSON-RPC 2.0.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from sessiond.client import wire
from sessiond.errors import quote

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
AUTH_REQUIRED = -32000
NOT_FOUND = -32002

# The daemon's own default for a message, which a prompt becomes.
MAX_LINE_BYTES = 16 * 1024 * 1024
# In a line that is too long to be parsed, the id is looked for in so many bytes of its beginning and its end.
HEAD_BYTES, TAIL_BYTES = 4096, 512

FrameId = str | int | None
Params = dict[str, Any]

_ID = rb'(-?\d{1,18}|"[^"\\]{0,200}")'
# The members before the first that is neither an id nor a plain text, and the last member of all.
_TEXT_MEMBERS = rb'(?:\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]{0,200}"\s*,)*'
_ID_IN_HEAD = re.compile(rb"\s*\{" + _TEXT_MEMBERS + rb'\s*"id"\s*:\s*' + _ID + rb"\s*[,}]")
_ID_IN_TAIL = re.compile(rb',\s*"id"\s*:\s*' + _ID + rb"\s*\}\s*$")


class EditorRequest:
    """A request of the client, which gets an answer with its id. The protocol allows null as an id."""

    __slots__ = ("id", "method", "params")

    def __init__(self, request_id: FrameId, method: str, params: Params) -> None:
        self.id, self.method, self.params = request_id, method, params


class EditorNotice:
    """A notification of the client, which gets no answer."""

    __slots__ = ("method", "params")

    def __init__(self, method: str, params: Params) -> None:
        self.method, self.params = method, params


class EditorAnswer:
    """The client's answer to a request of ours: `result`, or `error` where it failed."""

    __slots__ = ("error", "id", "result")

    def __init__(self, request_id: FrameId, result: Any, error: Any) -> None:
        self.id, self.result, self.error = request_id, result, error


class BadFrame(Exception):
    """A line that is no frame of the protocol. `answer` is the line to send back."""

    def __init__(self, request_id: FrameId, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = refuse(request_id, code, message)


def parse(line: bytes) -> EditorRequest | EditorNotice | EditorAnswer:
    """The message in a line. BadFrame for anything else."""
    message = _decode(line)
    if not isinstance(message, dict):
        raise BadFrame(None, INVALID_REQUEST, "a message is one JSON object; batches are not taken")
    has_id, given = "id" in message, message.get("id")
    request_id: FrameId = given if _is_id(given) else None
    if has_id and not _is_id(given):
        raise BadFrame(None, INVALID_REQUEST, "`id` is to be text, a whole number or null")
    method, params = message.get("method"), message.get("params")
    if not isinstance(method, str):
        if has_id and ("result" in message) != ("error" in message):
            return EditorAnswer(request_id, message.get("result"), message.get("error"))
        raise BadFrame(request_id, INVALID_REQUEST, "`method` is missing or no text")
    if params is not None and not isinstance(params, dict):
        if not has_id:
            return EditorNotice(method, {})
        raise BadFrame(request_id, INVALID_PARAMS, "`params` is to be an object")
    return EditorRequest(request_id, method, params or {}) if has_id else EditorNotice(method, params or {})


def answer(request_id: FrameId, result: Params) -> bytes:
    """The line with the result of a request."""
    return wire.encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def request(request_id: FrameId, method: str, params: Params) -> bytes:
    """The line of a request to the editor."""
    return wire.encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def notice(method: str, params: Params) -> bytes:
    """The line of a notification."""
    return wire.notification(method, params)


def refuse(request_id: FrameId, code: int, message: str, data: Params | None = None) -> bytes:
    """The line with the error of a request; the id is null where none could be read."""
    error: Params = {"code": code, "message": message}
    if data:
        error["data"] = data
    return wire.encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def refuse_long_line(head: bytes, tail: bytes) -> bytes:
    """The answer to a line over MAX_LINE_BYTES that begins with `head` and ends with `tail`: with the id of its
    request, if that is found, because the client waits for it.
    """
    found = _ID_IN_HEAD.match(head[:HEAD_BYTES]) or _ID_IN_TAIL.search(tail[-TAIL_BYTES:])
    try:
        request_id = json.loads(found[1]) if found is not None else None
    except ValueError:
        request_id = None
    size = MAX_LINE_BYTES // (1024 * 1024)
    return refuse(request_id, INVALID_REQUEST, f"the message is longer than {size} MiB, which is the limit")


def _is_id(value: Any) -> bool:
    return value is None or (isinstance(value, str | int) and not isinstance(value, bool))


def _decode(line: bytes) -> Any:
    try:
        # Decoded first, because `json.loads` takes bytes in UTF-16 and UTF-32 too.
        return json.loads(line.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except _RepeatedName as error:
        raise BadFrame(None, INVALID_REQUEST, f"an object has the name {quote(error.name[:80])} twice") from None
    except (ValueError, RecursionError):
        raise BadFrame(None, PARSE_ERROR, "the line is not JSON") from None


class _RepeatedName(Exception):
    def __init__(self, name: str) -> None:
        self.name = name


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _RepeatedName(name)
            seen.add(name)
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
