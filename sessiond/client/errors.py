"""What can go wrong for a client, as typed errors. Knows no exit codes and prints nothing."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` alone costs a tenth of the command line's start
if TYPE_CHECKING:
    from typing import Any


class ClientError(Exception):
    """The root of everything that this library raises on purpose."""


class DaemonNotRunning(ClientError):
    """Nobody listens at `path`."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"sessiond is not running ({why} at {path})")
        self.path = path
        self.why = why


class ConnectionLost(ClientError):
    """The connection ended before the answer came. What was asked may or may not have been done."""


class NotSent(ConnectionLost):
    """The connection ended before all of the request was handed over: the daemon has done nothing of it."""


class CallTimeout(ClientError):
    """No answer within the caller's own limit. What was asked goes on in the daemon."""


class BadEnvironment(ClientError):
    """The path of the socket or the file with the token cannot be used; the sentence names it."""


class NotPermitted(ClientError):
    """The operating system does not let us connect: the socket is another user's."""


class BadAttachment(ClientError):
    """A file that was to be handed over cannot be read; the sentence names it."""


class RpcError(ClientError):
    """The daemon's own answer that it could not do what was asked.

    `code` is the number, `slug` the word of `data.type` (`not_found`), `message` the sentence for a person and `data`
    everything else; `reason` is the fine-grained word (`attachments_invalid_name`) where there is one. A handler of
    a daemon's request raises it to answer with an error. Source: protocol.md, "JSON-RPC details".
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
