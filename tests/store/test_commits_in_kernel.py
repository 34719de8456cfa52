"""Commits that the kernel syncs together: what takes long keeps nobody waiting, and what it cannot, threads can."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.store import commit_threads
from sessiond.store.begun_commit import BegunCommit
from sessiond.store.commit_threads import HELPERS, CommitThreads
from sessiond.store.kernel_syncs import MOST_AT_ONCE, KernelSyncs


class Commit:
    """A commit to a file; each step is counted."""

    def __init__(self, fd: int) -> None:
        self.unsynced_fd: int | None = fd
        self.steps: Counter[str] = Counter()
        self.finished = threading.Event()

    def sync(self) -> None:
        self.steps["synced by a thread"] += 1

    def note_synced(self, error: OSError | None) -> None:
        assert error is None
        self.steps["synced by the kernel"] += 1

    def finish(self) -> None:
        self.steps["finished"] += 1
        self.finished.set()

    def wait(self) -> None:
        assert self.finished.wait(PATIENCE_S)


class HeldSyncs(KernelSyncs):
    """The kernel's syncs, as if the disk kept those of `held` until they are released."""

    held: set[BegunCommit]
    news: threading.Condition

    def begin(self, commits: Sequence[BegunCommit]) -> int:
        self._left = len(commits)
        self._waiting = [*commits]
        return self._left

    def wait(self, least: int, seconds: float | None) -> None:
        with self.news:
            self.news.wait_for(lambda: len(self._synced()) >= least, seconds)

    def take_ended(self) -> Iterator[BegunCommit]:
        for commit in self._synced():
            commit.note_synced(None)
            self._waiting.remove(commit)
            self._left -= 1
            yield commit

    def _synced(self) -> list[BegunCommit]:
        return [commit for commit in self._waiting if commit not in self.held]

    def close(self) -> None:
        assert not self.is_busy


class Kernel:
    """What the threads open: `HeldSyncs` with the same `held`, as often as `most` says."""

    def __init__(self, most: int = 100) -> None:
        self.held: set[BegunCommit] = set()
        self.news = threading.Condition()
        self._left = most

    def open(self) -> KernelSyncs | None:
        if not self._left:
            return None
        self._left -= 1
        made = KernelSyncs.open()
        if made is None:
            pytest.skip("this kernel has no syncs of its own (io_setup)")
        made.close()
        held = HeldSyncs(made._context, made._numbers)
        held.held, held.news = self.held, self.news
        return held

    def release(self, *commits: BegunCommit) -> None:
        with self.news:
            self.held.difference_update(commits)
            self.news.notify_all()


@contextlib.contextmanager
def started(
    open_syncs: Callable[[], KernelSyncs | None], begin: Callable[[Commit], Commit] = lambda commit: commit
) -> Iterator[CommitThreads[Commit]]:
    before = set(threading.enumerate())
    failures: list[BaseException] = []
    threads = CommitThreads[Commit](begin, lambda: None, failures.append, open_syncs=open_syncs)
    threads.start()
    own = set(threading.enumerate()) - before
    wait_until(lambda: len(threads._idle) == HELPERS)
    try:
        yield threads
    finally:
        threads.stop()
        for thread in own:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in own)
        assert failures == []


def wait_until(condition: Callable[[], object]) -> None:
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not condition() and time.monotonic() < deadline:
        pause.wait(0.001)
    assert condition()


