"""Read transcripts and put their text into the index. Synchronous, in steps: for a worker thread.

The lock of the database is held for one statement at a time, so that searches go on meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Generator

from msgspec.structs import replace

from sessiond.store import dirfd, transcript
from sessiond.trigrams import rows
from sessiond.trigrams.coverage import IndexJob, name_file
from sessiond.trigrams.database import IndexDatabase
from sessiond.trigrams.rows import FileRow, StoredBlock
from sessiond.trigrams.text_blocks import BLOCK_CHARS, BlockCutter, FileShorter, TextBlock

# So much text is put into one transaction: what a kill takes is indexed again, and small ones are slow to merge.
_COMMIT_CHARS = 2 * 2**20


class _FileChanged(Exception):
    """The file is not the one that its entry tells of; the feed will notice."""


class IndexBuilder:
    """Indexes some files. `failed` are those that could not be read for a reason that may pass."""

    def __init__(self, database: IndexDatabase, jobs: list[IndexJob], record_limit: int) -> None:
        self._database, self._jobs, self._limit = database, jobs, record_limit
        self._done: list[tuple[IndexJob, FileRow]] = []
        self.failed: list[IndexJob] = []
        self._pending: list[tuple[IndexJob, FileRow]] = []
        self._chars = self.written_chars = 0

    def take_done(self) -> list[tuple[IndexJob, FileRow]]:
        """The files of which something more was kept since this was asked for last, and how much of each."""
        done, self._done = self._done, []
        return done

    def steps(self) -> Generator[None, None, None]:
        """Do it; yields about every millisecond. Raises IndexDoubt and IndexTrouble."""
        try:
            for job in self._jobs:
                try:
                    yield from self._index(job)
                except (_FileChanged, FileShorter, dirfd.BadComponent):
                    continue
                except OSError as error:
                    if dirfd.is_passing(error):
                        self.failed.append(job)
            self._commit()
        finally:
            with self._database.lock:
                self._database.rollback()

    def _index(self, job: IndexJob) -> Generator[None, None, None]:
        facts = job.facts
        with dirfd.closing(job.folder.open_file(job.file_name)) as fd:
            status = os.fstat(fd)
            if dirfd.inode_of(status) != facts.inode:
                raise _FileChanged
            row, last = self._find_row(fd, job, name_file(job.session, status.st_dev, facts.inode))
            if row.indexed_to < facts.folded_to:
                row = yield from self._add_blocks(fd, job, row, last)
            if transcript.checksum(fd, facts.folded_to) != facts.check:
                self._drop(row)
                raise _FileChanged
        row = replace(row, checksum=facts.check, bytes=facts.bytes, mtime_ns=facts.mtime_ns)
        self._put(job, row)
        yield

    def _find_row(self, fd: int, job: IndexJob, name: str) -> tuple[FileRow, StoredBlock | None]:
        """What is indexed of a file, and its last block if that is short: then it is made anew with what follows."""
        with self._database.lock:
            self._database.begin()
            row = rows.find_file(self._database, name)
            if row is not None and (job.is_doubted or not _holds(fd, job, row)):
                rows.drop_file(self._database, row.id)
                row = None
            if row is None:
                return rows.make_file(self._database, name), None
            last = rows.last_block(self._database, row.id)
        added = job.facts.folded_to - row.indexed_to
        # Made anew only where as much is added: else a long conversation would be written again and again.
        if last is not None and last.chars < BLOCK_CHARS // 2 and added >= (last.end - last.begin):
            return row, last
        return row, None

    def _add_blocks(
        self, fd: int, job: IndexJob, row: FileRow, last: StoredBlock | None
    ) -> Generator[None, None, FileRow]:
        begin, messages, stop = row.indexed_to, row.messages, job.facts.folded_to
        if last is not None:
            begin, messages = last.begin, last.messages_before or 0
        cutter = BlockCutter(fd, job.folder.dialect, self._limit, begin=begin, stop=stop, messages=messages)
        for block in cutter.steps():
            if block is not None:
                row = replace(
                    row,
                    indexed_to=cutter.place,
                    messages=cutter.messages,
                    chars=row.chars + self._add_block(row, block, last) - (last.chars if last is not None else 0),
                )
                last = None
                if self._chars >= _COMMIT_CHARS:
                    row = replace(row, checksum=transcript.checksum(fd, row.indexed_to))
                    self._put(job, row)
                    self._commit()
            yield
        return replace(row, indexed_to=stop, messages=cutter.messages)

    def _add_block(self, row: FileRow, block: TextBlock, last: StoredBlock | None) -> int:
        with self._database.lock:
            self._database.begin()
            chars = rows.add_block(self._database, row.id, block)
            if last is not None:  # behind the other, so that its text is found all the time
                rows.drop_block(self._database, last)
        self._chars += chars
        return chars

    def _put(self, job: IndexJob, row: FileRow) -> None:
        with self._database.lock:
            self._database.begin()
            rows.put_file(self._database, row)
        self._pending.append((job, row))

    def _drop(self, row: FileRow) -> None:
        with self._database.lock:
            self._database.begin()
            rows.drop_file(self._database, row.id)

    def _commit(self) -> None:
        with self._database.lock:
            self._database.begin()
            rows.note_written(self._database, self._chars)
            self._database.commit()
        self._done += self._pending
        self.written_chars += self._chars
        self._pending, self._chars = [], 0


def _holds(fd: int, job: IndexJob, row: FileRow) -> bool:
    """Whether the file still has what is indexed of it."""
    facts = job.facts
    is_touched = row.bytes == facts.bytes and row.mtime_ns != facts.mtime_ns and not job.folder.makes(job.file_name)
    is_shorter = facts.bytes < row.bytes or facts.folded_to < row.indexed_to
    return not is_touched and not is_shorter and transcript.checksum(fd, row.indexed_to) == row.checksum
