"""Group commit: appends are written in order with few syncs, and an error reaches only the callers concerned."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.commit_tasks import CommitTasks
from support.patience import PATIENCE_S
from support.scarce_lines import ScarceLines

from sessiond.errors import Stopping, StorageError
from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.store.catalog import Folder, Session
from sessiond.store.commit_job import CommitJob
from sessiond.store.commit_threads import CommitThreads
from sessiond.store.committer import REPORT_S, Committer
from sessiond.store.refusals import storage_error


class Gate:
    """A worker thread that the test holds back: calls wait until the gate is opened, then run inline."""

    def __init__(self) -> None:
        self.waiting = 0
        self.open = False
        self._opened = trio.Event()
        self._call_waiting = trio.Event()

    async def run_sync(self, function: Callable[..., Any], *args: Any) -> Any:
        self.waiting += 1
        self._call_waiting.set()
        while not self.open:
            await self._opened.wait()
        self.waiting -= 1
        return function(*args)

    async def wait_for_calls(self, count: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while self.waiting < count:
                self._call_waiting = trio.Event()
                await self._call_waiting.wait()

    def open_gate(self) -> None:
        self.open = True
        self._opened.set()


async def run_inline(function: Callable[..., Any], *args: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return function(*args)


@asynccontextmanager
async def open_committer(
    run_sync: Callable[..., Any] = run_inline,
    on_committed: Any = lambda session: False,
    sync: Any = None,
    threads: Any = None,
    **options: Any,
) -> AsyncIterator[Committer]:
    committer = Committer(
        sync=sync,
        record_limit=1 << 20,
        threads=threads or partial(CommitTasks, run_sync),
        on_committed=on_committed,
        on_refused=lambda _error: None,
        **options,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(committer.run)
        yield committer
        nursery.cancel_scope.cancel()


def make_session(folder: Folder, path: Path, name: str = "s") -> Session:
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


async def test_an_append_returns_the_place_of_each_line(tmp_path, folder):
    session = make_session(folder, tmp_path)
    async with open_committer() as committer:
        places = await append(committer, session, "a", "b") + await append(committer, session, "c")
    content = (tmp_path / "s.jsonl").read_bytes()
    assert [content[begin:end] for begin, end in places] == [line("a", None), line("b", "a"), line("c", "b")]
    assert places[-1][1] == len(content)


async def test_appends_to_a_session_are_written_in_the_order_of_the_calls(tmp_path, folder):
    session, gate = make_session(folder, tmp_path), Gate()
    async with open_committer(gate.run_sync) as committer, trio.open_nursery() as nursery:
        nursery.start_soon(append, committer, session, "first")
        await gate.wait_for_calls(1)
        for number in range(50):
            nursery.start_soon(append, committer, session, f"{number:02d}")
            with trio.fail_after(PATIENCE_S):
                while session.in_flight < number + 2:
                    await trio.lowlevel.checkpoint()
        gate.open_gate()
    assert ids_of(tmp_path) == ["first", *(f"{number:02d}" for number in range(50))]
    assert committer.syncs == 1
    assert session.in_flight == 0


async def test_appends_join_the_commit_that_no_thread_has_begun(tmp_path, folder):
    sessions, gate = [make_session(folder, tmp_path, f"s{number}") for number in range(12)], Gate()
    async with open_committer(gate.run_sync) as committer, trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(append, committer, session, "a")
            nursery.start_soon(append, committer, session, "b")
        await gate.wait_for_calls(len(sessions))
        await trio.testing.wait_all_tasks_blocked()
        gate.open_gate()
    for session in sessions:
        assert sorted(ids_of(tmp_path, session.session_id)) == ["a", "b"]
    assert committer.syncs == len(sessions)


async def test_where_memory_is_short_for_one_file_the_others_are_written(tmp_path, folder):
    """Its folder is replaced by a copy in the middle of its commit, and cannot be read for want of memory."""
    gate, lines, there = Gate(), ScarceLines(), tmp_path / "there"
    there.mkdir()
    fd = os.open(there, os.O_RDONLY | os.O_DIRECTORY)
    lacking = make_session(Folder("main", fd, V3, path=str(there)), there, "lacking")
    sessions = [make_session(folder, tmp_path, f"s{number}") for number in range(6)]

    def compose(_parent: str | None) -> list[bytes]:
        lines.append(line("a", None))
        return lines

    def sync(_fd: int) -> None:
        if lines and not lines.lacking:
            there.rename(tmp_path / "away")
            shutil.copytree(tmp_path / "away", there)
            lines.lacking = True

    async def refused(committer: Committer) -> None:
        with pytest.raises(StorageError, match="nothing was stored"):
            await committer.append(lacking, compose, "a")

    async with open_committer(gate.run_sync, sync=sync) as committer, trio.open_nursery() as nursery:
        for number, session in enumerate(sessions):
            if number == 3:
                nursery.start_soon(refused, committer)
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(append, committer, session, "a")
            await trio.testing.wait_all_tasks_blocked()
        gate.open_gate()
    os.close(fd)
    assert [ids_of(tmp_path, session.session_id) for session in sessions] == [["a"]] * len(sessions)
    assert ids_of(tmp_path / "away", "lacking") == []


async def test_a_cancelled_wait_does_not_undo_the_append(tmp_path, folder):
    session, gate = make_session(folder, tmp_path), Gate()
    async with open_committer(gate.run_sync) as committer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, committer, session, "a")
            await gate.wait_for_calls(1)
            nursery.start_soon(append, committer, session, "b")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert session.in_flight == 2
        gate.open_gate()
        assert await append(committer, session, "c")
    assert ids_of(tmp_path) == ["a", "b", "c"]
    assert session.in_flight == 0


async def test_appends_accepted_before_the_stop_are_written_and_later_ones_are_refused(tmp_path, folder):
    session, gate = make_session(folder, tmp_path), Gate()
    committer = Committer(
        sync=os.fdatasync,
        record_limit=1 << 20,
        threads=partial(CommitTasks, gate.run_sync),
        on_committed=lambda session: False,
        on_refused=lambda _error: None,
    )
    async with trio.open_nursery() as waiters:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as background:
                await background.start(committer.run)
                waiters.start_soon(append, committer, session, "a")
                await gate.wait_for_calls(1)
                waiters.start_soon(append, committer, session, "b")
                await trio.testing.wait_all_tasks_blocked()
                background.cancel_scope.cancel()
                background.start_soon(trio.lowlevel.checkpoint)
                gate.open_gate()
    assert ids_of(tmp_path) == ["a", "b"]
    with pytest.raises(Stopping) as refused:
        await append(committer, session, "c")
    assert refused.value.data == {"retryAfterMs": 1000}


async def test_an_idle_committer_stops_at_once():
    with trio.move_on_after(PATIENCE_S) as patience:
        async with open_committer():
            pass
    assert not patience.cancelled_caught


async def test_on_committed_is_called_after_the_commit_and_before_the_caller_continues(tmp_path, folder):
    session, observed = make_session(folder, tmp_path), []

    def note_commit(one: Session) -> None:
        observed.append((one, (tmp_path / "s.jsonl").read_bytes(), one.in_flight))

    async with open_committer(on_committed=note_commit) as committer:
        await append(committer, session, "a")
        observed.append("caller")
    assert observed == [(session, line("a", None), 0), "caller"]


class SliceEndingClock:
    """A clock that advances by a whole slice at each call, so that every step ends its slice."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        self.time_s += REPORT_S
        return self.time_s


