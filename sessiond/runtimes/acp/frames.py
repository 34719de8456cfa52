"""The frames of the Agent Client Protocol: JSON-RPC 2.0, one object a line. Sans-io: bytes in, frames out.

Knows JSON-RPC. Does not know methods, processes or what a frame means. Agents print banners and warnings between their
frames: what is no frame is counted and left out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.model import lax
from sessiond.model.decoding_cost import MAX_NESTING, find_long_excess, is_too_deep
from sessiond.runtimes.output import ENVELOPE_BYTES, decode_object
from sessiond.runtimes.presets.fields import text

RequestId = int | str | None
AUTH_REQUIRED, METHOD_NOT_FOUND, INTERNAL_ERROR = -32000, -32601, -32603
# How much of a line that is no frame is kept for an error.
_SAMPLE_BYTES = 200
# What is nested deeper is left out: a record, which may nest it some levels deeper, could not be stored.
_MAX_LEVELS = MAX_NESTING - 28
_TOO_DEEP = "(left out: nested too deeply)"


class FrameTooLong(Exception):
    """A line over the limit. What follows it cannot be told from its rest, so nothing more is read."""


class AgentRequest(msgspec.Struct, frozen=True, gc=False):
    """A request of the agent. The id is in a space of its own and usually starts at 0, as ours does."""

    id: RequestId
    method: str
    params: dict[str, Any]


class AgentNotification(msgspec.Struct, frozen=True, gc=False):
    """A notification of the agent."""

    method: str
    params: dict[str, Any]


class AgentResponse(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request of ours. `code` is None for a success, whose `result` may be null."""

    id: int
    result: Any = None
    code: int | None = None
    message: str = ""


AgentFrame = AgentRequest | AgentNotification | AgentResponse


class LineSplitter:
    """Splits a stream into lines without their newline. FrameTooLong for one of over `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in this piece."""
        *lines, rest = data.split(b"\n")
        found = [self._complete(line) for line in lines]
        self._keep(rest)
        return found

    def end(self) -> list[bytes]:
        """The last line, if the stream ended without a newline."""
        last = self._complete(b"")
        return [last] if last else []

    def _keep(self, piece: bytes) -> None:
        self._rest_bytes += len(piece)
        if self._rest_bytes > self._max_bytes:
            raise FrameTooLong
        if piece:
            self._rest.append(piece)

    def _complete(self, piece: bytes) -> bytes:
        self._keep(piece)
        # Joined once: appending to one bytes object would copy it at every read.
        line, self._rest, self._rest_bytes = b"".join(self._rest), [], 0
        return line


def parse_frame(line: bytes) -> AgentFrame | None:
    """The frame in a line; None if there is none. Never raises."""
    if find_long_excess(line, ENVELOPE_BYTES) is not None:
        return None
    item = decode_object(line)
    if item is None:
        mended = lax.mend_surrogates(line)
        item = decode_object(mended) if mended != line else None
    if item is None:
        return None
    if is_too_deep(line):
        item = {name: _prune(value, _MAX_LEVELS) for name, value in item.items()}
    method, params = item.get("method"), item.get("params")
    if isinstance(method, str):
        known = params if isinstance(params, dict) else {}
        if "id" not in item:
            return AgentNotification(method, known)
        request_id = item["id"]
        is_id = request_id is None or (isinstance(request_id, int | str) and not isinstance(request_id, bool))
        return AgentRequest(request_id, method, known) if is_id else None
    response_id = item.get("id")
    if not isinstance(response_id, int) or isinstance(response_id, bool):
        return None
    if "error" in item and item["error"] is not None:
        return _refusal(response_id, item["error"])
    # `result` may be absent: some agents leave out a null.
    return AgentResponse(response_id, item.get("result"))


def _prune(value: Any, levels: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return _TOO_DEEP
    if isinstance(value, list):
        return [_prune(one, levels - 1) for one in value]
    return {name: _prune(one, levels - 1) for name, one in value.items()}


def _refusal(response_id: int, error: Any) -> AgentResponse:
    code = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    # Several agents say `Internal error` and what it was in the data.
    details = error.get("data") if isinstance(error, dict) else None
    more = details if isinstance(details, str) else text(details, "details") or text(details, "message")
    if more and isinstance(message, str) and more not in message:
        message = f"{message}: {more}"
    is_code = isinstance(code, int) and not isinstance(code, bool)
    said = message[:2048] if isinstance(message, str) else ""
    return AgentResponse(response_id, code=code if is_code else INTERNAL_ERROR, message=said)


def sample_of(line: bytes) -> str:
    """The beginning of a line that is no frame, for an error."""
    return line[:_SAMPLE_BYTES].decode("utf-8", "replace").strip()


def encode_request(request_id: int, method: str, params: dict[str, Any]) -> bytes:
    """A request of ours, as a line."""
    return _line({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def encode_notification(method: str, params: dict[str, Any]) -> bytes:
    """A notification of ours, as a line."""
    return _line({"jsonrpc": "2.0", "method": method, "params": params})


def encode_result(request_id: RequestId, result: Any) -> bytes:
    """Our answer to a request of the agent, as a line."""
    return _line({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: RequestId, code: int, message: str) -> bytes:
    """Our refusal of a request of the agent, as a line."""
    return _line({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}})


def _line(frame: dict[str, Any]) -> bytes:
    return msgspec.json.encode(frame) + b"\n"
