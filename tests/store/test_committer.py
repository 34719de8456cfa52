"""Group commit: in order, few syncs, and an error for exactly those whom it concerns."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.patience import PATIENCE_S

from sessiond.errors import Stopping, StorageError
from sessiond.model.entry import Entry
from sessiond.store.catalog import Folder, Session
from sessiond.store.committer import LANES, REPORT_S, Committer


class Gate:
    """A worker thread that the test holds: work is done, inline, when its turn is let through."""

    def __init__(self) -> None:
        self.waiting = 0
        self.open = False
        self._let = trio.Event()
        self._came = trio.Event()

    async def run_sync(self, function: Callable[..., Any], *args: Any) -> Any:
        self.waiting += 1
        self._came.set()
        while not self.open:
            await self._let.wait()
        self.waiting -= 1
        return function(*args)

    async def came(self, count: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while self.waiting < count:
                self._came = trio.Event()
                await self._came.wait()

    def let_through(self) -> None:
        self.open = True
        self._let.set()


async def inline(function: Callable[..., Any], *args: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return function(*args)


@asynccontextmanager
async def committing(
    run_sync: Callable[..., Any] = inline, on_committed: Any = lambda session: False, **options: Any
) -> AsyncIterator[Committer]:
    committer = Committer(
        sync=None,
        record_limit=1 << 20,
        run_sync=run_sync,
        on_committed=on_committed,
        on_refused=lambda _error: None,
        **options,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(committer.run)
        yield committer
        nursery.cancel_scope.cancel()


def made(folder: Folder, path: Path, name: str = "s") -> Session:
    (path / f"{name}.jsonl").touch()
    return Session(key=f"agent:main:{name}", entry=Entry(session_id=name), folder=folder)


def line(own: str, parent: str | None) -> bytes:
    return json.dumps({"id": own, "parentId": parent}).encode() + b"\n"


async def append(committer: Committer, session: Session, *ids: str) -> list[tuple[int, int]]:
    """Append lines with these ids, each naming the one before it."""

    def compose(parent: str | None) -> list[bytes]:
        return [line(own, before) for own, before in zip(ids, [parent, *ids], strict=False)]

    return await committer.append(session, compose, ids[-1])


def ids_of(path: Path, name: str = "s") -> list[str]:
    """The ids in the file; each must name the one before it."""
    lines = [json.loads(text) for text in (path / f"{name}.jsonl").read_text().splitlines() if text.strip()]
    assert [one["parentId"] for one in lines] == [None, *(one["id"] for one in lines)][: len(lines)]
    return [one["id"] for one in lines]


async def test_an_append_says_where_each_of_its_lines_stands(tmp_path, folder):
    session = made(folder, tmp_path)
    async with committing() as committer:
        places = await append(committer, session, "a", "b") + await append(committer, session, "c")
    content = (tmp_path / "s.jsonl").read_bytes()
    assert [content[begin:end] for begin, end in places] == [line("a", None), line("b", "a"), line("c", "b")]
    assert places[-1][1] == len(content)


async def test_appends_to_a_session_are_written_in_the_order_they_were_asked_for(tmp_path, folder):
    session, gate = made(folder, tmp_path), Gate()
    async with committing(gate.run_sync) as committer, trio.open_nursery() as nursery:
        nursery.start_soon(append, committer, session, "first")
        await gate.came(1)
        for number in range(50):
            nursery.start_soon(append, committer, session, f"{number:02d}")
            with trio.fail_after(PATIENCE_S):
                while session.in_flight < number + 2:
                    await trio.lowlevel.checkpoint()
        gate.let_through()
    assert ids_of(tmp_path) == ["first", *(f"{number:02d}" for number in range(50))]
    assert committer.syncs == 2
    assert session.in_flight == 0


async def test_sessions_share_the_lanes_and_none_is_written_twice_at_once(tmp_path, folder):
    sessions, gate = [made(folder, tmp_path, f"s{number}") for number in range(3 * LANES)], Gate()
    async with committing(gate.run_sync) as committer, trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(append, committer, session, "a")
            nursery.start_soon(append, committer, session, "b")
        await gate.came(1)
        await trio.testing.wait_all_tasks_blocked()
        assert gate.waiting <= LANES
        gate.let_through()
    for session in sessions:
        assert sorted(ids_of(tmp_path, session.session_id)) == ["a", "b"]


async def test_a_cancelled_wait_does_not_undo_the_append(tmp_path, folder):
    session, gate = made(folder, tmp_path), Gate()
    async with committing(gate.run_sync) as committer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, committer, session, "a")
            await gate.came(1)
            nursery.start_soon(append, committer, session, "b")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert session.in_flight == 2
        gate.let_through()
        assert await append(committer, session, "c")
    assert ids_of(tmp_path) == ["a", "b", "c"]
    assert session.in_flight == 0


async def test_what_was_asked_for_before_the_end_is_written_and_later_is_refused(tmp_path, folder):
    session, gate = made(folder, tmp_path), Gate()
    committer = Committer(
        sync=os.fdatasync,
        record_limit=1 << 20,
        run_sync=gate.run_sync,
        on_committed=lambda session: False,
        on_refused=lambda _error: None,
    )
    async with trio.open_nursery() as waiters:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as background:
                await background.start(committer.run)
                waiters.start_soon(append, committer, session, "a")
                await gate.came(1)
                waiters.start_soon(append, committer, session, "b")
                await trio.testing.wait_all_tasks_blocked()
                background.cancel_scope.cancel()
                background.start_soon(trio.lowlevel.checkpoint)
                gate.let_through()
    assert ids_of(tmp_path) == ["a", "b"]
    with pytest.raises(Stopping) as refused:
        await append(committer, session, "c")
    assert refused.value.data == {"retryAfterMs": 1000}


async def test_the_end_does_not_wait_for_work_that_nobody_asked_for():
    with trio.move_on_after(PATIENCE_S) as patience:
        async with committing():
            pass
    assert not patience.cancelled_caught


async def test_the_fold_is_poked_after_the_commit_and_before_the_caller_goes_on(tmp_path, folder):
    session, seen = made(folder, tmp_path), []

    def committed(one: Session) -> None:
        seen.append((one, (tmp_path / "s.jsonl").read_bytes(), one.in_flight))

    async with committing(on_committed=committed) as committer:
        await append(committer, session, "a")
        seen.append("caller")
    assert seen == [(session, line("a", None), 0), "caller"]


class Passing:
    """A clock by which every piece of work takes longer than a slice."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        self.time_s += REPORT_S
        return self.time_s


