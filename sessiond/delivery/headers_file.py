"""The file with further headers of a POST, such as `Authorization`: read, checked, parsed. Synchronous."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from sessiond.store import dirfd

MAX_FILE_BYTES = 64 * 1024
_MAX_HEADERS = 64
# RFC 9110, section 5.6.2, and 5.5 without what is not ASCII.
_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([!-~](?:[ \t!-~]*[!-~])?)")
# What says how the request is sent is the daemon's to say.
_OWN = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip


class BadHeaders(Exception):
    """The file cannot be used; the message is a sentence for a person, without anything that stands in the file."""


def read_headers(path: Path) -> list[tuple[str, str]]:
    """The headers in the file. BadHeaders where it is not the owner's alone, or has a line that is no header."""
    name = path.name
    try:
        # O_NONBLOCK: a pipe in the place of the file may have no writer.
        with dirfd.closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)) as fd:
            _check(os.fstat(fd), name)
            data = dirfd.read_file(fd, MAX_FILE_BYTES)
    except OSError as error:
        raise BadHeaders(f"headersFile {name} cannot be read: {error.strerror}") from None
    if data is None:
        raise BadHeaders(f"headersFile {name} is over {MAX_FILE_BYTES} bytes long")
    return parse_headers(data.decode("utf-8", "replace"), name)


def _check(found: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise BadHeaders(f"headersFile {name} is no regular file")
    if found.st_uid not in (0, os.geteuid()):
        raise BadHeaders(f"headersFile {name} belongs to another user")
    # Of a file of root it is for root to say who reads it.
    refused = stat.S_IRWXO | (stat.S_IRWXG if found.st_uid == os.geteuid() else stat.S_IWGRP)
    if found.st_mode & refused:
        raise BadHeaders(f"headersFile {name} can be read or written by others; run chmod 600 on it")


def parse_headers(text: str, name: str) -> list[tuple[str, str]]:
    """The headers, one a line, as `Name: value`. Empty lines and those that begin with # are left out."""
    found: list[tuple[str, str]] = []
    for number, line in enumerate(re.split(r"\r?\n", text), start=1):
        words = line.strip(" \t")
        if not words or words.startswith("#"):
            continue
        header = _LINE.fullmatch(words)
        if header is None:
            raise BadHeaders(f'headersFile {name}:{number}: no header like "Authorization: Bearer ..." in plain ASCII')
        if header[1].lower() in _OWN:
            raise BadHeaders(f"headersFile {name}:{number}: {header[1]} is not for this file to say")
        found.append((header[1], header[2]))
    if len(found) > _MAX_HEADERS:
        raise BadHeaders(f"headersFile {name} has over {_MAX_HEADERS} headers")
    return found