async def test_other_tasks_run_during_a_long_announcement_and_callers_are_answered_after_it(tmp_path, folder):
    session, other = make_session(folder, tmp_path), make_session(folder, tmp_path, "other")
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

    async with (
        open_committer(on_committed=announce, now=SliceEndingClock()) as committer,
        trio.open_nursery() as nursery,
    ):
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
    # Between two turns: a slice when results come, one of the task that goes on with them, and the task that holds.
    together = [len(list(group)) for is_turn, group in groupby(events, lambda event: event == "turn") if not is_turn]
    assert max(together) <= 3


async def test_an_append_returns_only_when_all_of_it_was_announced(tmp_path, folder):
    session, other = make_session(folder, tmp_path), make_session(folder, tmp_path, "other")
    left, events = {session: 5, other: 5}, []

    def announce(one: Session) -> bool:
        left[one] -= 1
        events.append(f"announced {one.session_id}")
        return left[one] > 0

    async def wait(one: Session) -> None:
        await append(committer, one, "a")
        events.append(f"answered {one.session_id}")

    # Every task gets a turn between two slices.
    async with open_committer(on_committed=announce, now=SliceEndingClock()) as committer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, session)
            nursery.start_soon(wait, other)
    for name in ("s", "other"):
        own = [event for event in events if event.endswith(f" {name}")]
        assert own == [f"announced {name}"] * 5 + [f"answered {name}"]


