"""Which pages are read at once, on the event loop, and which in a thread."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from sessiond.store.catalog import Session
from sessiond.store.filesystem import is_prompt
from sessiond.store.new_records import Message
from sessiond.store.shown_page import PageRequest
from sessiond.store.store import SessionStore

pytestmark = pytest.mark.skipif(
    not is_prompt(tempfile.gettempdir()), reason="the temporary folder is not on ext4, XFS or Btrfs"
)
MESSAGES = 600


class Bench:
    """A store with one session, and how many threads its reads would have taken."""

    def __init__(self) -> None:
        self.threads = 0

    async def count(self, function: Callable[..., Any], *args: Any) -> Any:
        self.threads += 1
        return function(*args)

    @asynccontextmanager
    async def open(self, opener: Any) -> AsyncIterator[None]:
        async with opener(run_sync=self.count) as self.store:
            self.session: Session
            said = [Message({"role": "user", "content": "x" * 500}) for _ in range(MESSAGES)]
            self.session, _ = await self.store.create("agent:main:main", "main", said)
            yield

    async def read(self, limit: int = 200) -> int:
        """Read a page; how many threads that took."""
        await trio.testing.wait_all_tasks_blocked()  # another turn of the loop
        return await self.read_now(limit)

    async def read_now(self, limit: int) -> int:
        before, store = self.threads, self.store
        assert isinstance(store, SessionStore)
        asked = PageRequest(end=self.session.entry.file.folded_to, end_seq=MESSAGES, limit=limit, max_bytes=1 << 20)
        page = await store.shown_page(self.session, asked, lambda page: page)
        assert page.messages.seqs == list(range(MESSAGES - limit + 1, MESSAGES + 1))
        return self.threads - before


@pytest.fixture
async def bench(opener: Any) -> AsyncIterator[Bench]:
    bench = Bench()
    async with bench.open(opener):
        yield bench


async def test_a_short_page_takes_no_thread_and_a_long_one_takes_one(bench: Bench) -> None:
    assert (await bench.read(200), await bench.read(600)) == (0, 1)


async def test_in_one_turn_of_the_loop_only_one_page_takes_no_thread(bench: Bench) -> None:
    taken: list[int] = []

    async def read() -> None:
        taken.append(await bench.read_now(200))

    await bench.read(1)
    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(read)
    assert sorted(taken) == [0, 1, 1, 1, 1]
    assert await bench.read() == 0


async def test_a_file_system_that_may_not_answer_at_once_gets_a_thread(bench: Bench) -> None:
    bench.session.folder.is_prompt = False
    assert await bench.read() == 1


async def test_a_transcript_with_a_bad_line_is_read_in_a_thread(bench: Bench) -> None:
    path = bench.store.path / bench.session.path
    with path.open("ab") as file:
        file.write(b"{torn\n")
    bench.store.read_new(bench.session)
    assert bench.session.entry.corrupt_records == 1
    assert await bench.read() == 1


async def test_a_file_that_cannot_be_opened_is_left_to_a_thread_which_says_why(bench: Bench) -> None:
    (bench.store.path / bench.session.path).unlink()
    with pytest.raises(Exception, match="put it back"):
        await bench.read()
    assert bench.threads > 0
