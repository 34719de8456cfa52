"""Lines into a transcript so that they stand: written, synced, and read back under the file's name.

Other programs append to a transcript, empty it and put another file in its place, at any moment and without a lock. So
nothing is believed for having been written. After the sync the name must still mean the open file, a line must begin
where ours does, our bytes must stand there, and the file must still say its key. Where one of these fails the same
lines, under their own ids, are looked for in what the name means now, and written there if they are missing.

Knows files and lines; knows of the lines that each has an id and names the one before it. Does not group appends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sessiond.model import record as records
from sessiond.model.entry import Entry, FileFacts
from sessiond.model.lax import whole_ms
from sessiond.model.record import BadLine
from sessiond.store import dirfd, folding, transcript
from sessiond.store.adoption import claim_to_restore
from sessiond.store.catalog import Remnant, Session
from sessiond.store.presence import require_place
from sessiond.store.refusals import StoreDisplaced, Unsettled
from sessiond.store.tail import Tail
from sessiond.store.transcript import End

# Whole lines, behind the record with the given id. Called in a worker thread, more than once where a write fails.
Compose = Callable[[str | None], list[bytes]]
# `os.fdatasync`, or what stands for it.
Sync = Callable[[int], None]
# Before each try. An editor that puts a new file in place leaves the name empty for some milliseconds.
_PAUSES_S = (0.0, 0.0, 0.001, 0.004, 0.016, 0.032, 0.064)
_PIECE_BYTES = 256 * 1024
_HEADER, _HEAD_BYTES = re.compile(rb'\A\s*\{[^\n]*"type"\s*:\s*"session"'), 256
_ID = re.compile(rb'"id"\s*:\s*"([^"\\]*)"')


@dataclass(slots=True, eq=False)
class Append:
    """What to write, and then where each line stands, or `error`. `last_id` is the id of the last line."""

    compose: Compose
    last_id: str
    lines: list[bytes] = field(default_factory=list)
    found: list[tuple[int, int] | None] = field(default_factory=list)
    error: OSError | None = None

    @property
    def places(self) -> list[tuple[int, int]]:
        """Begin and end of each line, once it was read back."""
        return [place for place in self.found if place is not None]

    @property
    def is_missing(self) -> bool:
        return self.error is None and (not self.found or None in self.found)

    def long_lines(self, record_limit: int) -> Iterator[transcript.Line]:
        """Those that take long to parse, parsed, where they stand in the file."""
        if self.error is None:
            for (begin, end), line in zip(self.places, self.lines, strict=False):
                if end - begin >= transcript.LONG_LINE:
                    made = transcript.line_of(begin, line[:-1], end, record_limit)
                    if made is not None:
                        yield made


class _Block(NamedTuple):
    """Bytes of ours in an open file."""

    fd: int
    offset: int
    data: bytes

    def is_unchanged(self) -> bool:
        # Piece by piece: where memory is short this is what says what has to be taken back.
        starts = range(0, len(self.data), _PIECE_BYTES)
        pieces = ((start, self.data[start : start + _PIECE_BYTES]) for start in starts)
        return all(os.pread(self.fd, len(piece), self.offset + start) == piece for start, piece in pieces)

    def is_unchanged_line(self) -> bool:
        """Whether it stands at the beginning of a line."""
        if not self.offset:
            return self.is_unchanged()
        if len(self.data) > _PIECE_BYTES:
            return os.pread(self.fd, 1, self.offset - 1) == b"\n" and self.is_unchanged()
        return os.pread(self.fd, len(self.data) + 1, self.offset - 1) == b"\n" + self.data


class Writing:
    """One commit to one transcript. After `run` every append has its places or its error, and all share a sync."""

    def __init__(
        self, session: Session, appends: list[Append], parent: str | None, *, record_limit: int, sync: Sync | None
    ) -> None:
        self._session, self._appends, self._parent = session, appends, parent
        self._limit, self._sync = record_limit, sync
        self._facts = FileFacts()
        self._replaced = False
        # What has to stand in the file that is open now, and everything that was ever written, for the way back.
        self._blocks: list[_Block] = []
        self._written: list[_Block] = []

    def run(self) -> None:
        """Write. Raises neither OSError nor MemoryError: where an append is not acknowledged, nothing of it is left."""
        opened: list[int] = []
        try:
            self._write_until_verified(opened)
        except (OSError, MemoryError) as raised:
            error = _as_refusal(raised)
            if isinstance(error, StoreDisplaced):
                self._find_in_replacement(opened)
            for append in self._appends:
                append.error = append.error or error
            self._withdraw()
        finally:
            for fd in opened:
                os.close(fd)

    def _write_until_verified(self, opened: list[int]) -> None:
        session, why = self._session, OSError(errno.EIO, os.strerror(errno.EIO))
        for number, pause_s in enumerate(_PAUSES_S):
            if pause_s:
                time.sleep(pause_s)  # noqa: TID251 - in a worker thread; no event tells when another program is done
            try:
                if number:
                    require_place(session.folder)
                fd = dirfd.open_file(session.folder.fd, session.file_name, os.O_RDWR | os.O_APPEND)
            except (FileNotFoundError, StoreDisplaced) as gone:
                why = gone
                continue
            opened.append(fd)
            self._blank_out_remnants(fd)
            if number:
                self._find_own_lines(fd)
            status = os.fstat(fd)
            self._write(fd, self._preamble(fd, status), transcript.end_of(fd, status))
            if number:
                self._remove_duplicates(fd)
            self._sync_written(fd)
            if self._verify(fd, status):
                return
            why = Unsettled()
        raise why

    def _preamble(self, fd: int, status: os.stat_result) -> bytes:
        """What must come first so that the file says its key: nothing, unless it was written anew without one."""
        session, epoch = self._session, self._session.epoch
        if folding.continues(fd, session.entry.file, status) and (
            not session.entry.file.inode or session.keyed_epoch == epoch or _HEADER.search(os.pread(fd, _HEAD_BYTES, 0))
        ):
            self._facts, self._replaced = session.entry.file, False
            session.keyed_epoch = epoch
            return b""
        empty = Entry(session_id=session.session_id)
        entry = folding.advance_open(fd, empty, self._limit, collect=False).entry
        self._facts, self._replaced = entry.file, True
        lost = claim_to_restore(entry, session.entry, session.key, session.folder.agent_id)
        if lost is None:
            return b""
        now_ms = whole_ms(status.st_mtime_ns // 1_000_000) or 0
        # A header has the time when it all began, and counts in the first line only. A line that a stranger writes just
        # now may come before it; a record of this kind counts anywhere.
        says_all = lost.line(os.urandom(8).hex(), None, now_ms, self._limit)
        if status.st_size:
            return says_all
        self._parent = None
        return _header(session, now_ms) + says_all

    def _write(self, fd: int, preamble: bytes, end: End) -> None:
        missing = [append for append in self._appends if append.is_missing]
        try:
            self._append(fd, preamble, missing, self._parent, end)
        except (OSError, MemoryError):
            if len(missing) < 2:
                raise
            # One of them may be too large for the room that is left; the others need not suffer for it.
            self._write_apart(fd, preamble, missing)

    def _write_apart(self, fd: int, preamble: bytes, missing: list[Append]) -> None:
        parent = self._parent
        for append in missing:
            try:
                self._append(fd, preamble, [append], parent, transcript.end_of(fd, os.fstat(fd)))
            except (OSError, MemoryError) as error:
                append.error = _as_refusal(error)
            else:
                parent, preamble = append.last_id, b""

    def _append(self, fd: int, preamble: bytes, appends: list[Append], parent: str | None, end: End) -> None:
        data = [preamble]
        for append in appends:
            if any(append.found):
                data += [line for line, place in zip(append.lines, append.found, strict=True) if place is None]
            else:
                append.lines = append.compose(parent)
                append.found = [None] * len(append.lines)
                data += append.lines
            parent = append.last_id
        payload = b"".join(data)
        if not payload:
            return
        try:
            offset = transcript.append(fd, payload, end)
        except transcript.HalfWritten as left:
            self._session.remnants += (Remnant(os.fstat(fd).st_ino, left.offset, left.data),)
            raise
        block = _Block(fd, offset, payload)
        self._blocks.append(block)
        self._written.append(block)
        offset += len(preamble)
        for append in appends:
            for number, line in enumerate(append.lines):
                if append.found[number] is None:
                    append.found[number] = offset, offset + len(line)
                    offset += len(line)

    def _sync_written(self, fd: int) -> None:
        if self._sync is None or not self._blocks:
            return
        self._sync(fd)
        if self._replaced:
            # Whoever put this file in place need not have synced its name; with the old one our lines would be gone.
            dirfd.fsync_dir(self._session.folder.fd)

    def _verify(self, fd: int, opened: os.stat_result) -> bool:
        """Whether all of it can be read under the name. If not, it is to be tried again, from the search on."""
        session = self._session
        named: os.stat_result | None
        try:
            require_place(session.folder)
            named = os.stat(session.file_name, dir_fd=session.folder.fd, follow_symlinks=False)
        except (FileNotFoundError, StoreDisplaced):
            named = None
        is_named = named is not None and os.path.samestat(named, opened)
        torn = [block for block in self._blocks if not block.is_unchanged_line()]
        if named is not None and is_named and not torn and folding.continues(fd, self._facts, named):
            return True
        if is_named:
            for block in torn:
                if block.is_unchanged():
                    # Behind half a line that somebody else wrote meanwhile: no record, and it would come twice.
                    transcript.blank_out(fd, block.offset, len(block.data))
        self._blocks = []
        for append in self._appends:
            append.found = [None] * len(append.found)
        return False

    def _find_own_lines(self, fd: int) -> None:
        """Take the lines that stand in this file already as they stand: a rewriting program may have copied them."""
        for begin, line, append, number in self._own_lines(fd):
            if append.found[number] is None:
                append.found[number] = begin, begin + len(line)
                block = _Block(fd, begin, line)
                self._blocks.append(block)
                self._written.append(block)

    def _remove_duplicates(self, fd: int) -> None:
        """Blank out the copies of our lines that somebody put back between the search and our write."""
        for begin, line, append, number in self._own_lines(fd):
            if append.found[number] not in (None, (begin, begin + len(line))):
                transcript.blank_out(fd, begin, len(line))

    def _own_lines(self, fd: int) -> Iterator[tuple[int, bytes, Append, int]]:
        """The lines of the file that are ours by their id: where each begins, and which line of which append it is."""
        wanted: dict[str, tuple[Append, int]] = {}
        for append in self._appends:
            for number, line in enumerate(append.lines):
                if append.error is None and (line_id := _id_of(line)) is not None:
                    wanted[line_id] = append, number
        for begin, line in _lines(fd, self._limit):
            if not any(name.decode("utf-8", "replace") in wanted for name in _ID.findall(line)):
                continue
            if (line_id := _id_of(line)) in wanted:
                yield begin, line, *wanted[line_id or ""]

    def _find_in_replacement(self, opened: list[int]) -> None:
        """Another folder stands there, which may be a copy of just now: what was copied is to be taken back, too."""
        session = self._session
        with contextlib.suppress(OSError), dirfd.closing(dirfd.open_root(session.folder.path)) as folder_fd:
            fd = dirfd.open_file(folder_fd, session.file_name, os.O_RDWR | os.O_APPEND)
            opened.append(fd)
            self._find_own_lines(fd)

    def _blank_out_remnants(self, fd: int) -> None:
        """Blank out what an earlier, refused append had to leave; while that cannot be done nothing is appended."""
        session = self._session
        if not session.remnants:
            return
        inode = os.fstat(fd).st_ino
        for remnant in session.remnants:
            block = _Block(fd, remnant.offset, remnant.data)
            if remnant.inode == inode and block.is_unchanged():
                transcript.blank_out(fd, block.offset, len(block.data))
        session.remnants = ()

    def _withdraw(self) -> None:
        """Nothing was acknowledged: blank out all that still stands, on disk."""
        # From the end on, so that a disk without room to overwrite can still cut off one after the other.
        for block in reversed(self._written):
            try:
                if block.is_unchanged():
                    transcript.blank_out(block.fd, block.offset, len(block.data))
            except (OSError, MemoryError):
                inode = os.fstat(block.fd).st_ino
                self._session.remnants += (Remnant(inode, block.offset, block.data),)
        if self._sync is not None:
            for fd in {block.fd for block in self._written}:
                with contextlib.suppress(OSError):
                    self._sync(fd)


def _as_refusal(error: OSError | MemoryError) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def _header(session: Session, now_ms: int) -> bytes:
    entry, agent_id = session.entry, session.folder.agent_id
    created_ms = entry.created_at or now_ms
    return records.header_line(
        session.session_id, session.key, agent_id, created_ms, cwd=entry.cwd or "", spawned_by=entry.spawned_by
    )


def _lines(fd: int, limit: int) -> Iterator[tuple[int, bytes]]:
    """Every whole line within the limit, newline included, and where it begins."""
    tail = Tail(0, limit)
    while chunk := os.pread(fd, transcript.BLOCK, tail.offset):
        for begin, line in tail.feed(chunk):
            if line is not None:
                yield begin, line + b"\n"


def _id_of(line: bytes) -> str | None:
    try:
        return records.parse(line[:-1]).id
    except BadLine:
        return None
