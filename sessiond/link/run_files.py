"""The files of a run whose agent is another machine, read from where the daemon has written them.

The folder is one of ours in which no agent works; even so no symlink is followed, and what was changed is refused.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from sessiond.attachments.materialize import Receipt
from sessiond.errors import quote, reason_of
from sessiond.link.command_wire import MAX_BODY_BYTES, CommandFile
from sessiond.store import dirfd


class FilesGone(Exception):
    """A file is not there any more, or another one. The message says which."""


def read_files(workspace: Path, receipt: dict[str, Any]) -> tuple[CommandFile, ...]:
    """The files of the receipt in `run.start`. FilesGone."""
    try:
        found = msgspec.convert(receipt, Receipt)
        with dirfd.closing(dirfd.open_root(workspace)) as root_fd:
            folder_fd = dirfd.open_path_dir(root_fd, found.rel_dir.split("/"))
        with dirfd.closing(folder_fd):
            return tuple(
                CommandFile(file.name, _read(folder_fd, file.name, file.sha256), file.mime_type) for file in found.files
            )
    except msgspec.ValidationError as error:
        raise FilesGone(f"the list of the run's files cannot be read: {error}") from None
    except (OSError, ValueError) as error:
        raise FilesGone(f"the run's files cannot be read: {reason_of(error)}; spawn anew, with the files") from None


def _read(folder_fd: int, name: str, sha256: str) -> bytes:
    with dirfd.closing(dirfd.open_file(folder_fd, name, os.O_RDONLY)) as fd:
        data = dirfd.read_file(fd, MAX_BODY_BYTES)
    if data is None or hashlib.sha256(data).hexdigest() != sha256:
        raise FilesGone(f"the file {quote(name)} is not the one that came with the message any more; spawn anew")
    return data
