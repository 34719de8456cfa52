"""Commits on the event loop, by whatever a test has its file work done with.

Threads know nothing of a test's clock, which jumps as soon as every task waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from sessiond.store.commit_job import CommitJob
from sessiond.store.commit_threads import BegunCommit
from sessiond.tasks import RunSync


class CommitTasks:
    """A task for each commit, which is carried out by `run_sync`, and then reported."""

    def __init__(
        self,
        run_sync: RunSync,
        begin: Callable[[CommitJob], BegunCommit | None],
        report: Callable[[], None],
        _fail: Callable[[BaseException], None],
    ) -> None:
        self._run_sync, self._begin, self._report = run_sync, begin, report

    def start(self) -> None:
        """Nothing: each commit has its task."""

    def put(self, job: CommitJob) -> None:
        trio.lowlevel.spawn_system_task(self._run, job)

    def wake(self) -> None:
        """Nothing: they are under way."""

    def stop(self) -> None:
        """Nothing: they have ended."""

    async def _run(self, job: CommitJob) -> None:
        await self._run_sync(self._carry_out, job)

    def _carry_out(self, job: CommitJob) -> None:
        begun = self._begin(job)
        if begun is not None:
            begun.sync()
            begun.finish()
        self._report()


def with_commits(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings for `open_store`, whose `run_sync`, if there is one, carries out the commits too."""
    run_sync = settings.get("run_sync")
    if run_sync is None or "threads" in settings:
        return settings
    return {**settings, "threads": partial(CommitTasks, run_sync)}
