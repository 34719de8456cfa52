"""The index is saved a while after a change, not too often, and not at all without changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing
from support.followed_store import FollowedStore, followed_store

from sessiond.clock import Clock
from sessiond.daemon.saver import IndexSaver

KEY = "agent:main:a"


class Disk:
    """Does the store's file work without a thread; saving takes `save_s` on the test's clock, or fails while `full`."""

    def __init__(self) -> None:
        self.saves: list[float] = []
        self.save_s = 0.0
        self.full = False

    async def run_sync(self, function: Callable[..., Any], *args: Any) -> Any:
        if function.__name__ == "save":
            self.saves.append(trio.current_time())
            await trio.sleep(self.save_s)
            if self.full:
                raise OSError(28, "No space left on device")
        return function(*args)


@asynccontextmanager
async def run_saver(folder: Path, disk: Disk) -> AsyncIterator[tuple[FollowedStore, IndexSaver]]:
    async with followed_store(folder, watching=False, run_sync=disk.run_sync) as parts, trio.open_nursery() as nursery:
        await parts.create(KEY)
        clock = Clock(wall_ms=lambda: 7, monotonic=trio.current_time)
        saver = IndexSaver(parts.store, parts.feed, clock)
        nursery.start_soon(saver.run)
        yield parts, saver
        nursery.cancel_scope.cancel()


def read_index(parts: FollowedStore) -> Any:
    return json.loads((parts.folder() / "sessions.json").read_bytes())


async def test_a_change_is_saved_after_a_second(tmp_path: Path, autojump_clock: object) -> None:
    async with run_saver(tmp_path, disk := Disk()) as (parts, saver):
        began = trio.current_time()
        await trio.sleep(2)
        assert [at - began for at in disk.saves] == [1.0]
        assert (read_index(parts)[KEY]["sessionId"], saver.last_save_ms) == (parts.session(KEY).session_id, 7)
        await parts.say(KEY, "one", "two")
        await trio.sleep(2)
        assert (len(disk.saves), read_index(parts)[KEY]["messageCount"]) == (2, 2)


async def test_an_index_is_not_replaced_while_a_file_beside_it_cannot_be_adopted(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with run_saver(tmp_path, disk := Disk()) as (parts, _):
        folder = parts.session(KEY).folder
        folder.waiting.add("half.jsonl")  # the index may be another program's, and name it
        await trio.sleep(10)
        assert (disk.saves, folder.dirty) == ([], True)
        folder.waiting.discard("half.jsonl")
        await parts.say(KEY, "what adopted it")
        await trio.sleep(10)
        assert len(disk.saves) == 1


async def test_nothing_is_saved_without_changes(tmp_path: Path, autojump_clock: object) -> None:
    async with run_saver(tmp_path, disk := Disk()):
        await trio.sleep(80_000)
        assert len(disk.saves) == 1


async def test_many_changes_are_saved_together(tmp_path: Path, autojump_clock: object) -> None:
    async with run_saver(tmp_path, disk := Disk()) as (parts, _):
        for number in range(50):
            await parts.say(KEY, str(number))
            await trio.sleep(0.01)
        await trio.sleep(10)
        assert len(disk.saves) == 1
        assert read_index(parts)[KEY]["messageCount"] == 50


async def test_saving_takes_at_most_a_fiftieth_of_the_time(tmp_path: Path, autojump_clock: object) -> None:
    disk = Disk()
    disk.save_s = 3.0
    async with run_saver(tmp_path, disk) as (parts, _):
        began = trio.current_time()
        for number in range(1000):
            await parts.say(KEY, str(number))
            await trio.sleep(1)
        spent = len(disk.saves) * disk.save_s
        assert len(disk.saves) >= 4
        assert spent / (trio.current_time() - began + 50 * disk.save_s) <= 0.02


async def test_a_large_index_is_saved_less_often(tmp_path: Path, autojump_clock: object) -> None:
    async with run_saver(tmp_path, disk := Disk()) as (parts, _):
        for number in range(200):
            await parts.create(f"agent:main:s{number}")
        await trio.sleep(100)
        size = (parts.folder() / "sessions.json").stat().st_size
        before, began = len(disk.saves), trio.current_time()
        for number in range(300):
            await parts.say(KEY, str(number))
            await trio.sleep(1)
        spent_s = trio.current_time() - began
        assert size > 50_000
        assert 2 <= len(disk.saves) - before <= 1 + spent_s * 16 * 1024 / size
        await trio.sleep(100)
        assert read_index(parts)[KEY]["messageCount"] == 300


async def test_after_a_full_disk_saving_is_retried_later(tmp_path: Path, autojump_clock: object) -> None:
    disk = Disk()
    disk.full = True
    async with run_saver(tmp_path, disk) as (parts, saver):
        await trio.sleep(600)
        assert 2 <= len(disk.saves) <= 20
        assert saver.last_save_ms is None
        disk.full = False
        await trio.sleep(120)
        assert (read_index(parts)[KEY]["sessionKey"], saver.last_save_ms) == (KEY, 7)


async def test_a_folder_that_cannot_be_saved_does_not_block_the_others(tmp_path: Path, autojump_clock: object) -> None:
    async with run_saver(tmp_path, Disk()) as (parts, _):
        await parts.create("agent:other:main")
        (parts.folder("main") / "sessions.json").mkdir()  # a rename cannot replace a folder by a file
        await trio.sleep(10)
        assert set(json.loads((parts.folder("other") / "sessions.json").read_bytes())) == {"agent:other:main"}
