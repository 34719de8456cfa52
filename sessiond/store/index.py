"""sessions.json: load it, save it. A projection of the transcripts beside it; losing it costs time, never data.

One entry a line, so that `grep` and `jq` both read it. Knows our entries and keeps foreign ones as they are, for their
adoption.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from sessiond.model.entry import Entry
from sessiond.store import dirfd, layout
from sessiond.store.catalog import Session

_decode_rows = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_entry = msgspec.json.Decoder(Entry).decode
_encode = msgspec.json.Encoder().encode
# Encoding this many entries takes about a millisecond; the saver lets others run between such chunks.
CHUNK = 250


class Index(msgspec.Struct):
    """What a sessions.json says: `ours` by session id, and `foreign` entries by session key."""

    ours: dict[str, Entry]
    foreign: dict[str, dict[str, Any]]
    damaged: bool = False


def load(folder_fd: int) -> Index:
    """The index of a folder. A missing, empty or torn file gives an empty one; a bad entry is left out."""
    index = Index(ours={}, foreign={})
    try:
        fd = dirfd.open_file(folder_fd, layout.INDEX, os.O_RDONLY)
    except FileNotFoundError:
        return index
    except OSError:
        index.damaged = True
        return index
    try:
        with os.fdopen(fd, "rb") as file:
            rows = _decode_rows(file.read())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        index.damaged = True
        return index
    for key, raw in rows.items():
        _take(index, key, raw)
    return index


def _take(index: Index, key: str, raw: msgspec.Raw) -> None:
    try:
        entry = _decode_entry(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        entry = None
    if entry is not None and entry.session_key and entry.file.inode:
        index.ours[entry.session_id] = entry
        return
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        index.damaged = True
        return
    if isinstance(fields, dict):
        index.foreign[key] = fields


def lines(sessions: Iterable[Session]) -> Iterator[bytes]:
    """sessions.json in pieces, one for every CHUNK sessions."""
    piece = [b"{"]
    separator = b"\n"
    for count, session in enumerate(sessions, 1):
        # A superseded session keeps its place under a name of its own, so that no two rows share a key.
        name = session.key if not session.archived else f"{session.key}#{session.session_id}"
        piece += (separator, _encode(name), b": ", _encode(session.entry))
        separator = b",\n"
        if count % CHUNK == 0:
            yield b"".join(piece)
            piece = []
    piece.append(b"\n}\n")
    yield b"".join(piece)


def save(folder_fd: int, pieces: Iterable[bytes]) -> None:
    """Put the index in place at once: temp file, fsync, rename, fsync of the folder."""
    dirfd.write_atomic(folder_fd, layout.INDEX, pieces)