async def test_nothing_is_written_to_a_session_while_its_last_commit_is_announced(tmp_path, folder):
    session, sizes, rest = make_session(folder, tmp_path), [], 6

    def announce(_: Session) -> bool:
        nonlocal rest
        if rest == 6:
            committer.append_later(session, lambda parent: [line("b", parent)], "b", lambda _places, _error: None)
        sizes.append((tmp_path / "s.jsonl").stat().st_size)
        rest -= 1
        return rest > 0

    async with open_committer(on_committed=announce, now=SliceEndingClock()) as committer:
        await append(committer, session, "a")
        with trio.fail_after(PATIENCE_S):
            while session.in_flight:
                await trio.lowlevel.checkpoint()
    assert ids_of(tmp_path) == ["a", "b"]
    assert sizes == [len(line("a", None))] * 6 + [(tmp_path / "s.jsonl").stat().st_size]


async def test_written_appends_are_announced_and_answered_even_if_the_daemon_stops(tmp_path, folder):
    session, told, left = make_session(folder, tmp_path), [], 5

    def announce(_: Session) -> bool:
        nonlocal left
        left -= 1
        if left == 3:
            stop.cancel()
        return left > 0

    with trio.CancelScope() as stop:
        async with open_committer(on_committed=announce, now=SliceEndingClock()) as committer:
            for number in range(3):
                committer.append_later(
                    session, lambda parent: [line("x", parent)], str(number), lambda places, _: told.append(places)
                )
            await trio.sleep_forever()
    assert (left, len(told)) == (0, 3)


async def test_a_failed_write_is_an_error_for_its_callers_only(tmp_path, folder):
    good, gone = make_session(folder, tmp_path, "good"), make_session(folder, tmp_path, "gone")
    (tmp_path / "gone.jsonl").unlink()
    async with open_committer() as committer:
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


def test_a_file_that_may_not_be_written_is_no_full_disk():
    error = storage_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "agent:main:main")
    assert error.message.endswith(
        "nothing was stored. Let the user of the daemon write to it and enter the folders above it, then send again"
    )


async def test_a_symlink_in_place_of_a_transcript_is_not_written_to(tmp_path, folder):
    session = make_session(folder, tmp_path)
    (tmp_path / "s.jsonl").unlink()
    (tmp_path / "outside").write_text("untouched")
    (tmp_path / "s.jsonl").symlink_to("outside")
    async with open_committer() as committer:
        with pytest.raises(StorageError):
            await append(committer, session, "a")
    assert (tmp_path / "outside").read_text() == "untouched"


async def test_an_unexpected_exception_in_the_thread_fails_the_append_and_ends_the_committer(tmp_path, folder):
    session, outcome = make_session(folder, tmp_path), []

    def raise_runtime_error(_fd: int) -> None:
        raise RuntimeError("a bug")

    async def ask(committer: Committer) -> None:
        try:
            await append(committer, session, "a")
        except StorageError as error:
            outcome.append(error.data["reason"])

    async with trio.open_nursery() as waiters:
        with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
            async with open_committer(sync=raise_runtime_error) as committer:
                waiters.start_soon(ask, committer)
                await trio.sleep(math.inf)
    assert outcome == ["the daemon failed in the middle of it, as its log says"]


