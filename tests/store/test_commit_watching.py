"""How often the watcher looks whether the committer goes on: seldom while it does, but not after a slow step."""

from __future__ import annotations

import threading

import pytest
from support.patience import PATIENCE_S

from sessiond.store import commit_threads
from sessiond.store.commit_threads import CommitThreads

LOOKS = 6


class SteppedWatcher(commit_threads._Worker):
    """Notes for how long it is to sleep, in pauses, and sleeps until `look`; from `free` on as it is told."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self._pause_s, self._is_free = pause_s, False
        self._may_look, self._has_looked = threading.Semaphore(0), threading.Semaphore(0)
        self.pauses: list[int] = []

    def sleep(self, seconds: float = -1) -> bool:
        if seconds < 0 or self._is_free:
            return super().sleep(seconds)
        self.pauses.append(round(seconds / self._pause_s))
        self._has_looked.release()
        return self._may_look.acquire()

    def wait_for_look(self) -> None:
        assert self._has_looked.acquire(timeout=PATIENCE_S)

    def look(self) -> None:
        self._may_look.release()
        self.wait_for_look()

    def free(self) -> None:
        self._is_free = True
        self._may_look.release()


@pytest.mark.parametrize(
    ("pause_s", "pauses"),
    [
        pytest.param(10 * PATIENCE_S, [1, 2, 4, 8, 8, 8], id="no-step-is-slow"),
        pytest.param(1e-9, [1, 1, 1, 1, 1, 1], id="each-step-is-slow"),
    ],
)
def test_the_watcher_looks_seldom_at_a_committer_that_goes_on_but_often_at_a_slow_one(
    monkeypatch: pytest.MonkeyPatch, pause_s: float, pauses: list[int]
):
    monkeypatch.setattr(commit_threads, "WATCH_S", pause_s)
    begins, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def begin(_job: int) -> None:
        begins.release()
        assert go_on.acquire(timeout=PATIENCE_S)

    failures: list[BaseException] = []
    threads = CommitThreads[int](begin, lambda: None, failures.append)
    watcher = threads._watcher = SteppedWatcher(pause_s)
    threads.start()
    try:
        for job in range(LOOKS + 1):
            threads.put(job)
        threads.wake()
        assert begins.acquire(timeout=PATIENCE_S)
        watcher.wait_for_look()
        for _ in range(LOOKS - 1):
            # Another job is begun between two looks, so that the committer was never seen at the same step.
            go_on.release()
            assert begins.acquire(timeout=PATIENCE_S)
            watcher.look()
    finally:
        go_on.release(LOOKS + 1)
        watcher.free()
        threads.stop()
    assert watcher.pauses[:LOOKS] == pauses
    assert failures == []