async def test_others_have_their_turn_while_much_is_announced_and_nobody_is_answered_before_it_is(tmp_path, folder):
    session, other = made(folder, tmp_path), made(folder, tmp_path, "other")
    events: list[str] = []
    left = {session: 5, other: 5}

    def announce(one: Session) -> bool:
        left[one] -= 1
        events.append(f"announce {one.session_id}")
        return left[one] > 0

    async def note_turns() -> None:
        while True:
            events.append("turn")
            await trio.lowlevel.checkpoint()

    def tell(places: list[tuple[int, int]], error: StorageError | None) -> None:
        assert places and error is None
        events.append("told")

    async with committing(on_committed=announce, now=Passing()) as committer, trio.open_nursery() as nursery:
        nursery.start_soon(note_turns)
        for number in range(20):
            committer.append_later(session, lambda parent: [line("x", parent)], str(number), tell)
        await append(committer, other, "a")
        async with committer.hold_exclusively(session):
            events.append("held")
        nursery.cancel_scope.cancel()
    own = [event for event in events if event not in ("turn", "announce other")]
    assert own == ["announce s"] * 5 + ["told"] * 20 + ["held"]
    assert events.count("announce other") == 5
    # What comes together is a slice of each lane, and one of the turn before.
    together = [len(list(group)) for is_turn, group in groupby(events, lambda event: event == "turn") if not is_turn]
    assert max(together) <= LANES


async def test_whoever_waits_for_an_append_goes_on_when_all_of_it_was_announced(tmp_path, folder):
    session, events, left = made(folder, tmp_path), [], 5

    def announce(_: Session) -> bool:
        nonlocal left
        left -= 1
        events.append("announced")
        return left > 0

    async with committing(on_committed=announce, now=Passing()) as committer, trio.open_nursery() as nursery:

        async def wait() -> None:
            await append(committer, session, "a")
            events.append("answered")

        nursery.start_soon(wait)
        # Somebody else's lane: between two slices there is a turn for everybody.
        await append(committer, made(folder, tmp_path, "other"), "b")
    assert [event for event in events if event == "answered" or left == 0][-1] == "answered"
    assert events.index("answered") >= 5


async def test_nothing_is_written_to_a_session_while_what_was_written_is_announced(tmp_path, folder):
    session, sizes, rest = made(folder, tmp_path), [], 6

    def announce(_: Session) -> bool:
        nonlocal rest
        if rest == 6:
            committer.append_later(session, lambda parent: [line("b", parent)], "b", lambda _places, _error: None)
        sizes.append((tmp_path / "s.jsonl").stat().st_size)
        rest -= 1
        return rest > 0

    async with committing(on_committed=announce, now=Passing()) as committer:
        await append(committer, session, "a")
        with trio.fail_after(PATIENCE_S):
            while session.in_flight:
                await trio.lowlevel.checkpoint()
    assert ids_of(tmp_path) == ["a", "b"]
    assert sizes == [len(line("a", None))] * 6 + [(tmp_path / "s.jsonl").stat().st_size]


