"""sessions.json: load it, save it. A projection of the transcripts beside it; losing it costs time, never data.

One entry a line, so that `grep` and `jq` both read it. Knows our entries and keeps foreign ones as they are, for their
adoption.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from sessiond.errors import reason_of
from sessiond.model import lax
from sessiond.model.decoding_cost import find_excess, is_too_deep
from sessiond.model.entry import Entry
from sessiond.model.lax import decoder_of
from sessiond.store import dirfd, layout
from sessiond.store.catalog import Session

_decode_rows = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_entry: Callable[[bytes], Entry] = decoder_of(Entry).decode
_decode_entries: Callable[[bytes], dict[str, Entry]] = decoder_of(dict[str, Entry]).decode
_encode = msgspec.json.Encoder().encode
# Encoding this many entries takes about a millisecond; the saver lets others run between such chunks.
CHUNK = 250
# About so many bytes are decoded at once: during that millisecond nothing else runs, not even the event loop.
_PIECE_BYTES = 192 * 1024
# Between two entries in a file of the daemon's own. In JSON a string has no line break.
_BETWEEN = b',\n"'
# Of so many unusable entries the keys are named. A file can have a million.
MAX_NAMED = 20
# A file that is not JSON and changed this recently may still be being written.
BEING_WRITTEN_MS = 60_000
# The beginning of a file that no program is still writing: one of the daemon's own, which are only ever renamed into
# place complete, or one whose bytes were lost in a crash.
_NOBODYS = re.compile(rb'\0|\{\n"[^\n]*": \{"sessionId":"[^"]*","sessionKey":"')


class Index(msgspec.Struct):
    """What a sessions.json says: `ours` by session id, and `foreign` entries by session key.

    `damaged` names what could not be used: the keys of the first MAX_NAMED entries, with `more_damaged` beside them, or
    the file as a whole. The file is `torn` if it is not JSON and not the daemon's own (last changed at `mtime_ms`), and
    `unread` if it may be readable in a second.
    """

    ours: dict[str, Entry]
    foreign: dict[str, dict[str, Any]]
    damaged: list[str] = []
    more_damaged: int = 0
    torn: bool = False
    mtime_ms: int = 0
    unread: bool = False

    def is_unknown_at(self, now_ms: int) -> bool:
        """Whether its content is not known yet, because it cannot be read or is being written."""
        return self.unread or self.is_being_written_at(now_ms)

    def is_being_written_at(self, now_ms: int) -> bool:
        """Whether another program may be writing it just now, so that it must not be replaced."""
        return self.torn and abs(now_ms - self.mtime_ms) < BEING_WRITTEN_MS


def load(folder_fd: int) -> Index:
    """The index of a folder; an empty one for a missing, empty or torn file. Bad entries are left out."""
    index = Index(ours={}, foreign={})
    try:
        fd = dirfd.open_file(folder_fd, layout.INDEX, os.O_RDONLY)
    except FileNotFoundError:
        return index
    except OSError as error:
        return _unreadable_index(index, error)
    try:
        with dirfd.closing(fd):
            data = dirfd.read_file(fd, layout.MAX_INDEX_BYTES)
            mtime_ms = os.fstat(fd).st_mtime_ns // 1_000_000
    except OSError as error:
        return _unreadable_index(index, error)
    if data is None:
        index.damaged.append(f"the file (larger than {layout.MAX_INDEX_BYTES} bytes)")
        index.torn = True
        return index
    if _load_own(index, data):
        return index
    rows = _rows(data)
    if rows is None:
        index.damaged.append("the file (torn or not JSON)")
        index.torn, index.mtime_ms = _NOBODYS.match(data) is None, mtime_ms
    for key, raw in (rows or {}).items():
        _add_row(index, key, bytes(raw))
    return index


def _load_own(index: Index, data: bytes) -> bool:
    """Add the entries of a file that has the form which the daemon writes, and nothing but good entries.

    If it has not, False, and nothing is added: such a file is read row by row, which takes three times as long.
    """
    if not (data.startswith(b'{\n"') and data.endswith(b"}\n}\n")):
        return False
    entries: dict[str, Entry] = {}
    shared: dict[str, str] = {}
    start, end = 1, len(data) - 3
    while start < end:
        cut = data.find(_BETWEEN, start + _PIECE_BYTES)
        piece = data[start : cut if cut > 0 else end]
        try:
            for entry in _decode_entries(b"{%b}" % piece).values():
                has_nested = entry.delivery_context is not None or entry.spawn is not None
                if not _is_usable(entry) or (has_nested and _is_too_deep(entry)):
                    return False
                _share_values(entry, shared)
                entries[entry.session_id] = entry
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False
        start = start + len(piece) + 1
    index.ours = entries
    return True


def _is_too_deep(entry: Entry) -> bool:
    nested = (entry.delivery_context, entry.spawn and entry.spawn.attachments)
    return any(value is not None and is_too_deep(_encode(value)) for value in nested)


def _share_values(entry: Entry, shared: dict[str, str]) -> None:
    """Let the entry have the same objects as others for the same values: a sixth of its memory."""
    # Without a loop, which took a tenth of the time of a start.
    if (text := entry.cwd) is not None:
        force_setattr(entry, "cwd", shared.setdefault(text, text))
    if (text := entry.model) is not None:
        force_setattr(entry, "model", shared.setdefault(text, text))
    if (text := entry.model_provider) is not None:
        force_setattr(entry, "model_provider", shared.setdefault(text, text))
    if (text := entry.status) is not None:
        force_setattr(entry, "status", shared.setdefault(text, text))
    if entry.created_at == entry.updated_at:
        force_setattr(entry, "created_at", entry.updated_at)
    facts = entry.file
    if facts.folded_to == facts.bytes:
        force_setattr(facts, "folded_to", facts.bytes)


def _unreadable_index(index: Index, error: OSError) -> Index:
    index.damaged.append(f"the file ({reason_of(error)})")
    index.unread = dirfd.is_passing(error)
    return index


def _rows(data: bytes) -> dict[str, msgspec.Raw] | None:
    try:
        return _decode_rows(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        text = lax.mend_surrogates(data)
        return _rows(text) if text != data else None


def _add_row(index: Index, key: str, raw: bytes) -> None:
    entry = _entry(raw)
    if entry is not None:
        index.ours[entry.session_id] = entry
        return
    fields = lax.decode(raw)
    # An unusable entry of the daemon's own is replaced by folding the transcript. It must not count as a foreign one,
    # which would give a file its key, or create an empty file.
    if type(fields) is not dict or "file" in fields or "sessionKey" in fields:
        if len(index.damaged) < MAX_NAMED:
            index.damaged.append(key)
        else:
            index.more_damaged += 1
    else:
        index.foreign[key] = fields


def _entry(raw: bytes) -> Entry | None:
    if find_excess(raw) is not None:
        return None
    try:
        entry = _decode_entry(raw)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return entry if _is_usable(entry) else None


def _is_usable(entry: Entry) -> bool:
    return bool(entry.session_key and entry.file.inode and entry.is_plausible)


def encode_index(sessions: Iterable[Session]) -> Iterator[bytes]:
    """The text of sessions.json in pieces of CHUNK sessions each."""
    piece = [b"{"]
    separator = b"\n"
    for count, session in enumerate(sessions, 1):
        # Superseded sessions get the session id in their name, so that names are unique.
        name = session.key if not session.archived else f"{session.key}#{session.session_id}"
        piece += (separator, _encode(name), b": ", _encode(session.entry))
        separator = b",\n"
        if count % CHUNK == 0:
            yield b"".join(piece)
            piece = []
    piece.append(b"\n}\n")
    yield b"".join(piece)


def save(folder_fd: int, pieces: Iterable[bytes], kept_at_ms: int | None = None) -> None:
    """Replace the index atomically: temporary file, fsync, rename, fsync of the folder.

    With `kept_at_ms` (the present time) a damaged index is set aside first; OSError while another program may be
    writing it.
    """
    if kept_at_ms is not None:
        if load(folder_fd).is_being_written_at(kept_at_ms):
            raise OSError(errno.EAGAIN, "another program may be writing it", layout.INDEX)
        _set_aside(folder_fd)
    dirfd.write_atomic(folder_fd, layout.INDEX, pieces)


def _set_aside(folder_fd: int) -> None:
    for number in range(1, 1000):
        name = layout.DAMAGED_INDEX + (f".{number}" if number > 1 else "")
        with contextlib.suppress(FileExistsError):
            with contextlib.suppress(FileNotFoundError):
                dirfd.rename(folder_fd, layout.INDEX, folder_fd, name, replace=False)
            return
