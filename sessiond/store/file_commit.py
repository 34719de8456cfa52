"""One commit as the threads carry it out: its lines are written, synced and verified.

Knows jobs, and `writing` which does it. Does not know threads or who waits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sessiond.store.append import PARSED_AHEAD, Append
from sessiond.store.commit_job import CommitJob
from sessiond.store.kept_files import KeptFiles
from sessiond.store.writing import Sync, Writing, as_refusal


class FileCommits:
    """Begins commits. `take(job)` is called first, from when on nothing joins the job, and `ended(job)` when it has its
    results, both in a thread.
    """

    def __init__(
        self,
        *,
        sync: Sync | None,
        record_limit: int,
        take: Callable[[CommitJob], None],
        ended: Callable[[CommitJob], None],
    ) -> None:
        self.sync, self.record_limit = sync, record_limit
        self._take, self.ended = take, ended
        self.files = KeptFiles()

    def begin(self, job: CommitJob) -> FileCommit | None:
        """Write the lines of a commit; what is left to do."""
        try:
            self._take(job)
            commit = FileCommit(self, job)
            commit.begin()
        except BaseException as crash:  # noqa: BLE001 - raised again on the event loop
            self.note_crash(job, crash)
            return None
        return commit

    def note_crash(self, job: CommitJob, crash: BaseException) -> None:
        """End the job with what was raised: a refusal, or a bug."""
        if isinstance(crash, OSError | MemoryError):
            # Too little memory even to take the appends back.
            job.error = as_refusal(crash)
        else:
            job.crash = crash
        self.ended(job)


class FileCommit:
    """A commit to one transcript; see `commit_threads.BegunCommit`."""

    __slots__ = ("_appends", "_commits", "_crash", "_job", "_writing")

    def __init__(self, commits: FileCommits, job: CommitJob) -> None:
        self._commits, self._job = commits, job
        self._crash: BaseException | None = None
        self._appends: list[Append] = [*job.waiters]
        self._writing = Writing(
            job.session,
            self._appends,
            job.parent,
            record_limit=commits.record_limit,
            sync=commits.sync,
            files=commits.files,
        )

    def begin(self) -> None:
        self._writing.begin()

    def sync(self) -> None:
        try:
            self._writing.sync()
        except BaseException as crash:  # noqa: BLE001 - raised again on the event loop
            self._crash = crash

    def finish(self) -> None:
        job, commits, writing = self._job, self._commits, self._writing
        try:
            if self._crash is not None:
                writing.close()
                raise self._crash
            writing.finish()
            job.written = writing.written
            # Parsed here because folding runs on the event loop.
            with suppress(MemoryError):
                limit, dialect = commits.record_limit, job.session.dialect
                long = [append for append in self._appends if append.longest_line >= PARSED_AHEAD]
                job.parsed = [line for append in long for line in append.long_lines(limit, dialect)]
            job.error = None
        except BaseException as crash:  # noqa: BLE001 - raised again on the event loop
            commits.note_crash(job, crash)
        else:
            commits.ended(job)
