"""Folders moved or removed under the daemon are looked for by path; a store that stays away ends the daemon."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
import trio.testing
from support.followed_store import PATIENCE_S, FollowedStore, followed_store
from support.rows import check_each

from sessiond.errors import StorageError, StoreGone
from sessiond.events.watch import Kind
from sessiond.store.catalog import Folder
from sessiond.store.store import Message

KEY = "agent:main:main"
BACKENDS: list[Kind] = ["inotify", "polling"]


async def wait_until_moved(parts: FollowedStore, key: str, folder: Folder) -> None:
    """Return when the session is in another folder, or in none."""
    with trio.fail_after(PATIENCE_S):
        while key in parts.store.catalog.by_key and parts.session(key).folder is folder:  # noqa: ASYNC110
            await trio.sleep(0.01)


def transcripts(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.glob("agents/*/sessions/*.jsonl"))


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*.jsonl")]


@check_each("watcher", BACKENDS)
@check_each("part", ["agents", "agents/main", "agents/main/sessions"])
async def test_the_daemon_goes_on_with_a_folder_that_was_replaced_by_a_copy(
    tmp_path: Path, part: str, watcher: Kind
) -> None:
    async with followed_store(tmp_path, watcher=watcher) as parts:
        parts.store.presence.patience_s = PATIENCE_S
        await parts.create(KEY, "before")
        _, reader = parts.follow(KEY)
        folder, old = parts.session(KEY).folder, tmp_path / "old"
        (tmp_path / "store" / part).rename(old)
        shutil.copytree(old, tmp_path / "store" / part)
        await wait_until_moved(parts, KEY, folder)
        assert not (await parts.session_changes.ensure(KEY, "main", cwd=""))[1]
        await parts.say(KEY, "after")
        parts.write(KEY, "of a stranger")
        await reader.wait_for_text("of a stranger")
        assert parts.session(KEY).entry.message_count == 3
        assert len(transcripts(tmp_path / "store")) == 1


@pytest.mark.parametrize("watcher", BACKENDS)
async def test_a_session_asked_for_while_its_folder_is_replaced_is_that_of_the_new_folder(
    tmp_path: Path, watcher: Kind
) -> None:
    async with followed_store(tmp_path, watcher=watcher) as parts:
        parts.store.presence.patience_s = PATIENCE_S
        for number in range(40):
            await parts.create(f"agent:main:s{number}", "before")
        agents, old = tmp_path / "store" / "agents", tmp_path / "old"
        folder = parts.session("agent:main:s39").folder
        agents.rename(old)
        shutil.copytree(old, agents)
        await wait_until_moved(parts, "agent:main:s39", folder)
        for number in range(40):
            session, created = await parts.session_changes.ensure(f"agent:main:s{number}", "main", cwd="")
            assert not created
            assert session.folder is not folder
        assert len(transcripts(tmp_path / "store")) == 40


async def test_a_folder_that_comes_back_after_a_moment_keeps_its_sessions(tmp_path: Path) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY, "before")
        parts.store.presence.patience_s = PATIENCE_S
        agents, away = tmp_path / "store" / "agents", tmp_path / "away"
        agents.rename(away)
        await wait_until_moved(parts, KEY, parts.session(KEY).folder)
        with pytest.raises(StorageError, match="its folder is not where it was"):
            await parts.create("agent:main:new", "x")
        away.rename(agents)
        session, created = await parts.session_changes.ensure(KEY, "main", cwd="")
        assert (created, session.entry.message_count) == (False, 1)
        await parts.say(KEY, "after")
        assert transcripts(tmp_path / "store") == [str(session.path)]


@check_each("part", ["agents/main/sessions", "agents/main/sessions/{id}.jsonl"])
@check_each("copied", [False, True])
async def test_a_session_object_is_valid_again_when_its_folder_comes_back(
    tmp_path: Path, part: str, copied: bool
) -> None:
    async with followed_store(tmp_path) as parts:
        await parts.create(KEY, "before")
        parts.store.presence.patience_s = PATIENCE_S
        held, away = parts.session(KEY), tmp_path / "away"
        place = tmp_path / "store" / part.format(id=held.session_id)
        place.rename(away)
        with trio.fail_after(PATIENCE_S):
            while parts.store.catalog.has(held):  # noqa: ASYNC110
                await trio.sleep(0.01)
            if copied:
                (shutil.copytree if away.is_dir() else shutil.copy)(away, place)
            else:
                away.rename(place)
            while not parts.store.catalog.has(held):  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert parts.session(KEY) is held
        await parts.store.append(held, [Message({"role": "user", "content": "after"})])
        assert held.entry.message_count == 2
        assert b"after" in (tmp_path / "store" / held.path).read_bytes()


@check_each("part", ["", "agents", "agents/main", "agents/main/sessions"])
@check_each("copied", [False, True])
async def test_nothing_is_stored_in_a_moved_folder_before_the_watcher_reports_the_move(
    tmp_path: Path, part: str, copied: bool
) -> None:
    place, away = tmp_path / "store" / part, tmp_path / "away"
    async with followed_store(tmp_path, watching=False) as parts:
        await parts.create(KEY, "before")
        place.rename(away)
        if copied:
            shutil.copytree(away, place)
        with pytest.raises(StorageError, match="its folder is not where it was; nothing was stored"):
            await parts.say(KEY, "after")
        with pytest.raises(StorageError, match="its folder is not where it was; nothing was stored"):
            await parts.create("agent:main:new", "after")
        left = contents(tmp_path)
        assert len(left) == 1 + copied
        assert not [content for content in left if b"after" in content]


@pytest.mark.parametrize("does", ["append", "create"])
async def test_a_move_of_a_folder_above_the_store_is_noticed_at_the_next_write(tmp_path: Path, does: str) -> None:
    above = tmp_path / "above"
    above.mkdir()
    said = ""
    try:
        async with followed_store(above) as parts:
            parts.store.presence.patience_s = 0.2
            await parts.create(KEY, "before")
            await trio.testing.wait_all_tasks_blocked(0.05)
            above.rename(tmp_path / "away")
            with pytest.raises(StorageError, match="its folder is not where it was"):
                await (parts.say(KEY, "after") if does == "append" else parts.create("agent:main:new", "after"))
            with trio.fail_after(PATIENCE_S):
                await trio.sleep_forever()
    except* StoreGone as group:
        said = str(_only(group))
    assert str(above / "store") in said


@check_each("part", ["", "agents"])
@check_each("how", ["removed", "moved", "replaced"])
async def test_a_store_that_stays_away_ends_the_daemon_with_a_clear_message(
    tmp_path: Path, part: str, how: str
) -> None:
    place = tmp_path / "store" / part
    said = ""
    try:
        async with followed_store(tmp_path) as parts:
            parts.store.presence.patience_s = 0.2
            await parts.create(KEY, "before")
            if how == "removed":
                shutil.rmtree(place)
            else:
                place.rename(tmp_path / "moved")
            if how == "replaced" and part:
                place.write_text("")
            elif how == "replaced":
                place.mkdir()
            with trio.fail_after(PATIENCE_S):
                await trio.sleep_forever()
    except* StoreGone as group:
        said = str(_only(group))
    assert str(tmp_path / "store") in said


def _only(error: BaseException) -> BaseException:
    return _only(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
