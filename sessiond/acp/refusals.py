"""Errors as an editor gets them: the protocol's numbers, and sentences for people. Pure."""

from __future__ import annotations

from typing import Any

from sessiond.acp import frames
from sessiond.client import ClientError, DaemonNotRunning, RpcError

# An ordinary call takes milliseconds; this allows for a busy machine.
CALL_S = 30.0
START_HINT = "start it with: systemctl --user start sessiond (or: sessiond serve)"

_CODES = {
    "not_found": frames.NOT_FOUND,
    "invalid_params": frames.INVALID_PARAMS,
    "limit_exceeded": frames.INVALID_PARAMS,
    "unauthenticated": frames.AUTH_REQUIRED,
}


class Refusal(Exception):
    """An error answer to a request of the editor."""

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


def refusal_of(error: ClientError) -> Refusal:
    """The answer for an error of the client library."""
    if isinstance(error, RpcError):
        data = {"type": error.slug, **({"code": error.reason} if error.reason else {})}
        message = error.message.replace("`sessions_list`", "session/list")
        return Refusal(_CODES.get(error.slug, frames.INTERNAL_ERROR), message, data)
    if isinstance(error, DaemonNotRunning):
        return Refusal(frames.INTERNAL_ERROR, f"{error}; {START_HINT}", {"type": "not_running"})
    return Refusal(frames.INTERNAL_ERROR, str(error))


def refuse_unopened(session_id: str) -> Refusal:
    """The answer to a request for a session that the editor has not opened."""
    text = f"the session {session_id[:200]} is not open here: session/load or session/resume opens it"
    return Refusal(frames.NOT_FOUND, text, {"type": "not_found"})


def require_text(params: dict[str, Any], name: str) -> str:
    """A parameter that is text and not empty. Refusal."""
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise Refusal(frames.INVALID_PARAMS, f"`{name}` is missing or no text")
    if not is_writable(value):
        raise Refusal(frames.INVALID_PARAMS, f"`{name}` has half a character (a lone surrogate)")
    return value


def is_writable(text: str) -> bool:
    """Whether the text can be written as UTF-8, which the half of a character cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_folder(params: dict[str, Any]) -> str:
    """The parameter `cwd`. Refusal where it is no absolute path."""
    cwd = require_text(params, "cwd")
    if not cwd.startswith("/") or "\0" in cwd:
        raise Refusal(frames.INVALID_PARAMS, "`cwd` is to be an absolute path")
    return cwd
