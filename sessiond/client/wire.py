"""JSON-RPC 2.0 as lines of JSON, on the client's side. Knows bytes and messages. Sans-io."""

from __future__ import annotations

import json

from sessiond.client.errors import ClientError, RpcError
from sessiond.errors import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

INTERNAL = -32603
METHOD_NOT_FOUND = -32601
CANCELLED = -32800

_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class CallResponse:
    """The answer to a request of the client: `error` where it failed, else `result`."""

    __slots__ = ("error", "id", "result")

    def __init__(self, request_id: int | None, result: Any, error: RpcError | None) -> None:
        self.id = request_id
        self.result = result
        self.error = error


class DaemonRequest:
    """A request of the daemon, to be answered with the same id."""

    __slots__ = ("id", "method", "params")

    def __init__(self, request_id: int | str, method: str, params: dict[str, Any]) -> None:
        self.id = request_id
        self.method = method
        self.params = params


class Event:
    """A notification of the daemon: `name` (`session.message`) and its `params`; `event["message"]` reads a param."""

    __slots__ = ("name", "params")

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        self.name = name
        self.params = params

    def __getitem__(self, field: str) -> Any:
        return self.params[field]

    def get(self, field: str, default: Any = None) -> Any:
        return self.params.get(field, default)

    def __repr__(self) -> str:
        return f"Event({self.name!r}, {self.params!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and (self.name, self.params) == (other.name, other.params)

    __hash__ = None  # type: ignore[assignment]  # params are mutable


Incoming = CallResponse | DaemonRequest | Event


class JsonRpcWire:
    """The framing and the request ids of one connection. `parse` is `decode`, or what does the same faster."""

    def __init__(self, parse: Callable[[bytes], Incoming] | None = None) -> None:
        self._parse = parse or decode
        self._next_id = 0
        self._parts: list[bytes] = []

    def request(self, method: str, params: dict[str, Any]) -> tuple[int, bytes]:
        """The id to wait for and the bytes to send."""
        self._next_id += 1
        return self._next_id, encode(
            {"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params},
        )

    def outgoing(self, line: bytes) -> bytes:
        """How a message goes out that is a line as `notification`, `answer` and `refusal` make it."""
        return line

    def feed(self, data: bytes) -> list[Incoming]:
        """The messages that `data` completes; what follows the last newline is kept for the next call."""
        head, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._parts.append(data)
            return []
        block = b"".join([*self._parts, head])
        self._parts = [rest] if rest else []
        return [self._parse(line) for line in block.split(b"\n") if line.strip()]


def encode(message: dict[str, Any]) -> bytes:
    """One message as one line. Lone surrogates, which UTF-8 cannot encode, become JSON escapes."""
    text = _dump(message)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def notification(method: str, params: dict[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def answer(request_id: int | str, result: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def refusal(request_id: int | str, error: RpcError) -> bytes:
    data = {"type": error.slug, **error.data}
    return encode(
        {"jsonrpc": "2.0", "id": request_id, "error": {"code": error.code, "message": error.message, "data": data}}
    )


def no_such_method(method: str) -> RpcError:
    return RpcError(METHOD_NOT_FOUND, "method_not_found", f"this client does not answer {method}")


def decode(line: bytes) -> Incoming:
    """The message in one line of the daemon. Raises ClientError where it is no JSON-RPC message."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise ClientError(f"the daemon sent a line that is not JSON: {_quote_line(line)}") from None
    return incoming_of(message)


def incoming_of(message: Any) -> Incoming:
    """What a decoded message of the daemon is. Raises ClientError where it is no JSON-RPC message."""
    if not isinstance(message, dict):
        raise ClientError(f"the daemon sent what is no JSON-RPC message: {quote(str(message)[:80])}")
    method = message.get("method")
    if isinstance(method, str):
        params = message.get("params")
        given = params if isinstance(params, dict) else {}
        request_id = message.get("id")
        return Event(method, given) if request_id is None else DaemonRequest(request_id, method, given)
    return CallResponse(message.get("id"), message.get("result"), _error(message.get("error")))


def _quote_line(line: bytes) -> str:
    return quote(line[:80].decode("utf-8", "replace"))


def _error(error: Any) -> RpcError | None:
    if error is None:
        return None
    if not isinstance(error, dict):
        return RpcError(INTERNAL, "internal", "the daemon sent an error that is no JSON-RPC error")
    data = error.get("data")
    given = dict(data) if isinstance(data, dict) else {}
    code = error.get("code")
    return RpcError(
        code if isinstance(code, int) else INTERNAL,
        str(given.pop("type", "internal")),
        str(error.get("message", "")),
        given,
    )
