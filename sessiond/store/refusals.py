"""The errors for callers whose records cannot be stored, because of the disk or of another program."""

from __future__ import annotations

import errno

from sessiond.errors import Forbidden, StorageError, reason_of
from sessiond.store.catalog import Session


class Unsettled(OSError):
    """Another program changed the file after each attempt, before the written lines could be verified."""

    def __init__(self) -> None:
        super().__init__(errno.EBUSY, "another program keeps changing it")


class StoreDisplaced(OSError):
    """The folder was moved away or replaced by another one."""

    def __init__(self) -> None:
        super().__init__(errno.ENOENT, "its folder is not where it was")


def require_own(session: Session) -> None:
    """Raise Forbidden for a session of another program: sessiond never writes to its file."""
    source = session.folder.source
    if source is not None:
        raise Forbidden(
            f"{session.key} is a session of {source}, which sessiond reads and never changes; to go on with it, send it"
            " a message with `sessions_send`: it is continued in a session of sessiond",
            code="read_only",
            sessionKey=session.key,
        )


def storage_error(error: OSError, key: str) -> StorageError:
    """The error for an append to the transcript of `key` of which nothing was stored."""
    reason, hint = reason_of(error), "Make room or check the disk"
    if isinstance(error, Unsettled):
        hint = "Find out what writes to it"
    elif isinstance(error, StoreDisplaced):
        hint = "Put it back, or wait a moment until what stands there is known"
    return StorageError(
        f"could not write to the transcript of {key}: {reason}; nothing was stored. {hint}, then send again",
        sessionKey=key,
        reason=reason,
    )
