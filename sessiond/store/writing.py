"""Write lines into a transcript, sync them, and verify them under the file's name.

Other programs append to a transcript, empty it or replace it, at any moment and without a lock. So a successful write
proves nothing. After the sync the name must still be that of the open file, the lines must be there, each at the
beginning of a line, and the file must still have its session key. If not, the lines are looked for by their ids in the
file that has the name now, and written there if they are missing.

Knows files and lines, and that each line has an id and a parent id. Does not group appends.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import time
from collections.abc import Callable

from sessiond.model import record as records
from sessiond.model.entry import Entry, FileFacts
from sessiond.model.lax import whole_ms
from sessiond.store import dirfd, folding, transcript
from sessiond.store.adoption import claim_to_restore
from sessiond.store.append import Append
from sessiond.store.catalog import Remnant, Session
from sessiond.store.kept_files import KeptFile, KeptFiles
from sessiond.store.own_lines import find_own_lines
from sessiond.store.presence import require_place
from sessiond.store.refusals import StoreDisplaced, Unsettled
from sessiond.store.transcript import End, WrittenBytes
from sessiond.store.written_block import PIECE_BYTES, WrittenBlock

# `os.fdatasync`, or a replacement in tests.
Sync = Callable[[int], None]
# The pause before each attempt. An editor that replaces the file leaves the name missing for some milliseconds.
_PAUSES_S = (0.0, 0.0, 0.001, 0.004, 0.016, 0.032, 0.064)
_HEADER, _HEAD_BYTES = re.compile(rb'\A\s*\{[^\n]*"type"\s*:\s*"session"'), 256


class Writing:
    """One commit to one transcript. After `run` every append has its places or its error. They share one sync.

    `run` is `begin`, which writes, `sync`, and `finish`, which verifies; in between others may write theirs, so that
    the file system can sync them together. None of them raises OSError or MemoryError: a failed append leaves nothing
    in the file.

    `written` are the bytes that now stand at the end of the file, if nobody wrote in between.
    """

    def __init__(
        self,
        session: Session,
        appends: list[Append],
        parent: str | None,
        *,
        record_limit: int,
        sync: Sync | None,
        files: KeptFiles,
    ) -> None:
        self._session, self._appends, self._parent = session, appends, parent
        self._limit, self._sync, self._files = record_limit, sync, files
        self._facts = FileFacts()
        self._replaced = False
        # The file as the last append left it, where nothing has happened to it since.
        self._untouched: KeptFile | None = None
        self._open: KeptFile | None = None
        # All descriptors to close at the end; the file of the current attempt, or why there is none.
        self._opened: list[int] = []
        self._file: tuple[int, os.stat_result] | None = None
        self._why: OSError = OSError(errno.EIO, os.strerror(errno.EIO))
        self._failure: OSError | MemoryError | None = None
        # When the sync was over, and right before the file was looked at afterwards, by the monotonic clock.
        self._synced_at = self._seen_at = -math.inf
        self.written: WrittenBytes | None = None
        # The blocks in the file that is open now, and all blocks ever written, which are blanked out after a failure.
        self._blocks: list[WrittenBlock] = []
        self._written: list[WrittenBlock] = []

    def run(self) -> None:
        """Write and verify."""
        self.begin()
        self.sync()
        self.finish()

    def begin(self) -> None:
        """Write. Nothing of it counts before `finish`, which has to be called."""
        try:
            self._write_once(0)
        except (OSError, MemoryError) as raised:
            self._failure = raised

    def sync(self) -> None:
        """Sync what was written. It does nothing else, and others may be synced meanwhile."""
        try:
            if self._failure is None and self._file is not None:
                self._sync_written(self._file[0])
        except (OSError, MemoryError) as raised:
            self._failure = raised

    def finish(self) -> None:
        """Verify; where that does not hold, write and sync again."""
        opened = self._opened
        try:
            if self._failure is not None:
                raise self._failure
            self._verify_or_write_again()
        except (OSError, MemoryError) as raised:
            self._failure = None
            error = as_refusal(raised)
            if isinstance(error, StoreDisplaced):
                self._find_in_replacement()
            for append in self._appends:
                append.error = append.error or error
            self._withdraw()
        else:
            if self._open is not None:
                with contextlib.suppress(MemoryError):  # then it is closed
                    self._files.keep(self._session, self._open)
                    opened.remove(self._open.fd)
        finally:
            self.close()

    def close(self) -> None:
        """Close what is open; for one that is not finished."""
        while self._opened:
            os.close(self._opened.pop())

    def _verify_or_write_again(self) -> None:
        for number, pause_s in enumerate(_PAUSES_S):
            if number:
                if pause_s:
                    time.sleep(pause_s)  # noqa: TID251 - in a worker thread; there is no event for the end of another program's write
                self._write_once(number)
                if self._file is not None:
                    self._sync_written(self._file[0])
            if self._file is not None:
                if self._verify(*self._file):
                    return
                self._why = Unsettled()
        raise self._why

    def _write_once(self, number: int) -> None:
        """Write what is missing into the file that has the name now, if there is one, at the attempt `number`."""
        session, self._file = self._session, None
        try:
            if number:
                require_place(session.folder)
            fd, status = self._open_file()
        except (FileNotFoundError, StoreDisplaced) as gone:
            self._why = gone
            return
        if self._untouched is not None:
            self._write(fd, b"", End(status.st_size, torn=False))
        else:
            self._blank_out_remnants(fd)
            if number:
                self._find_own_lines(fd)
                status = os.fstat(fd)
            self._write(fd, self._preamble(fd, status), transcript.end_of(fd, status))
        if number:
            self._remove_duplicates(fd)
        self._file = fd, status

    def _open_file(self) -> tuple[int, os.stat_result]:
        session = self._session
        name, folder_fd = session.file_name, session.folder.fd
        self._untouched = None
        kept, activity = self._files.take(session), session.activity
        if kept is not None:
            self._opened.append(kept.fd)
            named = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            if kept.is_current(named) and activity.keyed_epoch == activity.epoch and not activity.remnants:
                self._untouched, self._facts, self._replaced = kept, session.entry.file, False
                return kept.fd, named
        fd = self._files.retry_with_room(lambda: dirfd.open_file(folder_fd, name, os.O_RDWR | os.O_APPEND))
        self._opened.append(fd)
        return fd, os.fstat(fd)

    def _preamble(self, fd: int, status: os.stat_result) -> bytes:
        """The lines to write first so that the file has its session key; empty unless it was rewritten without one."""
        session, activity = self._session, self._session.activity
        epoch, keyed_epoch = activity.epoch, activity.keyed_epoch
        if folding.continues(fd, session.entry.file, status) and (
            not session.entry.file.inode or keyed_epoch == epoch or _HEADER.search(os.pread(fd, _HEAD_BYTES, 0))
        ):
            self._facts, self._replaced = session.entry.file, False
            activity.keyed_epoch = epoch
            return b""
        empty = Entry(session_id=session.session_id)
        entry = folding.advance_open(fd, empty, self._limit, dialect=session.dialect, collect=False).entry
        self._facts, self._replaced = entry.file, True
        lost = claim_to_restore(entry, session.entry, session.stored_key, session.folder.agent_id)
        if lost is None:
            return b""
        now_ms = whole_ms(status.st_mtime_ns // 1_000_000) or 0
        # A header has the creation time, but counts in the first line only, and another program may write a line before
        # it just now. This record counts anywhere in the file.
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
            # One of them may be too large for the free space; the others are written nevertheless.
            self._write_apart(fd, preamble, missing)

    def _write_apart(self, fd: int, preamble: bytes, missing: list[Append]) -> None:
        parent = self._parent
        for append in missing:
            try:
                self._append(fd, preamble, [append], parent, transcript.end_of(fd, os.fstat(fd)))
            except (OSError, MemoryError) as error:
                append.error = as_refusal(error)
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
            self._session.activity.remnants += (Remnant(os.fstat(fd).st_ino, left.offset, left.data),)
            raise
        block = WrittenBlock(fd, offset, payload)
        self._blocks.append(block)
        self._written.append(block)
        offset += len(preamble)
        for append in appends:
            for number, line in enumerate(append.lines):
                if append.found[number] is None:
                    append.found[number] = offset, offset + len(line)
                    offset += len(line)

    def _sync_written(self, fd: int) -> None:
        if self._sync is not None and self._blocks:
            self._sync(fd)
            if self._replaced:
                # The program that replaced the file may not have synced its name, and the old file has not the lines.
                dirfd.fsync_dir(self._session.folder.fd)
        self._synced_at = time.monotonic()

    def _verify(self, fd: int, opened: os.stat_result) -> bool:
        """Whether all lines can be read under the file's name. If not, the next attempt searches for them first."""
        session = self._session
        named: os.stat_result | None
        try:
            require_place(session.folder, since=self._synced_at)
            self._seen_at = time.monotonic()
            named = os.stat(session.file_name, dir_fd=session.folder.fd, follow_symlinks=False)
        except (FileNotFoundError, StoreDisplaced):
            named = None
        is_named = named is not None and os.path.samestat(named, opened)
        if named is not None and is_named and self._is_appended_unchanged(named):
            return True
        torn = [block for block in self._blocks if not block.is_unchanged_line()]
        if named is not None and is_named and not torn and folding.continues(fd, self._facts, named):
            self._note_end(fd, named)
            return True
        if is_named:
            for block in torn:
                if block.is_unchanged():
                    # Another program wrote half a line before it, so it is no record; the lines are written again.
                    transcript.blank_out(fd, block.offset, len(block.data))
        self._blocks = []
        for append in self._appends:
            append.found = [None] * len(append.found)
        return False

    def _is_appended_unchanged(self, named: os.stat_result) -> bool:
        """Whether what was written stands behind what the last append left, with nothing of others in between."""
        before = self._untouched
        if before is None or len(self._blocks) != 1 or len(self._blocks[0].data) > PIECE_BYTES:
            return False
        fd, offset, data = self._blocks[0]
        if offset != before.size:
            return False
        text = before.last_bytes + data
        if os.pread(fd, len(text), offset - len(before.last_bytes)) != text:
            return False
        self._keep_end(fd, named, text, offset)
        return True

    def _note_end(self, fd: int, named: os.stat_result) -> None:
        if len(self._blocks) == 1 and len(self._blocks[0].data) <= PIECE_BYTES:
            _, offset, data = self._blocks[0]
            begin = max(0, offset - transcript.CHECKED)
            before = os.pread(fd, offset - begin, begin)
            if len(before) == offset - begin:
                self._keep_end(fd, named, before + data, offset)

    def _keep_end(self, fd: int, named: os.stat_result, text: bytes, offset: int) -> None:
        end = offset + len(self._blocks[0].data)
        if named.st_size == end and not self._replaced:
            self._open = KeptFile(fd, named.st_ino, end, named.st_mtime_ns, text[-transcript.CHECKED :])
            self.written = WrittenBytes(text, offset, end, named.st_ino, named.st_mtime_ns, self._seen_at)

    def _find_own_lines(self, fd: int) -> None:
        """Find lines that are in this file already, because a program that rewrote the file copied them."""
        for begin, line, append, number in find_own_lines(fd, self._appends, self._limit):
            if append.found[number] is None:
                append.found[number] = begin, begin + len(line)
                block = WrittenBlock(fd, begin, line)
                self._blocks.append(block)
                self._written.append(block)

    def _remove_duplicates(self, fd: int) -> None:
        """Blank out copies of the lines that another program restored between the search and the write."""
        for begin, line, append, number in find_own_lines(fd, self._appends, self._limit):
            if append.found[number] not in (None, (begin, begin + len(line))):
                transcript.blank_out(fd, begin, len(line))

    def _find_in_replacement(self) -> None:
        """Find the lines in the folder that replaced this one: it may be a copy, in which they are undone too, as far
        as it can be read.
        """
        session = self._session
        with (
            contextlib.suppress(OSError, MemoryError),
            dirfd.closing(dirfd.open_root(session.folder.path)) as folder_fd,
        ):
            fd = dirfd.open_file(folder_fd, session.file_name, os.O_RDWR | os.O_APPEND)
            self._opened.append(fd)
            self._find_own_lines(fd)

    def _blank_out_remnants(self, fd: int) -> None:
        """Blank out what an earlier failed append had to leave. If that fails, nothing is appended."""
        activity = self._session.activity
        if not activity.remnants:
            return
        inode = os.fstat(fd).st_ino
        for remnant in activity.remnants:
            block = WrittenBlock(fd, remnant.offset, remnant.data)
            if remnant.inode == inode and block.is_unchanged():
                transcript.blank_out(fd, block.offset, len(block.data))
        activity.remnants = ()

    def _withdraw(self) -> None:
        """Blank out and sync everything that was written, since nothing was acknowledged."""
        # From the end on, because on a disk without free space the last block can be cut off instead.
        for block in reversed(self._written):
            try:
                if block.is_unchanged():
                    transcript.blank_out(block.fd, block.offset, len(block.data))
            except (OSError, MemoryError):
                inode = os.fstat(block.fd).st_ino
                self._session.activity.remnants += (Remnant(inode, block.offset, block.data),)
        if self._sync is not None:
            for fd in {block.fd for block in self._written}:
                with contextlib.suppress(OSError, MemoryError):
                    self._sync(fd)


def as_refusal(error: OSError | MemoryError) -> OSError:
    """The error of an append that failed."""
    return error if isinstance(error, OSError) else OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def _header(session: Session, now_ms: int) -> bytes:
    entry, agent_id = session.entry, session.folder.agent_id
    created_ms = entry.created_at or now_ms
    return records.header_line(
        session.session_id,
        session.stored_key,
        agent_id,
        created_ms,
        cwd=entry.cwd or "",
        spawned_by=entry.spawned_by,
        attends=entry.attends,
    )
