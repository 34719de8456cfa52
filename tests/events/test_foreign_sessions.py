"""A session of another program on the road of our own ones: feed, history, cursors, and what may never be written."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.followed_store import FollowedStore, append, followed_store, header, line

from sessiond.errors import Forbidden
from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.store import dirfd
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
