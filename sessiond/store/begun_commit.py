"""What is left of a commit once its lines were written, as the threads see it. Knows no files."""

from __future__ import annotations

from typing import Protocol


class BegunCommit(Protocol):
    """What was written. `sync` waits for the disk, `finish` notes what became of it. Neither raises.

    `unsynced_fd` is the descriptor where `sync` would do no more than fdatasync it, for whoever has that done in its
    place and says so by `note_synced`; else None.
    """

    @property
    def unsynced_fd(self) -> int | None: ...
    def sync(self) -> None: ...
    def note_synced(self, error: OSError | None) -> None: ...
    def finish(self) -> None: ...
