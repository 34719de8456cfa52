"""A commit: the appends to one transcript that share a sync, and what carries it out. Knows no files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from sessiond.errors import StorageError
from sessiond.store.append import Append, Compose
from sessiond.store.catalog import Session
from sessiond.store.commit_threads import BegunCommit
from sessiond.store.refusals import Abandoned
from sessiond.store.transcript import Line, WrittenBytes

# The result of an append: (begin, end) of its lines, or the error.
Tell = Callable[[list[tuple[int, int]], StorageError | None], None]


class WaitingAppend(Append):
    """One append. `tell` is called with the result if no task waits for it."""

    __slots__ = ("tell",)

    def __init__(self, compose: Compose, last_id: str) -> None:
        super().__init__(compose, last_id)
        self.tell: Tell | None = None


class CommitJob:
    """The appends to one transcript that share a sync, behind the record `parent`. They get their results together.

    Others join until it `is_taken` by a thread. `parsed` are those of their lines that take long to parse, already
    parsed. `error` is that of all of them, until they were carried out. `crash` is a bug.
    """

    __slots__ = ("crash", "done", "error", "is_taken", "parent", "parsed", "session", "waiters", "written")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.waiters: list[WaitingAppend] = []
        self.parent: str | None = None
        self.is_taken = False
        self.parsed: list[Line] = []
        self.written: WrittenBytes | None = None
        # The appends must not count as acknowledged whatever happens to the thread.
        self.error: OSError | None = Abandoned()
        self.crash: BaseException | None = None
        self.done = trio.Event()


class Threads(Protocol):
    """What carries out commits: `CommitThreads`, unless a test says when they are."""

    def start(self) -> None: ...
    def put(self, job: CommitJob) -> None: ...
    def wake(self) -> None: ...
    def stop(self) -> None: ...


# Given `begin`, `report` and `fail` as `CommitThreads`.
MakeThreads = Callable[
    [Callable[[CommitJob], BegunCommit | None], Callable[[], None], Callable[[BaseException], None]], Threads
]
