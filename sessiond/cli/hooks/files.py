"""Settings files of other programs: read, and replaced as a whole. Follows a symlink to the file that it means."""

from __future__ import annotations

import os
from contextlib import suppress

from sessiond.cli.frame.failures import CommandFailed

# Settings of people have kilobytes.
MAX_BYTES = 16 * 1024 * 1024


def read_settings(path: str) -> bytes | None:
    """The content of a settings file, None where there is none. CommandFailed where it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise CommandFailed(f"{path} is larger than any settings are: nothing was changed")
    return data


def replace_settings(path: str, before: bytes | None, after: bytes) -> None:
    """Replace the file in one step, with the mode that it had. CommandFailed where it is not as `before` any more."""
    target = os.path.realpath(path)
    written = f"{target}.new-{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        mode = os.stat(target).st_mode & 0o777 if before is not None else 0o600
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(after)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if read_settings(target) != before:
            raise CommandFailed(f"{path} was changed just now: nothing was changed here, do it again")
        os.replace(written, target)
    except OSError as error:
        raise CommandFailed(f"cannot write {path}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            os.unlink(written)


def remove_settings(path: str) -> None:
    """Remove a file if it is there. CommandFailed where that is not possible."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CommandFailed(f"cannot remove {path}: {error.strerror}") from None
