"""The search index while the daemon runs: opens it, keeps it up to date, begins it again where it cannot be trusted.

`run` belongs to the background nursery. It sleeps while nothing is to be done, and takes no more than its share of a
core while something is. Source: store.md, "The search index".
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import msgspec
import structlog
import trio

from sessiond.config.settings import SearchConfig
from sessiond.errors import NoThread, reason_of
from sessiond.store.catalog import Session
from sessiond.store.finding import Finding
from sessiond.store.store import SessionStore
from sessiond.tasks import RunSync, own_threads
from sessiond.trigrams import database, opened
from sessiond.trigrams.budget import BuildBudget
from sessiond.trigrams.building import IndexBuilder
from sessiond.trigrams.candidates import FoundBlocks
from sessiond.trigrams.coverage import IndexJob
from sessiond.trigrams.database import IndexDoubt, IndexTrouble
from sessiond.trigrams.narrowing import NOT_NARROWED, Narrowed
from sessiond.trigrams.opened import IndexFiles, OpenIndex
from sessiond.trigrams.text import match_expressions

log = structlog.get_logger("sessiond.search")

IndexState = Literal["ready", "building", "off", "unsupported"]
# A full disk usually stays full for a while.
_AFTER_TROUBLE_S = 60.0
# Closing waits for the disk, but not for long: what was not closed is begun again after a power cut only.
_CLOSING_S = 2.0
# Looking at so many entries takes about a millisecond.
_CHUNK = 200


class IndexStatus(msgspec.Struct, frozen=True):
    """How many bytes of transcripts are indexed, of how many."""

    state: IndexState
    indexed_bytes: int
    total_bytes: int


class TrigramIndex:
    """`settings` gives the current configuration; `reconfigure` is called when it has changed. `is_settled` says
    whether all sessions are known by now, so that what the index has of others does not count any more, `is_possible`
    whether this SQLite can make an index. `run_sync` runs what blocks (default: a thread of its own), and `cpu_s` is
    the processor time that this takes.
    """

    def __init__(
        self,
        store: SessionStore,
        settings: Callable[[], SearchConfig],
        *,
        is_settled: Callable[[], bool],
        is_possible: Callable[[], bool] = database.has_trigrams,
        run_sync: RunSync | None = None,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._store, self._settings, self._is_settled = store, settings, is_settled
        self._is_possible = is_possible
        self._files = IndexFiles(store.root_fd, store.path, store.record_limit)
        self._run_sync = run_sync if run_sync is not None else own_threads(1)
        self._budget = BuildBudget(lambda: settings().budget, cpu_s)
        # None until it was looked for.
        self._support: bool | None = None
        self._current: OpenIndex | None = None
        # What is built beside it, to take its place.
        self._next: OpenIndex | None = None
        self._wake = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._is_building = False
        # What is to be closed and removed before anything else: it may not be used again.
        self._condemned: list[OpenIndex] | None = None
        # Why it cannot be written just now.
        self._problem = ""

    # For searches.

    def narrow(self, text: str) -> Narrowed:
        """Where to look for `text`, which is from `fold_case`. Blocks; for worker threads."""
        current = self._current
        # A message may have its parts in several lines, and what stands between these is not in the index.
        expressions = match_expressions(text) if "\n" not in text else []
        if current is None or current.database is None or current.doubt or not expressions:
            return NOT_NARROWED
        try:
            return FoundBlocks(current.database, current.coverage.copy_known(), expressions)
        except IndexDoubt as doubt:
            if current is self._current:
                self._report_doubt(current, str(doubt))
        except IndexTrouble:
            pass
        return NOT_NARROWED

    def _report_doubt(self, current: OpenIndex, doubt: str) -> None:
        current.doubt = doubt
        if self._token is not None:
            self._token.run_sync_soon(self.reconfigure)

    # For the catalog.

    def entry_changed(self, session: Session) -> None:
        """A session was added, or its entry changed."""
        self._budget.note_activity()
        now = trio.current_time()
        for one in (self._current, self._next):
            if one is not None and one.coverage.note(session, now):
                self._wake.set()

    def session_removed(self, session: Session) -> None:
        """A session is gone."""
        for one in (self._current, self._next):
            if one is not None:
                one.coverage.drop(session)

    # For who copies sessions.

    def note_copying(self) -> None:
        """Somebody reads a whole session now, for whom the processor is needed."""
        self._budget.note_activity()

    # For the owner.

    @property
    def status(self) -> IndexStatus:
        """How far it is."""
        if self._support is False or not self._settings().index:
            return IndexStatus("unsupported" if self._support is False else "off", 0, 0)
        current = self._current
        if current is None:
            return IndexStatus("building", 0, 0)
        coverage = current.coverage
        is_idle = not coverage.due and not (self._is_building and self._next is None)
        is_ready = current.is_complete and is_idle and not self._problem and not current.doubt
        return IndexStatus("ready" if is_ready else "building", coverage.indexed_bytes, coverage.total_bytes)

    def findings(self) -> list[Finding]:
        """What `doctor` says about it."""
        status = self.status
        slow = "a search reads every transcript"
        if status.state == "unsupported":
            what = f"SQLite {database.VERSION} of this Python has no trigrams (FTS5): {slow}"
            return [Finding("warn", "search", what, "use a Python with SQLite 3.34 or newer that has FTS5")]
        if status.state == "off":
            return [Finding("ok", "search", f"there is no index, as it is configured: {slow}")]
        if self._problem:
            what = f"the index is not kept up to date: {self._problem}; {slow} as far as it is not indexed"
            return [Finding("warn", "search", what, "see that the store can be written to")]
        done = 100 * status.indexed_bytes // max(1, status.total_bytes)
        what = "all is indexed" if status.state == "ready" else f"{done} % is indexed; the rest is read by each search"
        return [Finding("ok", "search", what)]

    def reconfigure(self) -> None:
        """The configuration has changed, or there is something else to do."""
        self._wake.set()

    # The work.

    async def run(self) -> None:
        """Keep it up to date, until cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        self._store.catalog.watcher = self
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._interrupt_at_end)
                while True:
                    await self._keep_up_once()
        finally:
            self._store.catalog.watcher = None
            current, other, self._current, self._next = self._current, self._next, None, None
            # Without a thread to close it in, it is begun again at the next start.
            with trio.CancelScope(shield=True), trio.move_on_after(_CLOSING_S), suppress(NoThread):
                await self._run_sync(opened.close, current, other, abandon_on_cancel=True)

    async def _interrupt_at_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._budget.stop()
            for one in (self._current, self._next):
                if one is not None and one.database is not None:
                    one.database.interrupt()

    async def _keep_up_once(self) -> None:
        try:
            try:
                await self._do_next()
            except IndexDoubt as doubt:
                await trio.lowlevel.checkpoint_if_cancelled()
                log.warning("the search index is begun again", reason=str(doubt))
                await self._remove()
        except (IndexTrouble, OSError) as trouble:
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._rest_after(trouble)

    async def _do_next(self) -> None:
        if self._support is None:
            self._support = await self._run_sync(self._is_possible)
        if self._condemned is not None:
            await self._remove()
        if not (self._support and self._settings().index):
            await self._remove()
            await self._wait(None)
        elif self._current is None:
            await self._open()
        else:
            await self._work_on(self._current, self._next or self._current)

    async def _work_on(self, current: OpenIndex, target: OpenIndex) -> None:
        """Do the next thing to be done, or wait until there is one."""
        if current.doubt:
            raise IndexDoubt(current.doubt)
        jobs = target.coverage.take(trio.current_time())
        if jobs:
            await self._build(target, jobs)
        elif target is self._next:
            await self._replace_by(target)
        elif self._is_settled() and current.is_worn:
            self._next = OpenIndex()
            await self._cover(self._next)
        else:
            current.is_complete = True
            if self._is_settled():
                current.coverage.forget_rows()
            await self._wait(target.coverage.next_due)

    async def _wait(self, until: float | None) -> None:
        with trio.move_on_at(math.inf if until is None else until):
            await self._wake.wait()
        self._wake = trio.Event()

    async def _rest_after(self, trouble: IndexTrouble | OSError) -> None:
        reason = reason_of(trouble) if isinstance(trouble, OSError) else str(trouble)
        if reason != self._problem:
            log.warning("the search index is not kept up to date", reason=reason)
        self._problem = reason
        await trio.sleep(_AFTER_TROUBLE_S)

    async def _open(self) -> None:
        self._current, doubt = await self._run_sync(self._files.open)
        if doubt:
            log.warning("the search index is begun again", reason=doubt)
        await self._cover(self._current)

    async def _cover(self, one: OpenIndex) -> None:
        """Note all sessions that there are. Those that come meanwhile and later are noted by the catalog."""
        for count, session in enumerate(list(self._store.catalog.every()), 1):
            if self._store.catalog.has(session):
                one.coverage.note(session, trio.current_time())
            if count % _CHUNK == 0:
                await trio.lowlevel.checkpoint()

    async def _remove(self) -> None:
        given = [*(self._condemned or ()), *(one for one in (self._current, self._next) if one is not None)]
        self._current = self._next = None
        self._condemned, self._problem = given, ""
        with trio.CancelScope(shield=True):
            await self._run_sync(self._files.remove, *given)
        self._condemned = None

    async def _replace_by(self, other: OpenIndex) -> None:
        """Use the index that was built beside the one in use."""
        current, self._current = self._current, None
        assert current is not None
        try:
            with trio.CancelScope(shield=True):
                await self._run_sync(self._files.put_in_place, current, other)
        except NoThread:
            self._current = current
            raise
        self._current, self._next = other, None

    async def _build(self, target: OpenIndex, jobs: list[IndexJob]) -> None:
        is_done, self._is_building = False, True
        try:
            opened = target.database
            if opened is None:
                opened = await self._run_sync(self._files.make, target, target is self._next)
            builder = IndexBuilder(opened, jobs, self._store.record_limit)
            is_done = await self._run_slices(target, builder)
        finally:
            self._is_building = False
            if not is_done:
                target.coverage.put_back(jobs)
        for job in builder.failed:
            target.coverage.rest(job.session, trio.current_time())
        self._problem = ""

    async def _run_slices(self, target: OpenIndex, builder: IndexBuilder) -> bool:
        """Whether it was done to its end, and not given up because of the configuration, or a doubt."""
        work, is_more = builder.steps(), True
        try:
            while is_more and not target.doubt and self._settings().index:
                is_more, used_s = await self._run_sync(self._budget.run_slice, work)
                for job, row in builder.take_done():
                    target.coverage.apply(job, row)
                await self._budget.rest(used_s)
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await self._run_sync(work.close)
                except NoThread:
                    work.close()  # what its steps raised is not to be lost
            target.written_chars += builder.written_chars
        return not is_more
