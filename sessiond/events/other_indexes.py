"""The indexes that other programs keep beside transcripts, with what they say of these. Knows folders and indexes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sessiond.store import index, layout, scan
from sessiond.store.catalog import Folder, Session

# The rows of an index by session key.
Rows = dict[str, dict[str, Any]]


class OtherIndexes:
    """One for each agent, read again when it has changed: many files may appear together. Blocks; raises OSError."""

    def __init__(self, settings: Callable[[], scan.ScanSettings]) -> None:
        self._settings = settings
        self._known: dict[str, tuple[tuple[int, ...], index.Index]] = {}

    def rows(self, folder: Folder) -> Rows | None:
        """The rows of the index in a folder; None where it cannot be read yet."""
        try:
            look = os.stat(layout.INDEX, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return {}
        mark = (look.st_ino, look.st_mtime_ns, look.st_size)
        known = self._known.get(folder.agent_id)
        if known is None or known[0] != mark or known[1].unread:
            known = self._known[folder.agent_id] = mark, index.load(folder.fd)
            folder.has_torn_index = known[1].torn
        return scan.foreign_of(known[1], folder, self._settings())

    def read_sessions(self, folder: Folder, problems: list[scan.Problem]) -> list[Session]:
        """The sessions that only the index knows."""
        rows = self.rows(folder)
        if rows is None:
            raise scan.IndexUnknown(layout.INDEX)
        return scan.create_settings_only_sessions(folder, rows, self._settings(), problems)
