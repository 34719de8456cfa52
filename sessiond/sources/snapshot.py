"""The folds of other programs' sessions, saved in `<store>/cache/`, so that a start need not read every file again.

It may be deleted at any time. Whatever is in it that cannot be used is ignored: then the file is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import msgspec
import structlog
import trio

from sessiond.errors import reason_of
from sessiond.model.entry import Entry
from sessiond.model.lax import decoder_of
from sessiond.store import dirfd, layout, opening
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore
from sessiond.tasks import RunSync

log = structlog.get_logger("sessiond.sources")

NAME = "sources.jsonl"
FORMAT = 1
# Encoding this many entries takes about a millisecond; others run between such pieces.
_CHUNK = 200
_MAX_BYTES = 256 * 2**20
# After a change so much time passes until it is saved.
_SAVE_AFTER_S = 30.0


class _Head(msgspec.Struct, frozen=True):
    format: int


class _Row(msgspec.Struct, frozen=True, gc=False):
    root: str
    place: str
    entry: Entry


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_row: Callable[[bytes], _Row] = decoder_of(_Row).decode
_encode = msgspec.json.Encoder().encode
# What decoding hostile JSON raises.
_UNUSABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)

# Entries by root and by the path below it.
Snapshot = dict[str, dict[str, Entry]]


def load(root_fd: int) -> Snapshot:
    """The saved entries, none where there are none that can be used."""
    found: Snapshot = {}
    try:
        with (
            dirfd.closing(dirfd.open_dir(root_fd, layout.CACHE)) as folder_fd,
            dirfd.closing(dirfd.open_file(folder_fd, NAME, os.O_RDONLY)) as fd,
        ):
            data = dirfd.read_file(fd, _MAX_BYTES)
    except (OSError, MemoryError):
        return found
    lines = iter((data or b"").splitlines())
    try:
        if _decode_head(next(lines, b"")).format != FORMAT:
            return found
    except _UNUSABLE:
        return found
    for line in lines:
        try:
            row = _decode_row(line)
        except _UNUSABLE:
            continue
        entry = row.entry
        if entry.source is not None and not entry.source.partial and entry.is_plausible:
            found.setdefault(row.root, {})[row.place] = entry
    return found


def encode(sessions: Iterable[Session]) -> Iterator[bytes]:
    """The snapshot of whole sessions in pieces."""
    pieces = [_encode(_Head(FORMAT)), b"\n"]
    for count, session in enumerate(sessions, 1):
        pieces += [_encode(_Row(session.folder.path, session.place, session.entry)), b"\n"]
        if count % _CHUNK == 0:
            yield b"".join(pieces)
            pieces.clear()
    yield b"".join(pieces)


def save(root_fd: int, pieces: Iterable[bytes]) -> None:
    """Replace the snapshot. Raises OSError. Not synced: what a power cut takes is read again from the files."""
    with dirfd.closing(opening.open_folder(root_fd, (layout.CACHE,))) as folder_fd:
        dirfd.write_atomic(folder_fd, NAME, pieces, sync=False)


class SnapshotSaver:
    """Saves the snapshot some time after a change, as soon as all sessions are listed (`is_listed`). `run` belongs to
    the background nursery.
    """

    def __init__(self, store: SessionStore, run_sync: RunSync, is_listed: Callable[[], bool]) -> None:
        self._store, self._run_sync, self._is_listed = store, run_sync, is_listed
        self._changed = trio.Event()
        self._is_saved = True

    def note_change(self) -> None:
        """What was saved is not up to date any more."""
        self._is_saved = False
        self._changed.set()

    async def run(self) -> None:
        """Save after changes, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            await trio.sleep(_SAVE_AFTER_S)
            await self.save()

    async def save(self) -> None:
        """Save what was read, for the next start."""
        if self._is_saved or not self._is_listed():
            return  # nothing has changed, or it would have only a part of the sessions
        self._is_saved, is_complete = True, False
        try:
            whole = [session for session in self._store.catalog.foreign.values() if not session.is_partial]
            pieces: list[bytes] = []
            for piece in encode(whole):
                pieces.append(piece)
                await trio.lowlevel.checkpoint()
            await self._run_sync(save, self._store.root_fd, pieces)
            is_complete = True
        except OSError as error:
            log.warning("what was read of other programs' sessions was not saved", reason=reason_of(error))
        finally:
            # Interrupted by the end of the daemon, it is saved then.
            self._is_saved = self._is_saved and is_complete
