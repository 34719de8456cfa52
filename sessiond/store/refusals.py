"""The errors for callers whose records cannot be stored or read, because of the disk or of another program."""

from __future__ import annotations

import errno

from sessiond.errors import Forbidden, ReadShortage, StorageError, reason_of
from sessiond.model.keys import machine_of
from sessiond.store import dirfd
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
    """Raise Forbidden for a session of another program or machine: sessiond never writes to its file."""
    source, machine = session.folder.source, machine_of(session.key)
    if machine is not None:
        raise Forbidden(
            f"{session.key} is a session of the machine {machine}: it is shown here and changed only there, where its"
            " questions are answered too; `sessions_send` sends it a message",
            code="read_only",
            sessionKey=session.key,
        )
    if source is not None:
        raise Forbidden(
            f"{session.key} is a session of {source}, which sessiond reads and never changes; to go on with it, send it"
            " a message with `sessions_send`: it is continued in a session of sessiond",
            code="read_only",
            sessionKey=session.key,
        )


def read_error(error: OSError, key: str) -> StorageError:
    """The error for a caller who wants to read the transcript of `key`, which cannot be read."""
    again = "; try again in a moment" if dirfd.is_passing(error) else ""
    kind = ReadShortage if dirfd.is_shortage(error) else StorageError
    return kind(f"could not read the transcript of {key}: {reason_of(error)}{again}")


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
