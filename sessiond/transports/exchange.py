"""An HTTP request and its answer, as handlers see them. Knows no sockets and no h11."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from sessiond.errors import SessiondError
from sessiond.model.caller import Caller
from sessiond.rpc.budget import Share
from sessiond.rpc.errors import error_object, status_of

if TYPE_CHECKING:
    from sessiond.transports.sse import EventStream

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, its body read. `params` are the `{name}` parts of the route, decoded; `headers` in lower case.

    `unsent` is what its body and its answer have of the budget, until the answer is sent.
    """

    method: str
    path: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: Caller
    unsent: list[Share] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole answer."""

    status: int
    body: bytes = b""
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EventStreamAnswer:
    """An answer of Server-Sent Events: `run` writes them, and the stream ends when it returns or the client goes.

    An error that it raises ends the stream; check what can be refused before this is returned.
    """

    run: Callable[[EventStream], Awaitable[None]]


Answer = HttpResponse | EventStreamAnswer
Handler = Callable[[HttpRequest], Awaitable[Answer]]


class HttpError(Exception):
    """A refusal that only HTTP knows (405, 408, 415, 426 ...). `kind` is `error.type` of the body."""

    def __init__(self, status: int, kind: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = headers


def json_response(value: Any, status: int = 200) -> HttpResponse:
    """`value` as JSON."""
    return HttpResponse(status, msgspec.json.encode(value))


def error_response(error: SessiondError | HttpError) -> HttpResponse:
    """`{"ok": false, "error": {"type", "message", ...}}`, and the status of the error table.

    Source: protocol.md, "HTTP".
    """
    if isinstance(error, HttpError):
        body: dict[str, Any] = {"type": error.kind, "message": error.message}
        return HttpResponse(error.status, msgspec.json.encode({"ok": False, "error": body}), headers=error.headers)
    found = error_object(error)
    headers: list[tuple[str, str]] = []
    if error.slug == "unauthenticated":
        headers.append(("WWW-Authenticate", "Bearer"))
    if (retry_ms := found.data.get("retryAfterMs")) is not None:
        headers.append(("Retry-After", str(-(-int(retry_ms) // 1000))))
    body = {**found.data, "message": found.message}
    return HttpResponse(
        status_of(error.slug), msgspec.json.encode({"ok": False, "error": body}), headers=tuple(headers)
    )
