"""The errors of the client library. Knows no exit codes and prints nothing."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` alone costs a tenth of the command line's start
if TYPE_CHECKING:
    from typing import Any


class ClientError(Exception):
    """The base class of all errors that this library raises on purpose."""


class DaemonNotRunning(ClientError):
    """No daemon listens at `path`."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"sessiond is not running ({why} at {path})")
        self.path = path
        self.why = why


class ConnectionLost(ClientError):
    """The connection ended before the answer came. The request may or may not have been carried out."""


class NotSent(ConnectionLost):
    """The connection ended before the whole request was sent: the daemon has not carried it out."""


class CallTimeout(ClientError):
    """No answer within the caller's own limit. What the request has started goes on in the daemon."""


class BadEnvironment(ClientError):
    """The socket path or the token file cannot be used; the message names it."""


class NotPermitted(ClientError):
    """The operating system refused the connection: the socket belongs to another user."""


class BadAttachment(ClientError):
    """A file to be attached cannot be read; the message names it."""


class RpcError(ClientError):
    """An error answer of the daemon.

    `code` is the number, `slug` the word in `data.type` (`not_found`), `message` a sentence for people and `data` all
    other members; `reason` is the more specific word (`attachments_invalid_name`), if any. Handlers of the daemon's
    requests raise it to answer with an error. Source: protocol.md, "JSON-RPC details".
    """

    def __init__(self, code: int, slug: str, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.slug = slug
        self.message = message
        self.data: dict[str, Any] = data or {}

    @property
    def reason(self) -> str | None:
        reason = self.data.get("code")
        return reason if isinstance(reason, str) else None
