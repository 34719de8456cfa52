"""Read local files as attachments. The client reads them, with the rights of its user, never the daemon."""

from __future__ import annotations

import os
import stat
from base64 import b64encode
from contextlib import suppress

from sessiond.client.errors import BadAttachment
from sessiond.errors import printable

# The daemon accepts no larger message, so a larger file is not even read.
MAX_FILE_BYTES = 16 * 1024 * 1024
# What JSON escapes (RFC 8259, section 7), and those among it that have no escape of two characters.
_ESCAPED = bytes(range(0x20)) + b'"\\'
_LONG_ESCAPES = [bytes([code]) for code in range(0x20) if code not in b"\b\t\n\f\r"]


def read_attachment(path: str, name: str | None = None) -> dict[str, str]:
    """The file at `path` as an attachment parameter: its content as text if it is UTF-8, else as base64; under `name`
    or its own base name.

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
    return {"name": name or os.path.basename(path), **_encode(content)}


def _encode(content: bytes) -> dict[str, str]:
    """The content as text, which the daemon need not decode, or as base64 if that is shorter or it is no text."""
    # Nearly all of the escapes in a text are of one character: `\n`, `\"`. Other control characters take six bytes.
    escapes = len(content) - len(content.translate(None, _ESCAPED)) + 4 * sum(map(content.count, _LONG_ESCAPES))
    if escapes <= len(content) // 3:
        with suppress(UnicodeDecodeError):
            return {"content": content.decode(), "encoding": "utf8"}
    return {"content": b64encode(content).decode(), "encoding": "base64"}
