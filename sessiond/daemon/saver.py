"""Saves the index after changes. Sleeps while nothing changes, and takes at most 2 % of the time.

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
            if not self._store.dirty():
                await self._feed.changed.wait()
            self._feed.changed = trio.Event()
            # Changes come in bursts; wait a moment to save once for all of them.
            await trio.sleep(_LEAST_PAUSE_S)
            began = self._clock.monotonic()
            saved = await self.save_dirty()
            cost_s = self._clock.monotonic() - began
            await trio.sleep(max(cost_s * _SHARE, 0 if saved else _AFTER_FAILURE_S))

    async def save_dirty(self) -> bool:
        """Save every dirty folder now; whether all could be saved."""
        saved = True
        for folder in self._store.dirty():
            try:
                await self._store.save(folder)
            except StorageError as error:
                # The index can be rebuilt from the transcripts: a start without it takes longer but loses nothing.
                log.warning("index not saved", agent=folder.agent_id, reason=error.message)
                saved = False
            else:
                self.last_save_ms = self._clock.wall_ms()
        return saved
