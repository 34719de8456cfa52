"""Fold files of other programs whole in the background, newest first, and at once what somebody wants to read.

One file at a time, in slices in a thread of its own. Knows sessions and slices. Does not know folders or subscribers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio

from sessiond.sources import reading
from sessiond.sources.reading import FileReader
from sessiond.store.catalog import Session
from sessiond.store.folding import Advance
from sessiond.store.refusals import read_error
from sessiond.tasks import RunSync

# A slice takes about ten milliseconds, during which other threads run between its blocks.
SLICE_BYTES = 1024 * 1024


class _Completion:
    """What those wait for who want to read a session."""

    __slots__ = ("error", "over")

    def __init__(self) -> None:
        self.over = trio.Event()
        self.error: OSError | None = None


class FoldingQueue:
    """The sessions of which only the ends were read. `run` belongs to a background nursery.

    `reader_of(session)` reads its file. `on_folded(session, got)` is called with the last step over a whole file, while
    the session is still partial. `on_failed(session, error)` is called where it cannot be read, and says
    whether there is another file now. While `is_busy()`, asked in a thread, others need the interpreter more.
    """

    def __init__(
        self,
        run_sync: RunSync,
        *,
        reader_of: Callable[[Session], FileReader | None],
        on_folded: Callable[[Session, Advance], Awaitable[None]],
        on_failed: Callable[[Session, OSError], bool],
        is_busy: Callable[[], bool],
    ) -> None:
        self._run_sync, self._reader_of = run_sync, reader_of
        self._on_folded, self._on_failed, self._is_busy = on_folded, on_failed, is_busy
        self._waiting: dict[Session, None] = {}
        self._urgent: dict[Session, None] = {}
        self._awaited: dict[Session, _Completion] = {}
        self._current: Session | None = None
        self._work = trio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._urgent) + (self._current is not None)

    def add(self, sessions: Iterable[Session], *, first: bool = False) -> None:
        """Fold these as well: behind the others, or before them."""
        for session in sessions:
            if session is self._current or session in self._urgent:
                continue
            if first:
                self._waiting.pop(session, None)
                self._urgent[session] = None
            else:
                self._waiting[session] = None
        self._work.set()

    def drop(self, session: Session) -> None:
        """Do not fold it any more: it is gone. Whoever waits for it goes on."""
        self._waiting.pop(session, None)
        self._urgent.pop(session, None)
        self._release(session, None)

    async def complete(self, session: Session) -> None:
        """Return when the file was folded whole, or its session is gone. StorageError where it cannot be read."""
        if not session.is_partial:
            return
        completion = self._awaited.setdefault(session, _Completion())
        self.add((session,), first=True)
        await completion.over.wait()
        if completion.error is not None:
            raise read_error(completion.error, session)

    async def run(self) -> None:
        """Fold until cancelled; sleeps while there is nothing to fold."""
        while True:
            while self._waiting or self._urgent:
                queue = self._urgent or self._waiting
                await self._fold(queue.popitem()[0] if queue is self._urgent else _take_first(queue))
            await self._work.wait()
            self._work = trio.Event()

    async def _fold(self, session: Session) -> None:
        reader, outer = self._reader_of(session), self._current
        if reader is None or not session.is_partial:
            self._release(session, None)
            return
        self._current = session
        error: OSError | None = None
        again = False
        try:
            entry = reading.begin_again(session.entry)
            while True:
                reader = self._reader_of(session) or reader  # its file may be another one meanwhile
                got: Advance = await self._run_sync(reader.fold_slice, session.place, entry, SLICE_BYTES, self._is_busy)
                entry = got.entry
                if not got.more:
                    break
                while self._urgent and outer is None:
                    await self._fold(self._urgent.popitem()[0])
                if self._reader_of(session) is None or not session.is_partial:
                    return
            if self._reader_of(session) is not None and session.is_partial:
                await self._on_folded(session, got)
        except OSError as failure:
            error = failure
            again = self._on_failed(session, failure)
        finally:
            self._current = outer
            if again:
                self.add((session,), first=True)
            else:
                self._release(session, error)

    def _release(self, session: Session, error: OSError | None) -> None:
        completion = self._awaited.pop(session, None)
        if completion is not None:
            completion.error = error
            completion.over.set()


def _take_first(queue: dict[Session, None]) -> Session:
    session = next(iter(queue))
    del queue[session]
    return session
