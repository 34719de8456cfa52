"""One thread carries out commits while they are quick; a slow one does not keep the others waiting."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.store import commit_threads
from sessiond.store.commit_threads import THREADS, CommitThreads

T = TypeVar("T")


def put(threads: CommitThreads[T], job: T) -> None:
    threads.put(job)
    threads.wake()


@contextmanager
def started(carry_out: Callable[[str], None]) -> Iterator[CommitThreads[str]]:
    threads = CommitThreads(carry_out, lambda: None)
    threads.start()
    try:
        yield threads
    finally:
        threads.stop()


def test_jobs_are_taken_in_the_order_in_which_they_were_put():
    taken: list[str] = []
    over = threading.Event()

    def carry_out(job: str) -> None:
        taken.append(job)
        if job == "last":
            over.set()

    with started(carry_out) as threads:
        jobs = [*(f"{number}" for number in range(500)), "last"]
        for job in jobs:
            put(threads, job)
        assert over.wait(PATIENCE_S)
    # Several threads may note theirs in another order than they took them, but the first does nearly all.
    assert sorted(taken) == sorted(jobs)


@check_each("stuck", range(1, THREADS))
def test_stuck_jobs_do_not_hold_up_the_others(stuck: int):
    release, done = threading.Event(), threading.Semaphore(0)

    def carry_out(job: str) -> None:
        if job == "stuck":
            release.wait()  # without an end of its own, at which the others would go on
        done.release()

    with started(carry_out) as threads:
        for _ in range(stuck):
            put(threads, "stuck")
        for number in range(20):
            put(threads, str(number))
        try:
            for _ in range(20):
                assert done.acquire(timeout=PATIENCE_S)
            put(threads, "later")
            assert done.acquire(timeout=PATIENCE_S)
        finally:
            release.set()
        for _ in range(stuck):
            assert done.acquire(timeout=PATIENCE_S)


def test_what_was_put_before_the_stop_is_carried_out_and_then_the_threads_end():
    begin, taken = threading.Event(), []

    def carry_out(job: str) -> None:
        begin.wait(PATIENCE_S)
        taken.append(job)

    before = set(threading.enumerate())
    with started(carry_out) as threads:
        own = set(threading.enumerate()) - before
        assert len(own) == THREADS
        for number in range(50):
            put(threads, str(number))
        threads.stop()
        begin.set()
    for thread in own:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert sorted(map(int, taken)) == [*range(50)]


def test_threads_that_wait_for_work_end_at_the_stop(monkeypatch: pytest.MonkeyPatch):
    waiting = threading.Semaphore(0)

    class NotedCondition(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.release()  # whoever gets the lock from now on finds this thread waiting
            return super().wait(timeout)

    with monkeypatch.context() as patched:
        patched.setattr(commit_threads.threading, "Condition", NotedCondition)
        threads = CommitThreads[str](lambda _job: None, lambda: None)
    before = set(threading.enumerate())
    threads.start()
    own = set(threading.enumerate()) - before
    for _ in range(THREADS):
        assert waiting.acquire(timeout=PATIENCE_S)
    threads.stop()
    for thread in own:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@check_each("possible", [0, 1, 2])
def test_fewer_threads_do_the_work_too_and_none_is_an_error(monkeypatch: pytest.MonkeyPatch, possible: int):
    class Scarce(threading.Thread):
        left = possible

        def start(self) -> None:
            if not Scarce.left:
                raise RuntimeError("can't start new thread")
            Scarce.left -= 1
            super().start()

    monkeypatch.setattr(commit_threads.threading, "Thread", Scarce)
    done = threading.Semaphore(0)
    threads = CommitThreads[str](lambda _job: done.release(), lambda: None)
    if not possible:
        with pytest.raises(OSError, match="no thread could be started"):
            threads.start()
        return
    threads.start()
    for _ in range(20):
        put(threads, "job")
    for _ in range(20):
        assert done.acquire(timeout=PATIENCE_S)
    threads.stop()


def test_a_job_is_not_kept_after_it_was_carried_out():
    # Its lines may be many megabytes, and the next job may be long in coming.
    class Job:
        pass

    gone = threading.Event()

    def note(_: object) -> None:
        gone.set()

    threads = CommitThreads[Job](lambda _job: None, lambda: None)
    threads.start()
    job = Job()
    watched = weakref.ref(job, note)
    put(threads, job)
    del job
    assert gone.wait(PATIENCE_S), watched
    threads.stop()


def test_jobs_that_wait_are_all_begun_before_they_are_finished_and_reported_together():
    order: list[str] = []
    is_begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def carry_out(job: str) -> Callable[[], None]:
        order.append(f"begin {job}")
        if job == "a":
            is_begun.set()
            go_on.wait(PATIENCE_S)
        return lambda: order.append(f"finish {job}")

    def report() -> None:
        order.append("report")
        if "finish c" in order:
            over.set()

    # With one thread, since others may take part of it on a busy machine.
    threads = CommitThreads(carry_out, report)
    first = threading.Thread(target=threads._serve_first)
    first.start()
    put(threads, "a")
    assert is_begun.wait(PATIENCE_S)
    for job in "bc":
        put(threads, job)
    go_on.set()
    assert over.wait(PATIENCE_S)
    threads.stop()
    first.join(PATIENCE_S)
    assert order[-1] == "report"
    # One that took long on a busy machine is reported before.
    steps = [step for step in order if step != "report"]
    assert steps == ["begin a", "begin b", "begin c", "finish a", "finish b", "finish c"]


@pytest.mark.parametrize("where", ["begin", "finish"])
def test_a_stuck_job_does_not_hold_up_the_report_of_those_before_it(where: str):
    go_on, release, reported = threading.Event(), threading.Event(), threading.Event()
    ended: list[str] = []

    def carry_out(job: str) -> Callable[[], None]:
        if job == "a":
            go_on.wait(PATIENCE_S)  # until the other one waits behind it
        if (job, where) == ("stuck", "begin"):
            release.wait(PATIENCE_S)
        return lambda: finish(job)

    def finish(job: str) -> None:
        if job == "stuck":
            release.wait(PATIENCE_S)
        ended.append(job)

    def report() -> None:
        if "a" in ended:
            reported.set()

    threads = CommitThreads(carry_out, report)
    threads.start()
    for job in ("a", "stuck"):
        put(threads, job)
    go_on.set()
    try:
        assert reported.wait(PATIENCE_S)
        assert ended == ["a"]
    finally:
        release.set()
        threads.stop()


def test_jobs_of_two_steps_behind_a_stuck_one_are_carried_out():
    release, done = threading.Event(), threading.Semaphore(0)

    def carry_out(job: str) -> Callable[[], None]:
        if job == "stuck":
            release.wait(PATIENCE_S)
        return done.release

    threads = CommitThreads(carry_out, lambda: None)
    threads.start()
    put(threads, "stuck")
    for number in range(200):
        put(threads, str(number))
    try:
        for _ in range(200):
            assert done.acquire(timeout=PATIENCE_S)
    finally:
        release.set()
        threads.stop()


def test_nothing_begins_before_the_threads_are_woken_and_one_call_is_enough():
    begun: list[str] = []
    over = threading.Event()
    threads = CommitThreads(begun.append, over.set)
    threads.start()
    for job in "abc":
        threads.put(job)
    assert begun == []
    threads.wake()
    assert over.wait(PATIENCE_S)
    threads.stop()
    assert begun[0] == "a"


def test_a_job_that_took_long_is_reported_before_the_others_are_finished():
    order: list[str] = []
    is_begun, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def carry_out(job: str) -> Callable[[], None]:
        if job == "slow":
            is_begun.set()
            go_on.wait(PATIENCE_S)
        return lambda: finish(job)

    def finish(job: str) -> None:
        began = time.monotonic()
        while job == "slow" and time.monotonic() - began <= commit_threads.STALL_S:
            pass
        order.append(job)

    def report() -> None:
        order.append("report")
        if "b" in order:
            over.set()

    threads = CommitThreads(carry_out, report)
    first = threading.Thread(target=threads._serve_first)
    first.start()
    put(threads, "slow")
    assert is_begun.wait(PATIENCE_S)
    put(threads, "b")
    go_on.set()
    assert over.wait(PATIENCE_S)
    threads.stop()
    first.join(PATIENCE_S)
    assert order[:3] == ["slow", "report", "b"]


def test_jobs_that_were_all_begun_are_finished_by_all_threads_at_once():
    together, done = threading.Barrier(THREADS), threading.Semaphore(0)

    def finish() -> None:
        together.wait(PATIENCE_S)
        done.release()

    threads = CommitThreads[int](lambda _job: finish, lambda: None)
    threads.start()
    for job in range(THREADS):
        threads.put(job)
    threads.wake()
    for _ in range(THREADS):
        assert done.acquire(timeout=PATIENCE_S)
    threads.stop()


def test_a_sync_that_ends_when_the_first_thread_sleeps_is_reported_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit_threads, "STALL_S", 10 * PATIENCE_S)  # nobody finds it by watching
    together, late_is_over, reported = threading.Barrier(2), threading.Event(), threading.Event()

    def finish() -> None:
        together.wait(PATIENCE_S)
        if threading.current_thread().name == "commits-0":
            return
        deadline = time.monotonic() + PATIENCE_S
        while not threads._first_waits and time.monotonic() < deadline:
            reported.wait(0.001)
        late_is_over.set()

    def report() -> None:
        if late_is_over.is_set():
            reported.set()

    threads = CommitThreads[str](lambda _job: finish, report)
    threads.start()
    for job in "ab":
        threads.put(job)
    threads.wake()
    assert reported.wait(PATIENCE_S)
    threads.stop()
