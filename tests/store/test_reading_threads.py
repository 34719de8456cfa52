"""Files that hang while they are read keep no other reads waiting, and of one file only so many wait at once."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from support.patience import PATIENCE_S

from sessiond.errors import Overloaded
from sessiond.store.commit_threads import CommitThreads
from sessiond.store.reading_threads import MOST_OF_ONE, ReadingThreads
from sessiond.store.store import Message
from sessiond.tasks import run_in_thread


class HangingReads:
    """Reads that hang until the test lets them go on, each in a task of its own."""

    def __init__(self, threads: ReadingThreads, nursery: trio.Nursery) -> None:
        self.threads, self.nursery = threads, nursery
        self.release = threading.Event()
        self.begun = trio.Semaphore(0)
        self.ended = 0

    def start(self, key: Hashable) -> None:
        self.nursery.start_soon(self._hang, key)

    async def _hang(self, key: Hashable) -> None:
        await self.threads(key, self.hang)
        self.ended += 1

    def hang(self) -> None:
        trio.from_thread.run_sync(self.begun.release)
        self.release.wait()


@asynccontextmanager
async def hanging_reads(patience_s: float = PATIENCE_S) -> AsyncIterator[HangingReads]:
    threads = ReadingThreads()
    with trio.fail_after(patience_s):
        async with trio.open_nursery() as outer:
            outer.start_soon(threads.watch)
            async with trio.open_nursery() as nursery:
                reads = HangingReads(threads, nursery)
                try:
                    yield reads
                finally:
                    reads.release.set()
            outer.cancel_scope.cancel()


async def test_files_that_hang_keep_no_others_waiting() -> None:
    async with hanging_reads() as reads:
        for number in range(5 * MOST_OF_ONE):
            reads.start(number % 5)
        for _ in range(5 * MOST_OF_ONE):
            await reads.begun.acquire()
        assert [await reads.threads("another", abs, -number) for number in range(20)] == list(range(20))
        # Nor what is done in other threads.
        assert await run_in_thread(abs, -1) == 1
        assert reads.ended == 0


async def test_of_one_file_only_so_many_reads_wait_at_once() -> None:
    async with hanging_reads() as reads:
        for _ in range(50 * MOST_OF_ONE):
            reads.start("one")
        for _ in range(MOST_OF_ONE):
            await reads.begun.acquire()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert reads.begun.value == 0
        assert reads.threads._threads._places.borrowed_tokens == MOST_OF_ONE
        assert await reads.threads("another", abs, -1) == 1
    assert reads.ended == 50 * MOST_OF_ONE
    assert dict(reads.threads._places) == {}


async def test_nobody_takes_memory_for_a_file_that_hangs() -> None:
    async with hanging_reads() as reads:
        await reads.threads.wait_for_place("one")
        for _ in range(MOST_OF_ONE - 1):
            reads.start("one")
            await reads.begun.acquire()
        await reads.threads.wait_for_place("one")
        reads.start("one")
        await reads.begun.acquire()
        await reads.threads.wait_for_place("another")
        with trio.move_on_after(0.01) as waited:
            await reads.threads.wait_for_place("one")
        assert waited.cancelled_caught
        reads.release.set()
        await reads.threads.wait_for_place("one")
    assert dict(reads.threads._places) == {}


async def test_whoever_waits_too_long_for_a_place_is_told_why(autojump_clock: object) -> None:
    async with hanging_reads(math.inf) as reads:
        for _ in range(MOST_OF_ONE):
            reads.start("one")
            await reads.begun.acquire()
        with pytest.raises(Overloaded, match="4 reads of this session wait for its disk"):
            await reads.threads.wait_for_place("one")


async def test_reads_of_many_sessions_are_not_held_up_by_those_of_others() -> None:
    async with hanging_reads() as reads:
        for _ in range(3 * MOST_OF_ONE):
            reads.nursery.start_soon(reads.threads.read_many, reads.hang)
        for _ in range(3 * MOST_OF_ONE):
            await reads.begun.acquire()
        assert await reads.threads.read_many(abs, -1) == 1


async def test_an_error_of_a_read_is_its_callers_and_leaves_its_place() -> None:
    def fail() -> None:
        raise FileNotFoundError

    async with hanging_reads() as reads:
        for _ in range(3 * MOST_OF_ONE):
            try:
                await reads.threads("one", fail)
            except FileNotFoundError:
                continue
            raise AssertionError("nothing was raised")
        assert await reads.threads("one", abs, -1) == 1


async def test_a_session_whose_file_hangs_keeps_no_other_from_being_read(opener: Any) -> None:
    release, begun = threading.Event(), trio.Semaphore(0)

    def hang(_fd: int) -> None:
        trio.from_thread.run_sync(begun.release)
        release.wait()

    with trio.fail_after(PATIENCE_S):
        async with opener(run_sync=None, threads=CommitThreads) as store, trio.open_nursery() as nursery:
            said = [Message({"role": "user", "content": "hello"})]
            hung, _ = await store.create("agent:main:hung", "main", said)
            other, _ = await store.create("agent:main:other", "main", said)
            for _ in range(100):
                nursery.start_soon(store.read, hung, hang)
            for _ in range(MOST_OF_ONE):
                await begun.acquire()
            try:
                page = await store.page(other, lambda _: True, limit=10, max_bytes=1 << 20)
                assert len(page.lines) == 1
                assert await store.read_each([other], lambda _fd, end, _dialect: end) == [other.entry.file.folded_to]
            finally:
                release.set()