async def test_what_was_written_is_announced_and_answered_though_the_daemon_stops(tmp_path, folder):
    session, told, left = made(folder, tmp_path), [], 5

    def announce(_: Session) -> bool:
        nonlocal left
        left -= 1
        if left == 3:
            stop.cancel()
        return left > 0

    with trio.CancelScope() as stop:
        async with committing(on_committed=announce, now=Passing()) as committer:
            for number in range(3):
                committer.append_later(
                    session, lambda parent: [line("x", parent)], str(number), lambda places, _: told.append(places)
                )
            await trio.sleep_forever()
    assert (left, len(told)) == (0, 3)


async def test_a_failed_write_is_an_error_to_its_callers_alone(tmp_path, folder):
    good, gone = made(folder, tmp_path, "good"), made(folder, tmp_path, "gone")
    (tmp_path / "gone.jsonl").unlink()
    async with committing() as committer:
        with pytest.raises(StorageError) as refused:
            await append(committer, gone, "a")
        assert await append(committer, good, "a")
        (tmp_path / "gone.jsonl").touch()
        assert await append(committer, gone, "b")
    assert refused.value.message == (
        "could not write to the transcript of agent:main:gone: No such file or directory; nothing was stored."
        " Make room or check the disk, then send again"
    )
    assert refused.value.data == {"sessionKey": "agent:main:gone", "reason": "No such file or directory"}
    assert ids_of(tmp_path, "gone") == ["b"]


async def test_a_symlink_put_in_the_place_of_a_transcript_is_not_written_to(tmp_path, folder):
    session = made(folder, tmp_path)
    (tmp_path / "s.jsonl").unlink()
    (tmp_path / "outside").write_text("untouched")
    (tmp_path / "s.jsonl").symlink_to("outside")
    async with committing() as committer:
        with pytest.raises(StorageError):
            await append(committer, session, "a")
    assert (tmp_path / "outside").read_text() == "untouched"


async def test_a_mistake_in_the_thread_acknowledges_nothing(tmp_path, folder):
    session, outcome = made(folder, tmp_path), []

    async def broken(function: Callable[..., Any], *args: Any) -> Any:
        raise RuntimeError("can't start new thread")

    async def ask(committer: Committer) -> None:
        try:
            await append(committer, session, "a")
        except StorageError as error:
            outcome.append(error.data["reason"])

    async with trio.open_nursery() as waiters:
        with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
            async with committing(broken) as committer:
                waiters.start_soon(ask, committer)
                await trio.sleep(math.inf)
    assert outcome == ["Input/output error"]


async def test_appends_wait_while_the_transcript_is_held_and_are_written_afterwards(tmp_path, folder):
    session = made(folder, tmp_path)
    async with committing() as committer, trio.open_nursery() as nursery:
        async with committer.hold_exclusively(session):
            nursery.start_soon(append, committer, session, "a")
            await trio.testing.wait_all_tasks_blocked()
            assert ids_of(tmp_path) == []
            (tmp_path / "s.jsonl").rename(tmp_path / "s2.jsonl")
            session.entry = Entry(session_id="s2")
    assert ids_of(tmp_path, "s2") == ["a"]


async def test_holding_waits_for_the_commit_under_way(tmp_path, folder):
    session, gate, order = made(folder, tmp_path), Gate(), []
    async with committing(gate.run_sync) as committer, trio.open_nursery() as nursery:

        async def hold() -> None:
            async with committer.hold_exclusively(session):
                order.append(ids_of(tmp_path))

        nursery.start_soon(append, committer, session, "a")
        await gate.came(1)
        nursery.start_soon(hold)
        await trio.testing.wait_all_tasks_blocked()
        assert order == []
        gate.let_through()
    assert order == [["a"]]


async def test_a_transcript_has_one_holder_at_a_time_however_many_wait_for_it(folder, tmp_path):
    session = made(folder, tmp_path)
    holders: list[int] = []
    most = 0
    async with committing() as committer:

        async def hold() -> None:
            nonlocal most
            async with committer.hold_exclusively(session):
                holders.append(1)
                most = max(most, len(holders))
                await trio.testing.wait_all_tasks_blocked()
                holders.pop()

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(hold)
        await append(committer, session, "a")
    assert most == 1


async def test_the_record_after_a_refused_one_names_the_last_that_stands(folder, tmp_path):
    """Also where the refused one went into the same commit, and where it was refused before."""
    session = made(folder, tmp_path)

    def refuse(parent: str | None) -> list[bytes]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with committing() as committer:
        await append(committer, session, "a")
        with pytest.raises(StorageError):
            await committer.append(session, refuse, "refused")
        assert session.last_id == "a"
        await append(committer, session, "b")

        async def refused() -> None:
            with pytest.raises(StorageError):
                await committer.append(session, refuse, "refused too")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            nursery.start_soon(append, committer, session, "c")
    records = [json.loads(line) for line in (tmp_path / session.file_name).read_bytes().splitlines() if line.strip()]
    assert [(one["id"], one["parentId"]) for one in records] == [("a", None), ("b", "a"), ("c", "b")]