def put(threads: CommitThreads[Commit], *commits: Commit) -> None:
    for commit in commits:
        threads.put(commit)
    threads.wake()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine is so slow that a sync seems to be."""
    monkeypatch.setattr(commit_threads, "STALL_S", 10 * PATIENCE_S)
    monkeypatch.setattr(commit_threads, "WATCH_S", 10 * PATIENCE_S)


@pytest.mark.usefixtures("patient")
def test_several_are_synced_by_the_kernel_and_a_single_one_by_the_thread(tmp_path: Path) -> None:
    if (probe := KernelSyncs.open()) is None:
        pytest.skip("this kernel has no syncs of its own (io_setup)")
    probe.close()
    with (tmp_path / "file").open("wb") as file, started(KernelSyncs.open) as threads:
        for count in (2, 3, MOST_AT_ONCE, MOST_AT_ONCE + 2, 1):
            commits = [Commit(file.fileno()) for _ in range(count)]
            put(threads, *commits)
            for commit in commits:
                commit.wait()
            by = "a thread" if count == 1 else "the kernel"
            assert [commit.steps for commit in commits] == [Counter({f"synced by {by}": 1, "finished": 1})] * count


@pytest.mark.usefixtures("patient")
def test_one_that_needs_more_than_a_sync_has_all_of_them_synced_by_threads() -> None:
    commits = [Commit(0), Commit(0), Commit(0)]
    commits[1].unsynced_fd = None
    with started(Kernel().open) as threads:
        put(threads, *commits)
        for commit in commits:
            commit.wait()
    assert [commit.steps["synced by a thread"] for commit in commits] == [1, 1, 1]


@check_each("count", [1, 5, MOST_AT_ONCE - 1])
def test_what_takes_long_keeps_nobody_waiting_and_ends_when_it_does(count: int) -> None:
    kernel = Kernel()
    stuck, quick = [Commit(0) for _ in range(count)], [Commit(0) for _ in range(4)]
    kernel.held.update(stuck)
    with started(kernel.open) as threads:
        try:
            put(threads, *stuck, quick[0])
            quick[0].wait()
            put(threads, *quick[1:])
            for commit in quick[1:]:
                commit.wait()
            assert not any(commit.finished.is_set() for commit in stuck)
        finally:
            kernel.release(*stuck[:1])
            stuck[0].wait()
            kernel.release(*stuck)
        for commit in stuck:
            commit.wait()
    assert all(commit.steps["finished"] == 1 for commit in stuck)


def test_while_two_sets_wait_threads_sync_and_the_kernel_again_when_one_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel()
    stuck = [Commit(0), Commit(0)]
    kernel.held.update(stuck)
    with started(kernel.open) as threads:
        for commit in stuck:
            beside = Commit(0)
            threads._was_slow = False  # nothing is known of the disk
            put(threads, commit, beside)
            beside.wait()
        threads._was_slow = False
        pair = [Commit(0), Commit(0)]
        put(threads, *pair)
        for commit in pair:
            commit.wait()
            assert commit.steps["synced by a thread"] == 1
        kernel.release(stuck[0])
        wait_until(lambda: threads._kernel.has_one)
        with monkeypatch.context() as patched:
            patched.setattr(commit_threads, "STALL_S", 10 * PATIENCE_S)
            threads._was_slow = False
            pair = [Commit(0), Commit(0)]
            put(threads, *pair)
            for commit in pair:
                commit.wait()
                assert commit.steps["synced by the kernel"] == 1
        kernel.release(stuck[1])


@pytest.mark.usefixtures("patient")
@check_each("lacks", ["any", "memory", "one file"])
def test_what_the_kernel_does_not_take_threads_sync(lacks: str) -> None:
    asked = []

    def open_syncs() -> KernelSyncs | None:
        asked.append(lacks)
        if lacks == "memory":
            raise MemoryError
        return KernelSyncs.open() if lacks == "one file" else None

    readable, writable = os.pipe()
    with started(open_syncs) as threads, contextlib.ExitStack() as stack:
        for fd in (readable, writable):
            stack.callback(os.close, fd)
        for _ in range(3):
            commits = [Commit(readable) for _ in range(5)]
            put(threads, *commits)
            for commit in commits:
                commit.wait()
            assert all(commit.steps["synced by a thread"] == 1 for commit in commits)
    assert len(asked) == 1


def test_one_whose_place_was_taken_adds_its_commit_while_others_are_given_to_the_kernel() -> None:
    is_stuck, release = threading.Event(), threading.Event()
    stuck, quick = Commit(0), Commit(0)

    class Watched(Commit):
        """Looked at while the threads take what was begun."""

        @property
        def unsynced_fd(self) -> int | None:  # type: ignore[override]
            release.set()
            threading.Event().wait(0.2)  # the other has that long for adding its commit too early
            return 0

        @unsynced_fd.setter
        def unsynced_fd(self, fd: int | None) -> None:
            pass

    watched = Watched(0)

    def begin(commit: Commit) -> Commit:
        if commit is stuck:
            is_stuck.set()
            assert release.wait(PATIENCE_S)
        return commit

    with started(Kernel().open, begin) as threads:
        put(threads, stuck)
        assert is_stuck.wait(PATIENCE_S)
        put(threads, quick, watched)
        for commit in (stuck, quick, watched):
            commit.wait()


def test_what_takes_long_at_the_stop_is_finished_before_the_threads_end() -> None:
    kernel = Kernel()
    stuck, quick = Commit(0), Commit(0)
    kernel.held.add(stuck)
    with started(kernel.open) as threads:
        put(threads, stuck, quick)
        quick.wait()
        threads.stop()
        assert not stuck.finished.is_set()
        kernel.release(stuck)
    assert stuck.finished.is_set()
