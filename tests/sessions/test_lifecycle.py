from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.commit_tasks import with_commits
from support.supervised_runs import ignore_call

from sessiond.clock import Ids
from sessiond.errors import NotFound, StorageError
from sessiond.events.bus import EventBus
from sessiond.events.feed import TranscriptFeed
from sessiond.model.keys import KeyRules
from sessiond.sessions import lifecycle
from sessiond.sessions.lifecycle import SessionChanges, current_session
from sessiond.store.catalog import Session
from sessiond.store.store import Message, SessionStore, open_store

KEY = "agent:main:work"


@asynccontextmanager
async def _session_changes(
    folder: Path, ids: Ids | None = None, **options: Any
) -> AsyncIterator[tuple[SessionChanges, TranscriptFeed]]:
    settings: dict[str, Any] = {"durable": False, "record_limit": 1 << 20, "rules": KeyRules(), "ids": ids}
    async with open_store(folder, listener=lambda: feed, **with_commits(settings | options)) as store:
        feed = TranscriptFeed(store, EventBus(), on_lost=ignore_call, on_found=ignore_call)
        yield SessionChanges(store, ignore_call), feed


async def _do_nothing(session: Session) -> None:
    pass


def _count_messages(store: SessionStore) -> int:
    return sum(path.read_bytes().count(b'"type":"message"') for path in store.path.rglob("*.jsonl"))


async def test_concurrent_callers_of_ensure_get_one_session(tmp_path: Path) -> None:
    async with _session_changes(tmp_path) as (session_changes, _):
        results: list[tuple[Session, bool]] = []

        async def ensure_session() -> None:
            results.append(await session_changes.ensure(KEY, "main", cwd="/"))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ensure_session)
        assert len({id(session) for session, _ in results}) == 1
        assert sum(created for _, created in results) == 1


async def test_a_key_is_held_by_one_task_at_a_time_even_if_others_are_cancelled(tmp_path: Path) -> None:
    async with _session_changes(tmp_path) as (session_changes, _):
        inside, most = 0, 0

        async def hold_key(patience_s: float) -> None:
            nonlocal inside, most
            with trio.move_on_after(patience_s):
                async with session_changes.exclusive(KEY):
                    inside += 1
                    most = max(most, inside)
                    with trio.CancelScope(shield=True):
                        await trio.lowlevel.checkpoint()
                        await trio.lowlevel.checkpoint()
                    inside -= 1

        async with trio.open_nursery() as nursery:
            for turn in range(60):
                nursery.start_soon(hold_key, 0.0 if turn % 3 else 30.0)
        assert (inside, most) == (0, 1)


async def test_appends_during_resets_go_to_the_old_or_the_new_session_and_none_is_lost(tmp_path: Path) -> None:
    async with _session_changes(tmp_path) as (session_changes, feed):
        first, _ = await session_changes.ensure(KEY, "main", cwd="/")
        written = 0

        async def write(session: Session) -> None:
            nonlocal written
            for _ in range(40):
                # The session object is old, like that of a caller who waited for something else meanwhile.
                target = await current_session(session_changes.store.catalog, session)
                await session_changes.store.append(target, [Message({"role": "user", "content": "x"})])
                written += 1

        async def reset() -> None:
            for _ in range(20):
                await lifecycle.reset(session_changes, feed, first, _do_nothing)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(write, first)
            nursery.start_soon(reset)
        assert written == 200
        assert _count_messages(session_changes.store) == 200
        sessions = session_changes.store.catalog.by_id.values()
        assert sum(not session.archived for session in sessions) == 1
        assert len(sessions) == 21


async def test_a_reset_waits_for_appends_in_progress_and_late_ones_are_kept(tmp_path: Path) -> None:
    async with _session_changes(tmp_path) as (session_changes, feed):
        session, _ = await session_changes.ensure(KEY, "main", cwd="/")

        async def write() -> None:
            for _ in range(50):
                await session_changes.store.append(session, [Message({"role": "user", "content": "x"})])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(lifecycle.reset, session_changes, feed, session, _do_nothing)
        assert _count_messages(session_changes.store) == 50


