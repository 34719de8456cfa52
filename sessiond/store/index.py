"""sessions.json: load it, save it. A projection of the transcripts beside it; losing it costs time, never data.

One entry a line, so that `grep` and `jq` both read it. Knows our entries and keeps foreign ones as they are, for their
adoption.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from sessiond.errors import reason_of
from sessiond.model import lax
from sessiond.model.entry import Entry
from sessiond.store import dirfd, layout
from sessiond.store.catalog import Session

_decode_rows = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_entry = msgspec.json.Decoder(Entry).decode
_encode = msgspec.json.Encoder().encode
# Encoding this many entries takes about a millisecond; the saver lets others run between such chunks.
CHUNK = 250


class Index(msgspec.Struct):
    """What a sessions.json says: `ours` by session id, and `foreign` entries by session key.

    `damaged` names what could not be used: the keys of entries, or the file as a whole.
    """

    ours: dict[str, Entry]
    foreign: dict[str, dict[str, Any]]
    damaged: list[str] = []


def load(folder_fd: int, *, patient: bool = False) -> Index:
    """The index of a folder. A missing, empty or torn file gives an empty one; a bad entry is left out.

    With `patient` OSError is raised where it may be readable in a second.
    """
    index = Index(ours={}, foreign={})
    try:
        fd = dirfd.open_file(folder_fd, layout.INDEX, os.O_RDONLY)
    except FileNotFoundError:
        return index
    except OSError as error:
        if patient and dirfd.is_passing(error):
            raise
        index.damaged.append(f"the file ({reason_of(error)})")
        return index
    try:
        with dirfd.closing(fd):
            data = dirfd.read_file(fd, layout.MAX_INDEX_BYTES)
    except OSError as error:
        index.damaged.append(f"the file ({reason_of(error)})")
        return index
    if data is None:
        index.damaged.append(f"the file (larger than {layout.MAX_INDEX_BYTES} bytes)")
        return index
    rows = _rows(data)
    if rows is None:
        index.damaged.append("the file (torn or not JSON)")
    for key, raw in (rows or {}).items():
        _take(index, key, bytes(raw))
    return index


def _rows(data: bytes) -> dict[str, msgspec.Raw] | None:
    try:
        return _decode_rows(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        text = lax.mended(data)
        return _rows(text) if text != data else None


def _take(index: Index, key: str, raw: bytes) -> None:
    entry = _entry(raw)
    if entry is not None:
        index.ours[entry.session_id] = entry
        return
    fields = lax.decode(raw)
    # An entry of ours that cannot be used is made again from its transcript. Taken for a foreign one it would claim a
    # key for a file, or have an empty file made for it.
    if type(fields) is not dict or "file" in fields or "sessionKey" in fields:
        index.damaged.append(key)
    else:
        index.foreign[key] = fields


def _entry(raw: bytes) -> Entry | None:
    if lax.is_deep(raw):
        return None
    try:
        entry = _decode_entry(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return entry if entry.session_key and entry.file.inode and entry.is_plausible else None


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
