"""What a caller is told when the disk, or another program, lets nothing be stored or read."""

from __future__ import annotations

import errno

from sessiond.errors import StorageError, reason_of


class Unsettled(OSError):
    """Others changed the file each time before what was written could be read back."""

    def __init__(self) -> None:
        super().__init__(errno.EBUSY, "another program keeps changing it")


class StoreDisplaced(OSError):
    """The folder was moved away, or another stands in its place."""

    def __init__(self) -> None:
        super().__init__(errno.ENOENT, "its folder is not where it was")


def storage_error(error: OSError, key: str) -> StorageError:
    """Nothing was stored in the transcript of `key`."""
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
