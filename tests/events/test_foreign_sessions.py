"""A session of another program on the road of our own ones: feed, history, cursors, and what may never be written."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from support.followed_store import FollowedStore, append, followed_store, header, line

from sessiond.errors import Forbidden
from sessiond.events.step_sizes import MAX_STEP_BYTES, StepSizes
from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.store import dirfd, folding, transcript
from sessiond.store.catalog import Folder, Session
from sessiond.store.store import Message

KEY, NATIVE, PLACE = "pi:abc", "abc", "sessions/-x/abc.jsonl"


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[FollowedStore]:
    async with followed_store(tmp_path / "store") as parts:
        yield parts


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pi" / PLACE
    path.parent.mkdir(parents=True)
    return path


def add_foreign(parts: FollowedStore, root: Path) -> Session:
    folder = Folder("", dirfd.open_root(root), dialect=V3, path=str(root), source="pi")
    session = Session(KEY, Entry(session_id=NATIVE, session_key=KEY, spawned_by="pi:parent"), folder, place=PLACE)
    parts.store.catalog.add(session)
    return session


def look_at(file: Path) -> tuple[bytes, int]:
    return file.read_bytes(), file.stat().st_mtime_ns


async def test_lines_of_another_program_are_published_and_paged_as_our_own(
    parts: FollowedStore, file: Path, tmp_path: Path
) -> None:
    append(file, header("other", "agent:main:stolen") + line("one"))
    session = add_foreign(parts, tmp_path / "pi")
    _, reader = parts.follow(KEY)
    await parts.feed.read_on(session)
    append(file, line("two"))
    await parts.feed.read_on(session)
    await reader.wait_until(lambda: reader.texts == ["one", "two"])
    entry = session.entry
    assert (entry.session_id, entry.session_key, entry.spawned_by) == (NATIVE, KEY, "pi:parent")
    assert parts.store.catalog.by_key == {KEY: session}, "a key in another program's file is no key of ours"
    page = await parts.store.page(session, lambda record: record.message is not None, limit=1, max_bytes=1 << 20)
    assert [line.record.id for line, _ in page.lines if line.record is not None] == ["two"]
    position = parts.store.position(session, reader.events[0].cursor)  # type: ignore[union-attr]
    assert position.seq == 1
    os.close(session.folder.fd)


async def test_a_rewritten_file_is_read_again_and_keeps_its_key(
    parts: FollowedStore, file: Path, tmp_path: Path
) -> None:
    append(file, header("other") + line("one") + line("two"))
    session = add_foreign(parts, tmp_path / "pi")
    await parts.feed.read_on(session)
    _, reader = parts.follow(KEY)
    os.truncate(file, 0)
    append(file, header("again") + line("new"))
    await parts.feed.read_on(session)
    await reader.wait_until(lambda: reader.texts == ["new"])
    assert "resync:rewritten" in reader.summaries
    assert (session.entry.session_key, session.entry.message_count) == (KEY, 1)
    os.close(session.folder.fd)


async def test_nothing_is_ever_written_into_another_programs_file(
    parts: FollowedStore, file: Path, tmp_path: Path
) -> None:
    append(file, header("other") + line("one"))
    before = look_at(file)
    session = add_foreign(parts, tmp_path / "pi")
    await parts.feed.read_on(session)
    store = parts.store
    with pytest.raises(Forbidden, match="never changes"):
        await store.append(session, [Message({"role": "user", "content": "x"})])
    with pytest.raises(Forbidden, match="never changes"):
        await store.archive(session)
    with pytest.raises(Forbidden, match="never changes"):
        store.committer.take_place(session)
    assert store.dirty_folders() == []
    assert look_at(file) == before
    assert sorted(os.listdir(file.parent)) == [file.name]
    os.close(session.folder.fd)


async def test_a_long_file_that_nobody_follows_is_read_in_long_steps_and_like_any_other(
    file: Path, tmp_path: Path
) -> None:
    looked: list[int] = []

    async def run_sync(function: Any, *args: Any) -> Any:
        if function is folding.parse_ahead:
            looked.append(args[1].file.folded_to)
        return await trio.to_thread.run_sync(function, *args)

    lines = [line(f"{number} " + "x" * 400) for number in range(4000)]
    append(file, header("other") + b"".join(lines) + line("y" * transcript.LONG_LINE) + b"".join(lines[:2000]))
    half = line("z" * 2 * transcript.LONG_LINE)
    append(file, half[:-10])
    async with followed_store(tmp_path / "store", run_sync=run_sync) as parts:
        session = add_foreign(parts, tmp_path / "pi")
        empty = session.entry

        async def read_to(size: int) -> None:
            await parts.feed.read_on(session)
            with trio.fail_after(30):
                while session.entry.file.bytes != size:
                    await trio.lowlevel.checkpoint()

        def whole() -> Entry:
            return folding.read_on(session.folder, empty, PLACE, parts.store.record_limit, collect=False).entry

        size = os.stat(file).st_size
        await read_to(size)
        assert session.entry == whole()
        # One look at all that is not long, then at the long one, and at what is behind it.
        assert len(looked) <= 8, looked
        looked.clear()
        append(file, half[-10:] + line("last"))
        await read_to(os.stat(file).st_size)
        assert session.entry == whole()
        assert looked == [size - len(half) + 10], "a line that has become whole is parsed in a thread"
        os.close(session.folder.fd)


async def test_a_step_of_a_file_that_nobody_follows_ends_after_its_time(
    parts: FollowedStore, file: Path, tmp_path: Path
) -> None:
    append(file, header("other") + b"".join(line(f"{number} " + "x" * 400) for number in range(4000)))
    session, now_s = add_foreign(parts, tmp_path / "pi"), 0.0
    sizes = StepSizes(parts.store, parts.bus, lambda: now_s)
    assert sizes.limits_of(session, collects=False) == (MAX_STEP_BYTES, None)
    await sizes.parse_ahead(session, collects=False)
    most, is_over = sizes.limits_of(session, collects=False)
    assert most > 1_000_000 and is_over is not None and not is_over()
    now_s = 0.0014
    assert not is_over()
    now_s = 0.0015
    assert is_over()
    got = folding.read_on(session.folder, session.entry, PLACE, 1 << 20, max_bytes=most, collect=False, is_over=is_over)
    assert (got.entry.message_count, got.entry.file.folded_to, got.more) == (0, len(header("other")), True)
    # With followers a step is as short as ever.
    assert sizes.limits_of(session, collects=True) == (MAX_STEP_BYTES, None)
    sizes.forget(session)
    assert sizes.limits_of(session, collects=False) == (MAX_STEP_BYTES, None)
    os.close(session.folder.fd)
