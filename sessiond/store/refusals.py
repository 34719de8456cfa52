"""The errors for callers whose records cannot be stored or read, because of the disk or of another program."""

from __future__ import annotations

import errno

from sessiond.errors import Forbidden, ReadShortage, StorageError, TranscriptMissing, reason_of
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


class Abandoned(OSError):
    """What carried out the append has ended in the middle, by a bug: nobody knows how far it came."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the daemon failed in the middle of it, as its log says")


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


def read_error(error: OSError, session: Session) -> StorageError:
    """The error for a caller who wants to read a transcript that cannot be read. TranscriptMissing where it is gone."""
    reason = reason_of(error)
    if dirfd.is_shortage(error):
        return ReadShortage(f"could not read the transcript of {session.key}: {reason}; try again in a moment")
    kind = TranscriptMissing if isinstance(error, FileNotFoundError) else StorageError
    return kind(
        f"could not read {session.path}, the transcript of {session.key}: {reason}; {_remedy(error)}, then try again",
        sessionKey=session.key,
        reason=reason,
    )


def _remedy(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "let the user of the daemon read it and enter the folders above it"
    if error.errno == errno.EIO:
        return "check its disk, and restore the file from a backup if it is damaged"
    if dirfd.is_passing(error):
        return "wait a moment"
    return "put it back" if isinstance(error, FileNotFoundError) else "see what stands there"


def storage_error(error: OSError, key: str) -> StorageError:
    """The error for an append to the transcript of `key`, of which nothing was stored unless it was `Abandoned`."""
    reason, hint = reason_of(error), "Make room or check the disk"
    if isinstance(error, Abandoned):
        return StorageError(
            f"could not write to the transcript of {key}: {reason}; it may be stored or not. Read the session before"
            " you send again",
            sessionKey=key,
            reason=reason,
            begun=True,
        )
    if isinstance(error, Unsettled):
        hint = "Find out what writes to it"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        hint = "Let the daemon open more files (ulimit -n, LimitNOFILE= of its unit)"
    elif error.errno == errno.ENOMEM:
        hint = "Free memory"
    elif error.errno in (errno.EACCES, errno.EPERM):
        hint = "Let the user of the daemon write to it and enter the folders above it"
    elif isinstance(error, StoreDisplaced):
        hint = "Put it back, or wait a moment until what stands there is known"
    return StorageError(
        f"could not write to the transcript of {key}: {reason}; nothing was stored. {hint}, then send again",
        sessionKey=key,
        reason=reason,
    )