async def test_a_thread_that_dies_ends_the_committer_and_what_it_leaves_undone_is_refused(tmp_path, folder):
    class DyingThreads(CommitTasks):
        def __init__(self, begin: Any, report: Any, fail: Callable[[BaseException], None]) -> None:
            super().__init__(run_inline, begin, report, fail)
            self._die = fail

        def put(self, job: CommitJob) -> None:
            self._die(RuntimeError("a bug"))

    session, other = make_session(folder, tmp_path), make_session(folder, tmp_path, "other")
    told: list[tuple[list[tuple[int, int]], str]] = []

    def tell(places: list[tuple[int, int]], error: StorageError | None) -> None:
        assert error is not None
        told.append((places, error.data["reason"]))
        # What was under way may be in the file: whoever sends it again at once could double it.
        assert "it may be stored or not" in str(error) and "nothing was stored" not in str(error)
        assert error.data["begun"]  # so that the command line does not say that nothing was written

    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
        async with open_committer(threads=DyingThreads) as committer:
            committer.append_later(session, lambda parent: [line("a", parent)], "a", tell)
            committer.append_later(session, lambda parent: [line("b", parent)], "b", tell)
            committer.append_later(other, lambda parent: [line("c", parent)], "c", tell)
            await trio.sleep(math.inf)
    assert told == [([], "the daemon failed in the middle of it, as its log says")] * 3


async def test_an_unexpected_exception_of_a_listener_ends_the_committer_after_all_appends(tmp_path, folder):
    session, other = make_session(folder, tmp_path), make_session(folder, tmp_path, "other")

    def fail_for_one(one: Session) -> bool:
        if one is session:
            raise RuntimeError("a bug")
        return False

    gate = Gate()
    answered: list[str] = []
    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
        async with trio.open_nursery() as outer:
            committer = await outer.start(_start_committer, gate.run_sync, fail_for_one)
            committer.append_later(session, lambda parent: [line("a", parent)], "a", lambda *_: None)
            committer.append_later(other, lambda parent: [line("b", parent)], "b", lambda *_: answered.append("b"))
            await gate.wait_for_calls(2)
            gate.open_gate()
            await trio.sleep(math.inf)
    assert answered == ["b"]


async def _start_committer(run_sync: Any, on_committed: Any, *, task_status: Any) -> None:
    async with open_committer(run_sync, on_committed) as committer:
        task_status.started(committer)
        await trio.sleep(math.inf)


async def test_appends_wait_while_the_transcript_is_held_exclusively(tmp_path, folder):
    session = make_session(folder, tmp_path)
    async with open_committer() as committer, trio.open_nursery() as nursery:
        async with committer.hold_exclusively(session):
            nursery.start_soon(append, committer, session, "a")
            await trio.testing.wait_all_tasks_blocked()
            assert ids_of(tmp_path) == []
            (tmp_path / "s.jsonl").rename(tmp_path / "s2.jsonl")
            session.entry = Entry(session_id="s2")
    assert ids_of(tmp_path, "s2") == ["a"]


async def test_a_transcript_that_is_held_exclusively_is_no_longer_open(tmp_path, folder):
    """Its holder may remove it, and it would take up space as long as it is open."""
    session = make_session(folder, tmp_path)

    def open_count() -> int:
        own = os.stat(tmp_path / "s.jsonl").st_ino
        links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return sum(os.path.exists(link) and os.stat(link).st_ino == own for link in links)

    async with open_committer() as committer:
        await append(committer, session, "a")
        assert open_count() == 1
        async with committer.hold_exclusively(session):
            assert open_count() == 0
        await append(committer, session, "b")
    assert ids_of(tmp_path) == ["a", "b"]


