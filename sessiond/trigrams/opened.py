"""An index that is open: its database, and what it has of which session. Makes, replaces and removes the files.

Synchronous; for a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import unicodedata
from pathlib import Path

from sessiond.model.dialects import DIALECTS
from sessiond.store import dirfd, layout, opening
from sessiond.trigrams import database, rows
from sessiond.trigrams.coverage import Coverage
from sessiond.trigrams.database import IndexDatabase, IndexDoubt, IndexTrouble

# Raised whenever the same transcripts give other rows.
FORMAT = 2
# When less than this part of what was written still counts, the index is built anew. Small ones are not worth it.
_LIVE_PART = 0.7
_WORN_CHARS = 2**20


class OpenIndex:
    """One index. Its database is None until something is to be indexed: a store of a few messages needs none.

    `doubt`: why it is not to be used any more. `is_complete`: all that was there has been indexed.
    """

    def __init__(self, opened: IndexDatabase | None = None) -> None:
        """Raises IndexDoubt and IndexTrouble."""
        self.database = opened
        self.doubt = ""
        self.is_complete = False
        self.coverage = Coverage()
        # How many characters were written, whether they still count or not.
        self.written_chars = 0
        if opened is not None:
            with opened.lock:
                self.coverage = Coverage(rows.files(opened))
                self.written_chars = opened.number_about("chars")

    @property
    def is_worn(self) -> bool:
        """Whether so much of it does not count any more that it is better built anew."""
        return self.written_chars > _WORN_CHARS and self.coverage.chars < _LIVE_PART * self.written_chars


class IndexFiles:
    """The files of the index in a store. Its methods raise IndexDoubt, IndexTrouble and OSError."""

    def __init__(self, root_fd: int, store: Path, record_limit: int) -> None:
        self._root_fd, self._folder = root_fd, store / layout.CACHE
        dialects = ",".join(f"{name}:{one.fold_version}" for name, one in sorted(DIALECTS.items()))
        # Text is indexed in lower case, of which each version of Unicode has its own idea.
        self._made_with = f"{FORMAT} {unicodedata.unidata_version} {record_limit} {dialects}"

    def open(self) -> tuple[OpenIndex, str]:
        """The index, and why it was begun again; empty if it was not."""
        try:
            with dirfd.closing(dirfd.open_dir(self._root_fd, layout.CACHE)) as folder_fd:
                database.remove(folder_fd, database.NEXT_NAME)
                if not database.exists(folder_fd):
                    return OpenIndex(), ""
                try:
                    return self._open(folder_fd), ""
                except IndexDoubt as doubt:
                    database.remove(folder_fd, database.NAME)
                    return OpenIndex(), str(doubt)
        except FileNotFoundError:
            return OpenIndex(), ""

    def make(self, one: OpenIndex, is_next: bool) -> IndexDatabase:
        """Make its database, empty, under its name or beside another one."""
        name = database.NEXT_NAME if is_next else database.NAME
        with dirfd.closing(opening.open_folder(self._root_fd, (layout.CACHE,))) as folder_fd:
            database.remove(folder_fd, name)
            one.database = IndexDatabase(folder_fd, self._folder, self._made_with, name)
            return one.database

    def put_in_place(self, current: OpenIndex, other: OpenIndex) -> None:
        """Close the index in use, and put the other one in its place, which gets another database."""
        _close(current, keep=False)
        _close(other, keep=True)
        with dirfd.closing(dirfd.open_dir(self._root_fd, layout.CACHE)) as folder_fd:
            database.remove(folder_fd, database.NAME)
            os.rename(database.NEXT_NAME, database.NAME, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
            other.database = IndexDatabase(folder_fd, self._folder, self._made_with)

    def remove(self, *opened: OpenIndex) -> None:
        """Close these, and remove all files."""
        for one in opened:
            _close(one, keep=False)
        with contextlib.suppress(FileNotFoundError):
            with dirfd.closing(dirfd.open_dir(self._root_fd, layout.CACHE)) as folder_fd:
                for name in (database.NAME, database.NEXT_NAME):
                    database.remove(folder_fd, name)

    def _open(self, folder_fd: int) -> OpenIndex:
        opened = IndexDatabase(folder_fd, self._folder, self._made_with)
        try:
            return OpenIndex(opened)
        except BaseException:
            opened.close(keep=False)
            raise


def close(*opened: OpenIndex | None) -> None:
    """Close these so that the next start goes on with them. What cannot be closed so is begun again then."""
    for one in opened:
        if one is not None:
            with contextlib.suppress(IndexDoubt, IndexTrouble):
                _close(one, keep=not one.doubt)


def _close(one: OpenIndex, *, keep: bool) -> None:
    if one.database is not None:
        with one.database.lock:
            one.database.close(keep=keep)
