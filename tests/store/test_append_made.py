"""Records that are made of what was received: their place among the appends, and what becomes of them."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from support.followed_store import FollowedStore, followed_store, message
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.errors import InvalidParams, StorageError
from sessiond.model.record import RecordDraft
from sessiond.store.store import Message
from sessiond.tasks import LONG_BYTES

KEY = "agent:main:main"


def make(parts: FollowedStore, text: str) -> list[RecordDraft]:
    return parts.store.make_drafts([Message(message(text))])


@check_each(("size", "in_thread"), [(LONG_BYTES, False), (LONG_BYTES + 1, True)])
async def test_long_ones_are_made_in_a_thread_and_keep_their_place(
    tmp_path: Path, size: int, *, in_thread: bool
) -> None:
    async with followed_store(tmp_path) as parts, trio.open_nursery() as nursery:
        session = await parts.create(KEY, "first")
        threads: list[bool] = []

        def make_here() -> list[RecordDraft]:
            threads.append(threading.current_thread() is not threading.main_thread())
            return make(parts, "made")

        nursery.start_soon(parts.store.append_made, session, size, make_here)
        await trio.testing.wait_all_tasks_blocked()
        await parts.say(KEY, "behind")
        written = parts.file(KEY).read_text()
    assert threads == [in_thread] and written.index("first") < written.index("made") < written.index("behind")


@check_each("size", [LONG_BYTES, LONG_BYTES + 1])
async def test_one_that_cannot_be_made_gives_its_place_up(tmp_path: Path, size: int) -> None:
    def refuse() -> list[RecordDraft]:
        raise InvalidParams("it cannot be stored")

    async with followed_store(tmp_path) as parts:
        session = await parts.create(KEY, "first")
        with pytest.raises(InvalidParams):
            await parts.store.append_made(session, size, refuse)
        with trio.fail_after(PATIENCE_S):
            await parts.say(KEY, "behind")
        assert "behind" in parts.file(KEY).read_text()


async def test_it_waits_for_no_thread_that_waits_for_a_disk(tmp_path: Path) -> None:
    over = threading.Event()
    async with followed_store(tmp_path) as parts, trio.open_nursery() as nursery:
        session = await parts.create(KEY, "first")
        limiter = trio.to_thread.current_default_thread_limiter()
        for _ in range(int(limiter.total_tokens)):
            nursery.start_soon(trio.to_thread.run_sync, over.wait)
        try:
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(PATIENCE_S):
                await parts.store.append_made(session, LONG_BYTES + 1, partial(make, parts, "made"))
        finally:
            over.set()
        assert "made" in parts.file(KEY).read_text()


@check_each("size", [LONG_BYTES, LONG_BYTES + 1])
async def test_whoever_waits_when_the_daemon_fails_is_told_so(tmp_path: Path, size: int) -> None:
    errors: list[StorageError] = []

    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    async def append(parts: FollowedStore) -> None:
        with trio.CancelScope(shield=True), pytest.raises(StorageError) as failed:
            await parts.store.append_made(parts.session(KEY), size, partial(make, parts, "made"))
        errors.append(failed.value)

    async def append_until_the_fault() -> None:
        async with followed_store(tmp_path) as parts:
            await parts.create(KEY, "first")
            parts.store.committer._on_committed = fail  # a bug
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append, parts)
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as crash, trio.fail_after(PATIENCE_S):
        await append_until_the_fault()
    assert crash.group_contains(ZeroDivisionError)
    assert ["stored or not" in str(error) for error in errors] == [True]


async def test_a_fault_in_telling_one_leaves_nobody_else_waiting_and_ends_the_daemon(tmp_path: Path) -> None:
    told: list[str] = []

    def tell(name: str, _ids: list[str], error: StorageError | None) -> None:
        told.append(f"{name}: {'error' if error else 'stored'}")
        if name != "last":
            raise ZeroDivisionError  # a bug

    async def append_until_the_fault() -> None:
        async with followed_store(tmp_path) as parts:
            await parts.create(KEY, "first")
            for name in ("one", "two", "last"):
                parts.store.append_later(parts.session(KEY), make(parts, name), partial(tell, name))
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as crash, trio.fail_after(PATIENCE_S):
        await append_until_the_fault()
    assert crash.group_contains(ZeroDivisionError)
    assert told == ["one: stored", "two: error", "last: error"]
