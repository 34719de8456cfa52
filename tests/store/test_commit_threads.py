"""One thread does the work of commits, others wait for the disk in its place; a slow one keeps nobody waiting."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.store import commit_threads
from sessiond.store.commit_threads import HELPERS, BegunCommit, CommitThreads

Act = Callable[[str], object]


def do_nothing(_job: str) -> None:
    pass


class Commits:
    """What the threads are given: each step calls its function with the job, and is noted. Nothing may fail."""

    def __init__(self, begin: Act = do_nothing, sync: Act = do_nothing, finish: Act = do_nothing) -> None:
        self.acts = {"begin": begin, "sync": sync, "finish": finish}
        self.steps: list[tuple[str, str]] = []
        self.finished = threading.Semaphore(0)
        self.reported: list[set[str]] = []
        self.report_is_due = threading.Condition()
        self.failures: list[BaseException] = []

    def begin(self, job: str) -> BegunCommit:
        self.act("begin", job)
        return CommitOf(self, job)

    def act(self, what: str, job: str) -> None:
        self.acts[what](job)
        self.steps.append((what, job))
        if what == "finish":
            self.finished.release()

    def report(self) -> None:
        with self.report_is_due:
            self.reported.append({job for what, job in self.steps if what == "finish"})
            self.report_is_due.notify_all()

    def wait_for_report(self, *jobs: str) -> None:
        """Return when all of them were reported."""
        with self.report_is_due:
            assert self.report_is_due.wait_for(lambda: set(jobs) <= set().union(*self.reported), PATIENCE_S), self.steps

    def steps_of(self, what: str) -> list[str]:
        return [job for step, job in self.steps if step == what]


class CommitOf:
    def __init__(self, commits: Commits, job: str) -> None:
        self._commits, self._job = commits, job

    def sync(self) -> None:
        self._commits.act("sync", self._job)

    def finish(self) -> None:
        self._commits.act("finish", self._job)


@contextmanager
def started(commits: Commits) -> Iterator[CommitThreads[str]]:
    before = set(threading.enumerate())
    threads = CommitThreads(commits.begin, commits.report, commits.failures.append)
    threads.start()
    own = set(threading.enumerate()) - before
    try:
        yield threads
    finally:
        threads.stop()
        for thread in own:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in own)
        assert commits.failures == []


def put(threads: CommitThreads[str], *jobs: str) -> None:
    for job in jobs:
        threads.put(job)
    threads.wake()


def never_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no machine be so slow that a step seems to be stuck."""
    monkeypatch.setattr(commit_threads, "STALL_S", 10 * PATIENCE_S)
    monkeypatch.setattr(commit_threads, "WATCH_S", 10 * PATIENCE_S)


def test_jobs_are_begun_and_finished_in_the_order_in_which_they_were_put(monkeypatch: pytest.MonkeyPatch):
    never_stalled(monkeypatch)
    commits = Commits()
    jobs = [str(number) for number in range(500)]
    with started(commits) as threads:
        for job in jobs:
            put(threads, job)
        commits.wait_for_report(*jobs)
    assert commits.steps_of("begin") == jobs
    assert sorted(commits.steps_of("sync")) == sorted(commits.steps_of("finish")) == sorted(jobs)


def test_what_waits_is_begun_then_synced_at_once_then_finished_by_one_thread_and_reported_together(
    monkeypatch: pytest.MonkeyPatch,
):
    never_stalled(monkeypatch)
    together, at_work = threading.Barrier(HELPERS), set[threading.Thread]()
    commits = Commits(
        begin=lambda _job: at_work.add(threading.current_thread()),
        sync=lambda _job: together.wait(PATIENCE_S),
        finish=lambda _job: at_work.add(threading.current_thread()),
    )
    jobs = [str(number) for number in range(HELPERS)]
    with started(commits) as threads:
        put(threads, *jobs)
        commits.wait_for_report(*jobs)
    assert [what for what, _ in commits.steps] == [what for what in ("begin", "sync", "finish") for _ in jobs]
    assert commits.reported == [set(jobs)]
    assert len(at_work) == 1


def test_a_single_commit_is_the_work_of_one_thread(monkeypatch: pytest.MonkeyPatch):
    never_stalled(monkeypatch)
    at_work = set[threading.Thread]()

    def note(_job: str) -> None:
        at_work.add(threading.current_thread())

    commits = Commits(note, note, note)
    with started(commits) as threads:
        for job in "abc":
            put(threads, job)
            commits.wait_for_report(job)
    assert len(at_work) == 1


