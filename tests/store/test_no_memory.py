"""Shortage of memory or threads: work is refused, never half done, and the daemon goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.followed_store import followed_store, message

from sessiond.errors import StorageError
from sessiond.store import folding, transcript, written_block
from sessiond.store.commit_threads import CommitThreads
from sessiond.store.store import Message
from sessiond.store.written_block import WrittenBlock
from sessiond.tasks import run_in_thread

KEY = "agent:main:a"


class ShortageSwitch:
    """Runs work in a thread, or fails like a process without memory or threads, as `lacks` says."""

    def __init__(self) -> None:
        self.lacks: str | None = None
        self.syncs = 0

    async def run_sync(self, function: Callable[..., Any], *args: Any) -> Any:
        def work() -> Any:
            if self.lacks == "memory":
                raise MemoryError
            return function(*args)

        if self.lacks == "threads":
            return await run_in_thread(_refuse_thread)
        return await run_in_thread(work)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        if self.lacks == "memory in the write":
            self.lacks = None  # memory is free again, so that the append can be undone
            raise MemoryError


def _refuse_thread() -> None:
    raise RuntimeError("can't start new thread")


async def test_an_append_without_memory_is_refused_and_the_next_one_succeeds(tmp_path: Path) -> None:
    shortage = ShortageSwitch()
    async with followed_store(tmp_path, sync=shortage.sync, durable=True) as parts:
        session = await parts.create(KEY, "before")
        _, reader = parts.follow(KEY)
        shortage.lacks = "memory in the write"
        with pytest.raises(StorageError, match="nothing was stored"):
            await parts.store.append(session, [Message(message("refused"))])
        shortage.lacks = None
        await parts.say(KEY, "after")
        await reader.wait_until(lambda: "after" in reader.texts)
        assert reader.texts == ["after"]
        assert "refused" not in parts.file(KEY).read_text()


@pytest.mark.parametrize("lacks", ["threads", "memory"])
async def test_an_append_needs_no_new_thread(tmp_path: Path, lacks: str) -> None:
    shortage = ShortageSwitch()
    async with followed_store(tmp_path, run_sync=shortage.run_sync, threads=CommitThreads, durable=True) as parts:
        session = await parts.create(KEY, "before")
        shortage.lacks = lacks
        await parts.store.append(session, [Message(message("during the shortage"))])
        assert "during the shortage" in parts.file(KEY).read_text()


async def test_a_commit_that_cannot_be_folded_for_lack_of_memory_is_read_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lack_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError

    async with followed_store(tmp_path, durable=True) as parts:
        await parts.create(KEY, "before")
        _, reader = parts.follow(KEY)
        monkeypatch.setattr(folding, "advance_written", lack_memory)
        await parts.say(KEY, "after")
        await reader.wait_until(lambda: "after" in reader.texts)


async def test_another_runtime_error_in_the_work_is_not_reported_as_a_shortage() -> None:
    def raise_runtime_error() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    with pytest.raises(RuntimeError, match="dictionary"):
        await run_in_thread(raise_runtime_error)


@pytest.mark.parametrize("lacks", ["threads", "memory"])
async def test_a_file_that_could_not_be_read_for_lack_of_memory_is_read_a_second_later(
    tmp_path: Path, lacks: str
) -> None:
    shortage = ShortageSwitch()
    async with followed_store(tmp_path, run_sync=shortage.run_sync, sync=shortage.sync) as parts:
        await parts.create(KEY)
        await trio.testing.wait_all_tasks_blocked(0.05)
        _, reader = parts.follow(None)
        shortage.lacks = lacks
        stranger = parts.folder() / "0f0f0f0f-0000-4000-8000-000000000001.jsonl"
        stranger.write_bytes(
            b'{"type":"session","version":3,"id":"0f0f0f0f-0000-4000-8000-000000000001","cwd":"/"}\n'
            b'{"type":"message","id":"m","message":{"role":"user","content":"hello"}}\n'
        )
        await trio.testing.wait_all_tasks_blocked(0.05)
        shortage.lacks = None
        await reader.wait_until(lambda: any(text == "changed:create" for text in reader.summaries))


def test_long_lines_are_compared_and_blanked_out_in_pieces(tmp_path: Path) -> None:
    """So that an append can be undone when memory is short."""
    data = b'{"a":"' + b"x" * (3 * written_block.PIECE_BYTES) + b'"}\n{"b":1}\n'
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"{}\n" + data + b"{}\n")
    with path.open("r+b") as file:
        block = WrittenBlock(file.fileno(), 3, data)
        assert block.is_unchanged() and block.is_unchanged_line()
        for place in (0, written_block.PIECE_BYTES, len(data) - 2):
            changed = WrittenBlock(file.fileno(), 3, data[:place] + b"?" + data[place + 1 :])
            assert not changed.is_unchanged() and not changed.is_unchanged_line()
        assert not WrittenBlock(file.fileno(), 4, data[1:]).is_unchanged_line()
        transcript.blank_out(file.fileno(), 3, len(data))
    kept = path.read_bytes()
    assert (kept[:3], kept[3:-3].strip(), kept[-3:]) == (b"{}\n", b"", b"{}\n")
    assert [len(line) for line in kept.splitlines()] == [len(line) for line in (b"{}\n" + data + b"{}\n").splitlines()]
