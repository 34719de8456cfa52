"""A folder with transcripts: one of the store's, or the root of another program's folder.

Knows descriptors and names. Does not know sessions.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import msgspec

from sessiond.model.dialects import TranscriptDialect
from sessiond.store import dirfd


class MadeFiles(Protocol):
    """Transcripts of which some are put together from something else. Raises OSError."""

    def makes(self, place: str) -> bool:
        """Whether this one is put together; then opening it, and its status, may take a while."""

    def open(self, place: str) -> int:
        """A descriptor, which the caller closes."""

    def status(self, place: str) -> os.stat_result:
        """The status of one."""


# Not tracked by the garbage collector, so that the sessions that refer to it are not.
class Folder(msgspec.Struct, eq=False, gc=False):
    """One `sessions` folder, or the `archive` folder in one. `fd` is open until the daemon stops.

    `path` is the path under which it was opened; if empty, its place is not checked. `waiting` are files that could not
    be adopted yet; until they are, the index of another program beside them is not replaced. A torn index is set aside
    when the daemon saves its own (`has_torn_index`). `dialect` is the format of its transcripts. `left_out` are the
    transcripts of which the reading at the start made no session; None where it did not read the folder. It was last
    seen at its path after `found_at`, by the monotonic clock. `is_prompt` is `filesystem.is_prompt` of it.

    With a `source` it is the root of another program's folder, `path` is absolute, `agent_id` is empty, and the names
    of its transcripts are paths below it. Nothing is ever written there. Its transcripts may be `made`.
    """

    agent_id: str
    fd: int
    dialect: TranscriptDialect
    archived: bool = False
    path: str = ""
    dirty: bool = False
    has_torn_index: bool = False
    waiting: set[str] = msgspec.field(default_factory=set)
    left_out: set[str] | None = None
    source: str | None = None
    made: MadeFiles | None = None
    found_at: float = -math.inf
    is_prompt: bool = False
    _identity: tuple[int, int] | None = None

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode, cached because every append compares them."""
        if self._identity is None:
            status = os.fstat(self.fd)
            self._identity = status.st_dev, status.st_ino
        return self._identity

    def makes(self, name: str) -> bool:
        """Whether a transcript in it is put together from something else, so that opening it may take a while."""
        return self.made is not None and self.made.makes(name)

    def open_file(self, name: str) -> int:
        """A descriptor of a transcript in it, for reading, which the caller closes. Follows no symlink."""
        if self.made is not None:
            return self.made.open(name)
        if self.source is not None:
            return dirfd.open_below(self.fd, name)
        return dirfd.open_file(self.fd, name, os.O_RDONLY)

    def status_of(self, name: str) -> os.stat_result:
        """The status of a transcript in it. Follows no symlink."""
        if self.made is not None:
            return self.made.status(name)
        if self.source is not None:
            return dirfd.status_below(self.fd, name)
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