@check_each("where", ["begin", "sync", "finish"])
@check_each("stuck", [*range(1, HELPERS + 3), 12, 40])
def test_stuck_jobs_hold_up_neither_the_others_nor_their_report(where: str, stuck: int):
    release = threading.Event()

    def act(job: str) -> None:
        if job.startswith("stuck"):
            release.wait()  # without an end of its own, at which the others would go on

    commits = Commits(**{where: act})
    slow, quick = [f"stuck {number}" for number in range(stuck)], [str(number) for number in range(40)]
    with started(commits) as threads:
        try:
            put(threads, quick[0], *slow, *quick[1:])
            commits.wait_for_report(*quick)
            put(threads, "later")
            commits.wait_for_report("later")
            assert not set(slow) & set().union(*commits.reported)
        finally:
            release.set()
        commits.wait_for_report(*slow)
    assert sorted(commits.steps_of("finish")) == sorted([*slow, *quick, "later"])


@check_each("most", [HELPERS + 1, HELPERS + 2, 12])
def test_the_last_thread_takes_no_sync_that_may_not_end(monkeypatch: pytest.MonkeyPatch, most: int):
    """So many hang that no thread is left but one: it goes on with whatever the others get through."""
    monkeypatch.setattr(commit_threads, "MOST_WORKERS", most)
    releases = {f"stuck {number}": threading.Event() for number in range(most)}
    syncing = threading.Semaphore(0)

    def sync(job: str) -> None:
        if job in releases:
            syncing.release()
            releases[job].wait()

    commits = Commits(sync=sync)
    with started(commits) as threads:
        try:
            put(threads, *releases, "behind")
            for _ in range(most - 1):
                assert syncing.acquire(timeout=PATIENCE_S)
            # All of the others hang. The last one begins what comes, so that it is written, again and again.
            for job in ("later", "and later"):
                put(threads, job)
                wait_until(lambda job=job: job in commits.steps_of("begin"))
            assert commits.steps_of("finish") == []
            # One gets through: it syncs what nobody else did, and that is reported while the others still hang.
            first, second, *_ = releases
            releases[first].set()
            assert syncing.acquire(timeout=PATIENCE_S), "the last that hangs"
            releases[second].set()
            commits.wait_for_report(first, second, "behind", "later", "and later")
            put(threads, "at last")
            commits.wait_for_report("at last")
        finally:
            for release in releases.values():
                release.set()
        commits.wait_for_report(*releases)


def test_threads_that_were_started_for_files_that_hang_end_when_those_go_on():
    release = threading.Event()
    commits = Commits(sync=lambda job: job.startswith("stuck") and release.wait())
    stuck = [f"stuck {number}" for number in range(3 * HELPERS)]
    with started(commits) as threads:
        before = threading.active_count()
        try:
            put(threads, *stuck, "quick")
            commits.wait_for_report("quick")
            assert threading.active_count() > before + HELPERS
        finally:
            release.set()
        commits.wait_for_report(*stuck)
        wait_until(lambda: threading.active_count() <= before)


def wait_until(condition: Callable[[], object]) -> None:
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not condition() and time.monotonic() < deadline:
        pause.wait(0.001)
    assert condition()


@check_each("where", ["begin", "sync", "finish"])
def test_the_report_before_a_stuck_job_and_what_is_put_behind_it_do_not_wait(where: str):
    is_stuck, release = threading.Event(), threading.Event()

    def act(job: str) -> None:
        if job == "stuck":
            is_stuck.set()
            release.wait()

    for before in (["a"], []):
        is_stuck.clear()
        release.clear()
        commits = Commits(**{where: act})
        with started(commits) as threads:
            try:
                put(threads, *before, "stuck")
                commits.wait_for_report(*before)
                assert is_stuck.wait(PATIENCE_S)
                put(threads, "behind")
                commits.wait_for_report("behind")
            finally:
                release.set()


@check_each("where", ["begin", "sync", "finish"])
def test_what_was_put_before_the_stop_is_carried_out_and_reported_and_then_the_threads_end(where: str):
    begin = threading.Event()
    commits = Commits(**{where: lambda _job: begin.wait(PATIENCE_S)})
    jobs = [str(number) for number in range(50)]
    with started(commits) as threads:
        put(threads, *jobs)
        threads.stop()
        begin.set()
    assert sorted(commits.steps_of("finish")) == sorted(jobs)
    assert set().union(*commits.reported) == set(jobs)


