"""An HTTP request and its response, as handlers see them. Knows no sockets and no h11."""

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
    """One request with its whole body. `params` are the decoded `{name}` parts of the route; `headers` are lower case.

    `unsent` are the budget shares of its body and its response, held until the response is sent.
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
    """A whole response."""

    status: int
    body: bytes = b""
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EventStreamAnswer:
    """A response of Server-Sent Events: `run` writes them; the stream ends when it returns or the client closes.

    An error in `run` ends the stream, so whatever can be refused must be checked before.
    """

    run: Callable[[EventStream], Awaitable[None]]


Answer = HttpResponse | EventStreamAnswer
Handler = Callable[[HttpRequest], Awaitable[Answer]]


class HttpError(Exception):
    """An error that exists in HTTP only (405, 408, 415, 426 ...). `kind` is `error.type` in the body."""

    def __init__(self, status: int, kind: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = headers


def json_response(value: Any) -> HttpResponse:
    """200 with `value` as JSON."""
    return HttpResponse(200, msgspec.json.encode(value))


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