async def test_ensure_waits_for_a_delete_in_progress_and_creates_a_new_session(tmp_path: Path) -> None:
    async with _session_changes(tmp_path) as (session_changes, feed):
        session, _ = await session_changes.ensure(KEY, "main", cwd="/")
        stopping, go_on = trio.Event(), trio.Event()

        async def stop(_session: Session) -> None:
            stopping.set()
            await go_on.wait()

        results: list[Session] = []

        async def ensure() -> None:
            results.append((await session_changes.ensure(KEY, "main", cwd="/"))[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lifecycle.delete, session_changes, feed, session, stop)
            await stopping.wait()
            nursery.start_soon(ensure)
            await trio.testing.wait_all_tasks_blocked()
            assert results == []
            go_on.set()
        assert results[0] is not session
        assert await current_session(session_changes.store.catalog, session) is results[0]
        await lifecycle.delete(session_changes, feed, results[0], _do_nothing)
        with pytest.raises(NotFound):
            await current_session(session_changes.store.catalog, session)
        with pytest.raises(NotFound):
            await lifecycle.delete(session_changes, feed, session, _do_nothing)
        with pytest.raises(NotFound):
            await lifecycle.reset(session_changes, feed, session, _do_nothing)


async def test_a_reset_that_cannot_be_written_leaves_the_session_unchanged(tmp_path: Path) -> None:
    same = Ids(uuid=lambda: "00000000-0000-4000-8000-000000000001")
    async with _session_changes(tmp_path, same) as (session_changes, feed):
        session, _ = await session_changes.ensure(KEY, "main", cwd="/")
        with pytest.raises(StorageError):
            await lifecycle.reset(session_changes, feed, session, _do_nothing)
        assert session_changes.store.catalog.by_key[KEY] is session
        assert session.leaving is None
        await session_changes.store.append(session, [Message({"role": "user", "content": "x"})])


async def test_a_reset_cancelled_while_runs_are_stopped_changes_nothing(tmp_path: Path) -> None:
    async with _session_changes(tmp_path) as (session_changes, feed):
        session, _ = await session_changes.ensure(KEY, "main", cwd="/")

        async def wait_forever(_session: Session) -> None:
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lifecycle.reset, session_changes, feed, session, wait_forever)
            await trio.testing.wait_all_tasks_blocked()
            assert session.leaving is not None
            nursery.cancel_scope.cancel()
        assert await current_session(session_changes.store.catalog, session) is session
        await lifecycle.reset(session_changes, feed, session, _do_nothing)


async def test_a_reset_that_is_no_longer_due_does_nothing(tmp_path: Path) -> None:
    async with _session_changes(tmp_path) as (session_changes, feed):
        session, _ = await session_changes.ensure(KEY, "main", cwd="/")
        checked: list[Session] = []

        def due(live: Session) -> bool:
            checked.append(live)
            return live is session

        results: list[tuple[Session, bool]] = []

        async def reset() -> None:
            results.append(await lifecycle.reset(session_changes, feed, session, _do_nothing, due=due))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(reset)
        new = session_changes.store.catalog.by_key[KEY]
        assert results == [(new, True), (new, False), (new, False)]
        assert checked == [session, new, new]


async def test_a_transcript_can_be_read_while_a_reset_moves_it(tmp_path: Path) -> None:
    async with _session_changes(tmp_path) as (session_changes, feed):
        session, _ = await session_changes.ensure(KEY, "main", cwd="/")
        sizes: set[int] = set()

        async def read() -> None:
            for _ in range(100):
                sizes.add(await session_changes.store.read(session, lambda fd: os.fstat(fd).st_size))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(read)
            nursery.start_soon(lifecycle.reset, session_changes, feed, session, _do_nothing)
        assert sizes == {session.entry.file.bytes}


async def _finish_late(function: Any, *args: Any) -> Any:
    """File work that is done at once and returns a second later, so that a cancellation can arrive in between."""
    result = function(*args)
    await trio.sleep(1)
    return result


@pytest.mark.parametrize("seconds", [0.5, 1.5])
async def test_a_reset_is_completed_even_if_its_caller_is_cancelled(
    tmp_path: Path, autojump_clock: object, seconds: float
) -> None:
    async with _session_changes(tmp_path, run_sync=_finish_late) as (session_changes, feed):
        old, _ = await session_changes.ensure(KEY, "main", cwd="/")
        put_away: list[Session] = []
        session_changes.on_put_away = put_away.append
        with trio.move_on_after(seconds):
            await lifecycle.reset(session_changes, feed, old, _do_nothing)
        new = session_changes.store.catalog.by_key[KEY]
        files = sorted(path.stem for path in (tmp_path / "agents").rglob("*.jsonl") if path.parent.name != "archive")
        assert (new is not old, old.archived, files, put_away) == (True, True, [new.session_id], [old])


async def test_a_delete_is_completed_even_if_its_caller_is_cancelled(tmp_path: Path, autojump_clock: object) -> None:
    async with _session_changes(tmp_path, run_sync=_finish_late) as (session_changes, feed):
        session, _ = await session_changes.ensure(KEY, "main", cwd="/")
        put_away: list[Session] = []
        session_changes.on_put_away = put_away.append
        with trio.move_on_after(0.5):
            await lifecycle.delete(session_changes, feed, session, _do_nothing)
        assert (KEY in session_changes.store.catalog.by_key, session.archived, put_away) == (False, True, [session])
