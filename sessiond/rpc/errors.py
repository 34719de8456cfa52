"""Typed errors on the wire: slug -> JSON-RPC code and HTTP status. The only module that has these numbers.

Knows nothing of methods or transports.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.errors import SessiondError

# Source: protocol.md, "JSON-RPC details". Tests compare against literal numbers.
_TABLE: dict[str, tuple[int, int]] = {
    "parse_error": (-32700, 400),
    "invalid_request": (-32600, 400),
    "method_not_found": (-32601, 404),
    "invalid_params": (-32602, 400),
    "internal": (-32603, 500),
    "unauthenticated": (-32001, 401),
    "not_found": (-32002, 404),
    "forbidden": (-32003, 403),
    "conflict": (-32004, 409),
    "limit_exceeded": (-32005, 413),
    "unsupported": (-32006, 422),
    "overloaded": (-32007, 503),
    "stopping": (-32008, 503),
    "storage": (-32009, 507),
    "cancelled": (-32800, 499),
}
_STATUS_OF_CODE = dict(_TABLE.values())
_RETRY_AFTER_MS = 1000  # where the raiser of Overloaded or Stopping gave no `retryAfterMs`


class ErrorObject(msgspec.Struct, frozen=True):
    """The `error` member of an answer. `data` is `{type, code?, retryAfterMs?, ...}`."""

    code: int
    message: str
    data: dict[str, Any]


def code_of(slug: str) -> int:
    """The JSON-RPC code of a slug; an unknown slug is an internal error."""
    return _TABLE.get(slug, _TABLE["internal"])[0]


def status_of(slug: str) -> int:
    """The HTTP status of a slug."""
    return _TABLE.get(slug, _TABLE["internal"])[1]


def status_of_code(code: int) -> int:
    """The HTTP status of a JSON-RPC code, 500 for a code that is not in the table."""
    return _STATUS_OF_CODE.get(code, 500)


def error_object(error: SessiondError) -> ErrorObject:
    """The wire form of a typed error.

    `data` has everything in `error.data`, except that `type` and `code` cannot be overridden.
    """
    data: dict[str, Any] = {**error.data, "type": error.slug}
    if error.code is not None:
        data["code"] = error.code
    if error.slug in ("overloaded", "stopping"):
        data.setdefault("retryAfterMs", _RETRY_AFTER_MS)
    return ErrorObject(code_of(error.slug), error.message, data)


def wire_errors() -> list[dict[str, Any]]:
    """Every error that a method may answer with, as OpenRPC error objects."""
    return [{"code": code, "message": slug, "data": {"type": slug}} for slug, (code, _) in _TABLE.items()]
