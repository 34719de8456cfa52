"""One transcript of another program in a followed store, to which tests append lines."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.followed_store import FollowedStore, append, followed_store

from sessiond.events.subscription import FollowPlace
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.store import dirfd, folding
from sessiond.store.catalog import Folder, Session

NAME = "native-1.jsonl"


class ForeignFile:
    """The file, with one line at first, and its session in the catalog. `entry` is that of the empty file."""

    def __init__(
        self, parts: FollowedStore, folder: Path, first: bytes, entry: Entry, dialect: TranscriptDialect
    ) -> None:
        self._parts, self.path = parts, folder / NAME
        folder.mkdir()
        append(self.path, first)
        source = entry.source.name if entry.source is not None else None
        opened = Folder("", dirfd.open_root(folder), dialect=dialect, path=str(folder), source=source)
        entry = folding.read_on(opened, entry, NAME, parts.store.record_limit, collect=False).entry
        self.session = Session(entry.session_key, entry, opened, place=NAME)
        parts.store.catalog.add(self.session)

    def write(self, *lines: bytes) -> None:
        """Append lines in one write, and let the feed read a step."""
        append(self.path, b"".join(lines), create=False)
        self._parts.feed.poke(self.session)

    @property
    def place(self) -> FollowPlace:
        """The place behind what was read."""
        entry = self.session.entry
        return FollowPlace(self.session.session_id, entry.file.folded_to, entry.message_count)


@asynccontextmanager
async def foreign_file(
    tmp_path: Path, first: bytes, entry: Entry, dialect: TranscriptDialect
) -> AsyncIterator[tuple[FollowedStore, ForeignFile]]:
    """A followed store with that file."""
    async with followed_store(tmp_path, watching=False) as parts:
        file = ForeignFile(parts, tmp_path / "theirs", first, entry, dialect)
        yield parts, file
        os.close(file.session.folder.fd)
