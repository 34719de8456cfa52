"""A place among the appends to a transcript, taken before its lines are known: who comes later is written later."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from support.commit_tasks import CommitTasks
from support.patience import PATIENCE_S

from sessiond.errors import Stopping
from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.store.catalog import Folder, Session
from sessiond.store.committer import AppendPlace, Committer


async def inline(function: Any, *args: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return function(*args)


class Bench:
    """A committer, and the session `s` with its file."""

    def __init__(self, committer: Committer, folder: Folder, path: Path) -> None:
        self.committer, self._folder, self._path = committer, folder, path
        self.session = self.new_session("s")

    def new_session(self, name: str) -> Session:
        (self._path / f"{name}.jsonl").touch()
        return Session(key=f"agent:main:{name}", entry=Entry(session_id=name), folder=self._folder)

    def fill(self, place: AppendPlace, text: str) -> None:
        place.fill(lambda _: [f"{text}\n".encode()], text, lambda *_: None)

    async def append(self, text: str, session: Session | None = None) -> None:
        await self.committer.append(session or self.session, lambda _: [f"{text}\n".encode()], text)

    def lines(self, name: str = "s") -> list[str]:
        return (self._path / f"{name}.jsonl").read_text().split()


@asynccontextmanager
async def bench(path: Path) -> AsyncIterator[Bench]:
    committer = Committer(
        sync=None,
        record_limit=1 << 20,
        threads=partial(CommitTasks, inline),
        on_committed=lambda _session: False,
        on_refused=lambda _error: None,
    )
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(committer.run)
                yield Bench(committer, Folder("main", fd, dialect=V3), path)
                nursery.cancel_scope.cancel()
    finally:
        os.close(fd)


async def test_appends_behind_a_place_wait_and_those_to_other_sessions_do_not(tmp_path: Path) -> None:
    async with bench(tmp_path) as there, trio.open_nursery() as nursery:
        with there.committer.take_place(there.session) as place:
            nursery.start_soon(there.append, "behind")
            await there.append("elsewhere", there.new_session("other"))
            await trio.testing.wait_all_tasks_blocked()
            assert (there.lines(), there.lines("other")) == ([], ["elsewhere"])
            there.fill(place, "first")
    assert there.lines() == ["first", "behind"]


async def test_a_place_that_is_given_up_holds_up_nobody(tmp_path: Path) -> None:
    async with bench(tmp_path) as there, trio.open_nursery() as nursery:
        with there.committer.take_place(there.session):
            nursery.start_soon(there.append, "behind")
            await trio.testing.wait_all_tasks_blocked()
            assert there.lines() == []
    assert there.lines() == ["behind"]


async def test_waiting_for_earlier_appends_includes_earlier_places(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    async with bench(tmp_path) as there, trio.open_nursery() as nursery:

        async def wait() -> None:
            await there.committer.wait_written(there.session)
            seen.append(there.lines())

        with there.committer.take_place(there.session) as place:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert seen == []
            there.fill(place, "first")
    assert seen == [["first"]]


async def test_waiting_for_earlier_appends_does_not_include_later_places(tmp_path: Path) -> None:
    async with bench(tmp_path) as there, trio.open_nursery() as nursery:
        first = there.committer.take_place(there.session)
        nursery.start_soon(there.append, "second")
        nursery.start_soon(there.committer.wait_written, there.session)
        await trio.testing.wait_all_tasks_blocked()
        with there.committer.take_place(there.session):
            there.fill(first, "first")
            await trio.testing.wait_all_tasks_blocked()
            assert (there.lines(), len(nursery.child_tasks)) == (["first", "second"], 0)


async def test_a_stopped_committer_gives_no_place(tmp_path: Path) -> None:
    async with bench(tmp_path) as there:
        pass
    with pytest.raises(Stopping):
        there.committer.take_place(there.session)


@given(st.lists(st.sampled_from(["append", "take", "fill", "give up", "wait"])), st.randoms(use_true_random=False))
def test_lines_are_written_in_the_order_of_their_requests(steps: list[str], random: Any) -> None:
    async def play(path: Path) -> None:
        expected: list[str] = []
        open_places: dict[str, AppendPlace] = {}
        async with bench(path) as there, trio.open_nursery() as nursery:
            for number, step in enumerate(steps):
                if step == "append":
                    expected.append(str(number))
                    nursery.start_soon(there.append, str(number))
                    await trio.testing.wait_all_tasks_blocked()
                elif step == "take":
                    expected.append(str(number))
                    open_places[str(number)] = there.committer.take_place(there.session)
                elif step == "wait":
                    await trio.testing.wait_all_tasks_blocked()
                elif open_places:
                    name = random.choice(list(open_places))
                    with open_places.pop(name) as place:
                        if step == "fill":
                            there.fill(place, name)
                        else:
                            expected.remove(name)
            for name, place in open_places.items():
                there.fill(place, name)
            await there.committer.wait_written(there.session)
        assert there.lines() == expected
        assert there.session.in_flight == 0

    with tempfile.TemporaryDirectory() as folder:
        trio.run(play, Path(folder))