def test_a_job_that_is_stuck_at_the_stop_is_reported_when_it_ends():
    is_stuck, release = threading.Semaphore(0), threading.Event()

    def stick(_job: str) -> None:
        is_stuck.release()
        release.wait(PATIENCE_S)

    for where in ("begin", "sync", "finish"):
        commits = Commits(**{where: stick})
        release.clear()
        with started(commits) as threads:
            put(threads, "a", "b")
            assert is_stuck.acquire(timeout=PATIENCE_S) and is_stuck.acquire(timeout=PATIENCE_S)
            threads.stop()
            release.set()
        assert set().union(*commits.reported) == {"a", "b"}


def test_threads_that_wait_for_work_end_at_the_stop():
    commits = Commits()
    with started(commits) as threads:
        wait_until(lambda: len(threads._idle) == HELPERS)


@check_each("possible", [0, 1, 2, 3])
def test_fewer_threads_do_the_work_too_and_none_is_an_error(monkeypatch: pytest.MonkeyPatch, possible: int):
    class Scarce(threading.Thread):
        left = possible

        def start(self) -> None:
            if not Scarce.left:
                raise RuntimeError("can't start new thread")
            Scarce.left -= 1
            super().start()

    monkeypatch.setattr(commit_threads.threading, "Thread", Scarce)
    commits = Commits()
    if not possible:
        with pytest.raises(OSError, match="no thread can be started"):
            CommitThreads(commits.begin, commits.report, commits.failures.append).start()
        return
    jobs = [str(number) for number in range(20)]
    with started(commits) as threads:
        put(threads, *jobs)
        commits.wait_for_report(*jobs)


def test_a_job_is_not_kept_after_it_was_carried_out():
    # Its lines may be many megabytes, and the next job may be long in coming.
    class Job:
        pass

    gone = threading.Event()

    def note(_: object) -> None:
        gone.set()

    threads = CommitThreads[Job](lambda _job: None, lambda: None, lambda _error: None)
    threads.start()
    job = Job()
    watched = weakref.ref(job, note)
    threads.put(job)
    threads.wake()
    del job
    assert gone.wait(PATIENCE_S), watched
    threads.stop()


def test_nothing_begins_before_the_threads_are_woken_and_one_call_is_enough():
    commits = Commits()
    with started(commits) as threads:
        for job in "abc":
            threads.put(job)
        assert commits.steps == []
        threads.wake()
        commits.wait_for_report(*"abc")


def test_a_slow_disk_keeps_no_other_commit_from_being_begun_once_it_is_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit_threads, "STALL_S", 1e-9)  # every sync takes longer than this
    is_syncing, release = threading.Event(), threading.Event()

    def sync(job: str) -> None:
        if job == "slow":
            is_syncing.set()
            release.wait(PATIENCE_S)

    commits = Commits(sync=sync)
    with started(commits) as threads:
        # Nobody is replaced: a helper waits for the disk.
        monkeypatch.setattr(threads, "_call_watcher", lambda: None)
        put(threads, "a")
        commits.wait_for_report("a")
        put(threads, "slow")
        assert is_syncing.wait(PATIENCE_S)
        put(threads, "b")
        commits.wait_for_report("b")
        release.set()
        commits.wait_for_report("slow")


@check_each("where", ["begin", "sync", "finish", "report"])
def test_a_thread_that_dies_says_so(where: str):
    failed = threading.Event()
    failures: list[BaseException] = []

    def die(_job: str = "") -> None:
        raise RuntimeError("a bug")

    def fail(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    acts: dict[str, Any] = {} if where == "report" else {where: die}
    commits = Commits(**acts)
    threads = CommitThreads(commits.begin, die if where == "report" else commits.report, fail)
    threads.start()
    put(threads, "a")
    assert failed.wait(PATIENCE_S)
    assert [str(error) for error in failures] == ["a bug"]
    threads.stop()


def test_a_report_that_had_no_memory_is_made_again():
    reports: list[int] = []
    reported = threading.Event()

    def report() -> None:
        reports.append(len(reports))
        if len(reports) == 1:
            raise MemoryError
        reported.set()

    commits = Commits()
    threads = CommitThreads(commits.begin, report, lambda _error: None)
    threads.start()
    put(threads, "a")
    assert reported.wait(PATIENCE_S)
    threads.stop()