async def test_hold_exclusively_waits_for_the_commit_in_progress(tmp_path, folder):
    session, gate, order = make_session(folder, tmp_path), Gate(), []
    async with open_committer(gate.run_sync) as committer, trio.open_nursery() as nursery:

        async def hold() -> None:
            async with committer.hold_exclusively(session):
                order.append(ids_of(tmp_path))

        nursery.start_soon(append, committer, session, "a")
        await gate.wait_for_calls(1)
        nursery.start_soon(hold)
        await trio.testing.wait_all_tasks_blocked()
        assert order == []
        gate.open_gate()
    assert order == [["a"]]


async def test_a_transcript_has_one_exclusive_holder_at_a_time(folder, tmp_path):
    session = make_session(folder, tmp_path)
    holders: list[int] = []
    most = 0
    async with open_committer() as committer:

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


async def test_the_parent_of_a_record_after_a_refused_one_is_the_last_stored_record(folder, tmp_path):
    """Whether the refused record was in the same commit or in an earlier one."""
    session = make_session(folder, tmp_path)

    def refuse(parent: str | None) -> list[bytes]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with open_committer() as committer:
        await append(committer, session, "a")
        with pytest.raises(StorageError):
            await committer.append(session, refuse, "refused")
        assert session.last_id == "a"
        await append(committer, session, "b")

        async def append_refused() -> None:
            with pytest.raises(StorageError):
                await committer.append(session, refuse, "refused too")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append_refused)
            nursery.start_soon(append, committer, session, "c")
    records = [json.loads(line) for line in (tmp_path / session.file_name).read_bytes().splitlines() if line.strip()]
    assert [(one["id"], one["parentId"]) for one in records] == [("a", None), ("b", "a"), ("c", "b")]


async def test_after_a_bug_in_a_listener_every_append_is_answered_and_the_threads_end(tmp_path, folder):
    broken, slow = make_session(folder, tmp_path), make_session(folder, tmp_path, "slow")
    release, answers = threading.Event(), []

    def fail_for_one(one: Session) -> bool:
        if one is broken:
            raise ValueError("a bug")
        return False

    def sync(fd: int) -> None:
        if os.fstat(fd).st_ino == (tmp_path / "slow.jsonl").stat().st_ino:
            release.wait(PATIENCE_S)

    def tell(*answer: Any) -> None:
        answers.append(answer)

    committer = Committer(
        sync=sync, record_limit=1 << 20, on_committed=fail_for_one, on_refused=lambda _: None, threads=CommitThreads
    )
    before = set(threading.enumerate())
    with trio.fail_after(PATIENCE_S), pytest.RaisesGroup(ValueError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(committer.run)
            own = set(threading.enumerate()) - before
            committer.append_later(slow, lambda parent: [line("s", parent)], "s", tell)
            with trio.CancelScope(shield=True):
                # The first of them ends the committer; the drain meets the second one, and then the slow one.
                committer.append_later(broken, lambda parent: [line("a", parent)], "a", tell)
                await committer.append(broken, lambda parent: [line("b", parent)], "b")
                release.set()
                await committer.wait_written(slow)
    (none, lost), slow_answer = answers
    assert none == [] and "it may be stored or not" in str(lost)
    assert slow_answer == ([(0, len(line("s", None)))], None)
    assert ids_of(tmp_path, "slow") == ["s"]
    for thread in own:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


async def test_a_place_that_is_filled_after_the_end_is_refused(tmp_path, folder):
    session, answers = make_session(folder, tmp_path), []
    async with open_committer() as committer:
        place = committer.take_place(session)
        committer.append_later(session, lambda parent: [line("b", parent)], "b", lambda *answer: answers.append(answer))
    place.fill(lambda parent: [line("a", parent)], "a", lambda *answer: answers.append(answer))
    assert [(places, type(error)) for places, error in answers] == [([], StorageError)] * 2
    assert ids_of(tmp_path) == []
    assert not session.in_flight
