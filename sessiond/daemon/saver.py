"""Saves the index after changes. Sleeps while nothing changes; takes at most 2 % of the time and 16 KiB a second.

Source: store.md, "The index".
"""

from __future__ import annotations

import structlog
import trio

from sessiond.clock import Clock
from sessiond.errors import StorageError
from sessiond.events.feed import TranscriptFeed
from sessiond.store.store import SessionStore

log = structlog.get_logger("sessiond.saver")

# The pause after a save is this many times its duration: at most 2 % of the time is spent saving.
_SHARE = 50
_LEAST_PAUSE_S = 1.0
# The index is written whole: with 10,000 sessions 7 MB, of which one append changes a line. What a crash leaves unsaved
# the next start folds in milliseconds, so a large index may lag minutes behind; the disk has better things to write.
BYTES_PER_S = 16 * 1024
# A full disk usually stays full for a while, and each attempt writes a line to the log.
_AFTER_FAILURE_S = 60.0


class IndexSaver:
    """`run` belongs to the background nursery; `last_save_ms` is for daemon.status."""

    def __init__(self, store: SessionStore, feed: TranscriptFeed, clock: Clock) -> None:
        self._store, self._feed, self._clock = store, feed, clock
        self.last_save_ms: int | None = None

    async def run(self) -> None:
        """Save the dirty folders whenever something has changed; until cancelled."""
        while True:
            if not self._store.dirty_folders():
                await self._feed.changed.wait()
            self._feed.changed = trio.Event()
            # Changes come in bursts; wait a moment to save once for all of them.
            await trio.sleep(_LEAST_PAUSE_S)
            began = self._clock.monotonic()
            size, failed = await self.save_dirty()
            cost_s = self._clock.monotonic() - began
            await trio.sleep(max(cost_s * _SHARE, size / BYTES_PER_S, _AFTER_FAILURE_S if failed else 0))

    async def save_dirty(self) -> tuple[int, bool]:
        """Save every dirty folder now. How many bytes were written, and whether some could not be."""
        size, failed = 0, False
        for folder in self._store.dirty_folders():
            try:
                size += await self._store.save(folder)
            except StorageError as error:
                # The index can be rebuilt from the transcripts: a start without it takes longer but loses nothing.
                log.warning("index not saved", agent=folder.agent_id, reason=error.message)
                failed = True
            else:
                self.last_save_ms = self._clock.wall_ms()
        return size, failed
