"""Typed errors: a slug, a sentence that may leave the daemon, and data for programs. Knows no numeric codes.

`rpc/errors.py` maps the slugs to JSON-RPC codes and HTTP statuses. A message never holds a path outside the
store, a secret or a traceback.
"""

from __future__ import annotations

import errno

# Not imported from typing, which would slow down the start of the command line.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

# How much of a caller's text an error quotes at most.
MAX_QUOTED_CHARS = 120


def quote(text: str) -> str:
    """`text` in quotes, short and on one line, for an error sentence."""
    return f"'{shorten(text)}'"


def pluralize(count: int, noun: str, plural: str | None = None) -> str:
    """`1 session`, `2 sessions`; `plural` if it is not formed with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def shorten(text: str) -> str:
    """`text` short and on one line."""
    return printable(text if len(text) <= MAX_QUOTED_CHARS else text[: MAX_QUOTED_CHARS - 1] + "…")


def printable(text: str) -> str:
    """`text` with characters escaped that could control a terminal."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def reason_of(error: BaseException) -> str:
    """The text of an error of the operating system, without its number, its path and the words of Python."""
    if isinstance(error, OSError):
        return error.strerror or "input/output error"
    return str(error) or "it was closed"


def reason_of_reader(error: BaseException) -> str:
    """Why something could not be parsed, in the words of its parser (JSON, CBOR, TOML), without those of Python."""
    message = str(error)
    if isinstance(error, UnicodeError):
        return "it has bytes that are not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if "set_int_max_str_digits" in message:
        return "it has a number of too many digits"
    if "Duplicate map key" in message:
        return "a map has a key twice"
    if "map key must be" in message:
        return "it has a map key that is no text string"
    return message if message and not any(mark in message for mark in _PYTHONS) else "it cannot be read"


# In what libraries say for programmers, and in no sentence of theirs for people.
_PYTHONS = ("sys.", "codec can't", "<class", "object at 0x", "Error(", "Type", "__", "()")


class SessiondError(Exception):
    """An error with a defined answer.

    `message` is a sentence for a person: what happened, to which thing, what to do next. `code` is the fine-grained
    reason in the documents' words (`attachments_invalid_name`). `data` is for programs and travels in `error.data`.
    """

    slug: ClassVar[str] = "internal"

    def __init__(self, message: str, *, code: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data: dict[str, Any] = data


class ParseError(SessiondError):
    slug = "parse_error"


class InvalidRequest(SessiondError):
    slug = "invalid_request"


class MethodNotFound(SessiondError):
    slug = "method_not_found"


class InvalidParams(SessiondError):
    """A parameter is wrong. The message names it the way msgspec does: `$.attachments[0].name`."""

    slug = "invalid_params"


class InternalError(SessiondError):
    slug = "internal"


class Unauthenticated(SessiondError):
    slug = "unauthenticated"


class NotFound(SessiondError):
    """Unknown, or not visible to this caller: one answer for both."""

    slug = "not_found"


class Forbidden(SessiondError):
    slug = "forbidden"


class Conflict(SessiondError):
    slug = "conflict"


class LimitExceeded(SessiondError):
    """A limit was exceeded. `data` names it with its value: `limit="limits.maxFrameBytes", value=16777216`."""

    slug = "limit_exceeded"


class Unsupported(SessiondError):
    slug = "unsupported"


class Overloaded(SessiondError):
    """Try again after `data["retryAfterMs"]`."""

    slug = "overloaded"


class NoThread(OSError):
    """No thread can be started. Temporary: other processes of the same user may have used up what it is allowed."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "no thread can be started")


# What to do where no thread can be started, as the end of a sentence.
ALLOW_THREADS = "let its user have more processes and threads (ulimit -u, or TasksMax= of the service), or end some"


def no_memory(error: BaseException | None = None) -> Overloaded:
    """The error for a request for which the machine has no memory left, or no thread where `error` says so."""
    if isinstance(error, NoThread):
        sentence = f"sessiond cannot start a thread for this; try again in a moment, or {ALLOW_THREADS}"
    else:
        sentence = "sessiond has no memory left for this; ask for less at once, or try again in a moment"
    return Overloaded(sentence, retryAfterMs=1000)


def lacks_memory(error: BaseException) -> bool:
    """Whether the error, or each one of a group, means that the machine has no memory or no thread left."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(lacks_memory, error.exceptions))
    return isinstance(error, MemoryError) or getattr(error, "errno", None) in (errno.ENOMEM, errno.EAGAIN)


class Stopping(SessiondError):
    slug = "stopping"


def stopped_early() -> Stopping:
    """The error for a request that had begun when the daemon stopped, so that what it was writing may be stored."""
    return Stopping(
        "The daemon is stopping before this has ended: it may have been done or not. Look first when it is"
        " back, unless doing it twice is no harm.",
        begun=True,
    )


class StorageError(SessiondError):
    """Disk full or an I/O error: nothing was acknowledged."""

    slug = "storage"


class ReadShortage(StorageError):
    """Nothing can be read for want of descriptors, threads or memory: for clients the same as Overloaded."""

    slug = Overloaded.slug


class TranscriptMissing(StorageError):
    """The file of a transcript is not where it was."""


class RequestCancelled(SessiondError):
    slug = "cancelled"


class ConfigError(Exception):
    """The configuration or the environment cannot be used: the daemon exits 78 with this sentence."""


class StoreGone(Exception):
    """The store is not at its path any more: exit 74 with this sentence; the service manager restarts the daemon."""


class StoreInUse(Exception):
    """Another process holds the store: exit 69 with this sentence, which names the holder."""
