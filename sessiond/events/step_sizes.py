"""How much of a file the feed reads in one step on the event loop, and which long lines are parsed for it in a thread.

Knows the store and how many follow a session. Folds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sessiond.events.bus import EventBus
from sessiond.store import folding, transcript
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore

# Read and folded in one step: 1.5 ms of small records, and about as much again for each subscriber, so that the step is
# divided by their number.
MAX_STEP_BYTES = 64 * 1024
# Where nobody follows the session, as when a copy of a long one comes, a step is as long as that takes: what each costs
# besides its lines, a fifth of a millisecond, is as much as the lines of MAX_STEP_BYTES.
_ALONE_STEP_S, _ALONE_STEP_BYTES = 0.0015, 1024 * 1024


class StepSizes:
    """`thread_s` is the processor time of the thread."""

    def __init__(self, store: SessionStore, bus: EventBus, thread_s: Callable[[], float] = time.thread_time) -> None:
        self._store, self._bus, self._thread_s = store, bus, thread_s
        # From which to which byte of a file no line is so long that it would have to be parsed in a thread.
        self._looked: dict[Session, tuple[int, int]] = {}

    def step_bytes(self, session: Session) -> int:
        """How many bytes a step reads at most, of a session that may have followers."""
        return MAX_STEP_BYTES // (1 + self._bus.count_followers(session.key))

    def limits_of(self, session: Session, *, collects: bool) -> tuple[int, Callable[[], bool] | None]:
        """How many bytes the next step reads at most, and what says that it has taken long enough."""
        ahead = self._looked_ahead(session)
        if collects or not ahead:
            return self.step_bytes(session), None
        until = self._thread_s() + _ALONE_STEP_S
        return ahead, lambda: self._thread_s() >= until

    async def parse_ahead(self, session: Session, *, collects: bool) -> None:
        """Parse a long line that comes next, off the loop: there it would take 25 ms and more of one step."""
        folder, entry, name = session.folder, session.entry, session.file_name
        if not collects and self._looked_ahead(session):
            return
        self.forget(session)
        try:
            size = folder.status_of(name).st_size
            if size - entry.file.folded_to < transcript.LONG_LINE:
                return
            if entry.file.passed_to > entry.file.folded_to:
                return  # in the middle of a line over the limit
            limit, reach = self._store.record_limit, self.step_bytes(session) if collects else _ALONE_STEP_BYTES
            found = await self._store.run_for_feed(folding.parse_ahead, folder, entry, name, limit, reach)
        except OSError:
            return  # reading it raises the same error, which is handled there
        if found.line is not None:
            session.keep_parsed((found.line,))
        if not collects:
            self._looked[session] = entry.file.folded_to, found.to

    def forget(self, session: Session) -> None:
        """Nothing more is to be read of it for now."""
        self._looked.pop(session, None)

    def _looked_ahead(self, session: Session) -> int:
        """How many of the next bytes were looked at for long lines."""
        begin, end = self._looked.get(session, (0, 0))
        at = session.entry.file.folded_to
        return end - at if begin <= at < end else 0
