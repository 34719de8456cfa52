"""What is read of transcripts for clients: pages, and whatever else a function reads of an open file.

In worker threads, so that a file that hangs keeps nobody waiting; at once, on the event loop, only where that neither
waits nor takes long. Knows sessions. Does not know callers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from sessiond.model.record import Record
from sessiond.store import dirfd
from sessiond.store.catalog import Folder, Session
from sessiond.store.kept_files import KeptFiles
from sessiond.store.page_reading import read_cached_page, read_shown_page
from sessiond.store.paging import MessagePage, page_backwards
from sessiond.store.reading_threads import ReadingThreads
from sessiond.store.refusals import read_error
from sessiond.store.shown_page import PageRequest, ShownPage
from sessiond.tasks import RunSync

T = TypeVar("T")


class SessionReader:
    """Reads in `threads`, or by `run_sync` if there is one. `files` are closed where no descriptor is free."""

    def __init__(self, threads: ReadingThreads, run_sync: RunSync | None, files: KeptFiles, record_limit: int) -> None:
        self._threads, self._files, self._record_limit = threads, files, record_limit
        self._read_one: RunSync = threads if run_sync is None else lambda _, *work: run_sync(*work)
        self._read_many: RunSync = run_sync or threads.read_many

    async def page(
        self, session: Session, wanted: Callable[[Record], bool], *, limit: int, max_bytes: int
    ) -> MessagePage:
        """The newest `limit` messages that match `wanted`, with their records, oldest first."""
        end, count = session.entry.file.folded_to, session.entry.message_count
        read = partial(
            page_backwards,
            end=end,
            end_seq=count,
            wanted=wanted,
            limit=limit,
            max_bytes=max_bytes,
            record_limit=self._record_limit,
            dialect=session.dialect,
            stop=end,
        )
        page: MessagePage = await self.read(session, read)
        return page

    async def shown_page(self, session: Session, asked: PageRequest, use: Callable[[ShownPage], T]) -> T:
        """As `page`, as history shows them: what `use` makes of the page, in the thread that read it.

        At once where it is short and in memory: the way into a thread and back takes a sixth of the time of a page.
        """
        entry, folder = session.entry, session.folder
        is_clean = entry.corrupt_records == 0
        if is_clean and folder.is_prompt and asked.is_short and self._threads.may_read_at_once():
            page = self._read_cached(session, asked)
            if page is not None:
                return use(page)

        def read(fd: int) -> T:
            page = read_shown_page(
                fd,
                asked,
                record_limit=self._record_limit,
                dialect=session.dialect,
                clean=is_clean,
                stop=entry.file.folded_to,
                # Records of another program are not always the bytes of one line.
                has_whole_lines=folder.source is None,
            )
            return use(page)

        made: T = await self.read(session, read)
        return made

    def _read_cached(self, session: Session, asked: PageRequest) -> ShownPage | None:
        try:
            with dirfd.closing(self._open(session.folder, session.file_name)) as fd:
                return read_cached_page(fd, asked, record_limit=self._record_limit, dialect=session.dialect)
        except (OSError, MemoryError):
            return None  # a thread finds out why, and says it

    async def read(self, session: Session, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function(fd, *args)` in a worker thread, with the session's file opened for reading."""

        def work() -> Any:
            fd = self._open(session.folder, session.file_name)
            try:
                return function(fd, *args)
            finally:
                os.close(fd)

        folder = session.folder
        try:
            try:
                return await self._read_one(session, work)
            except FileNotFoundError:
                if session.leaving is not None:
                    await session.leaving.wait()
                if session.folder is folder:
                    raise
                return await self._read_one(session, work)  # it was moved to the archive meanwhile
        except OSError as error:
            raise read_error(error, session) from None

    def _open(self, folder: Folder, name: str) -> int:
        return self._files.retry_with_room(lambda: folder.open_file(name))

    async def read_each(self, sessions: Sequence[Session], function: Callable[..., T], *args: Any) -> list[T | None]:
        """Run `function(fd, end, dialect, *args)` for each session in one worker thread; `end` is the offset up to
        which it is folded.

        The result is None for a session whose file cannot be read, or was moved meanwhile.
        """
        places = [(one.folder, one.file_name, one.entry.file.folded_to) for one in sessions]

        def read(folder: Folder, name: str, end: int) -> T | None:
            try:
                fd = self._open(folder, name)
            except OSError:
                return None
            try:
                return function(fd, end, folder.dialect, *args)
            except OSError:
                return None
            finally:
                os.close(fd)

        found: list[T | None] = await self._read_many(lambda: [read(*place) for place in places])
        return found
