"""Read local files as attachments. The client reads them, with the rights of its user, never the daemon."""

from __future__ import annotations

import os
import stat
from base64 import b64encode

from sessiond.client.errors import BadAttachment
from sessiond.errors import printable

# The daemon accepts no larger message, so a larger file is not even read.
MAX_FILE_BYTES = 16 * 1024 * 1024


def read_attachment(path: str, name: str | None = None) -> dict[str, str]:
    """The file at `path` as an attachment parameter: its content as base64, under `name` or its own base name.

    BadAttachment where it cannot be read, is no regular file or is larger than 16 MiB.
    """
    path = os.path.expanduser(path)
    try:
        # Non-blocking, because opening a FIFO without a writer would wait for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise BadAttachment(f"cannot attach {path}: it is not a regular file")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadAttachment(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise BadAttachment(f"cannot read {printable(path)}: no file name has a NUL character") from None
    if len(content) > MAX_FILE_BYTES:
        raise BadAttachment(f"cannot attach {path}: it is larger than {MAX_FILE_BYTES} bytes (16 MiB)")
    return {"name": name or os.path.basename(path), "content": b64encode(content).decode(), "encoding": "base64"}
