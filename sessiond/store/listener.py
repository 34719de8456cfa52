"""What the store tells of its own changes. Knows sessions and folders; the feed listens."""

from __future__ import annotations

from typing import Protocol

from sessiond.store.catalog import Folder, Session
from sessiond.store.folded_steps import FoldedLine


class StoreListener(Protocol):
    """What is told of the store's own changes, on the event loop: the feed."""

    def poke(self, session: Session) -> bool:
        """There is more in the file, such as a commit. Whether records that the daemon wrote are left to read."""

    def session_created(self, session: Session, steps: list[FoldedLine]) -> None:
        """The daemon created a session, with these records in it."""

    def folder_opened(self, folder: Folder) -> None:
        """An agent's folder was opened or made after the start."""

    def store_displaced(self) -> None:
        """A folder is missing from its path, which the watcher may not have reported yet."""
