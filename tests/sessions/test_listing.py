"""Rows of a session list: cached for as long as nothing that they show has changed."""

from __future__ import annotations

from pathlib import Path

from support.in_process import in_process_daemon

from sessiond.sessions import listing

CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }

[[agents.list]]
id = "other"
runtime = { type = "echo" }
"""
KEY = "agent:main:main"


async def test_a_row_is_cached_until_something_that_it_shows_changes(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "hello")
        store = parts.services.store
        session = store.catalog.by_key[KEY]
        row = listing.row(store, session, None)
        assert listing.row(store, session, None) is row
        assert row.transcript_path == str(store.path / session.path)
        await owner.call("sessions.patch", key=KEY, label="first")
        renamed = listing.row(store, session, None)
        assert (row.label, renamed.label) == (None, "first")


async def test_a_row_shows_the_key_as_the_asking_agent_sees_it(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "hello")
        store = parts.services.store
        session = store.catalog.by_key[KEY]
        keys = [listing.row(store, session, agent).key for agent in ("main", "other", "main")]
        assert keys == ["main", KEY, "main"]


async def test_a_row_shows_created_and_deleted_children_at_once(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "hello")
        store = parts.services.store
        session = store.catalog.by_key[KEY]
        assert listing.row(store, session, None).child_sessions is None
        await owner.call("sessions.create", key="agent:main:child", parentSessionKey=KEY)
        assert listing.row(store, session, None).child_sessions == ["agent:main:child"]
        await owner.call("sessions.delete", key="agent:main:child")
        assert listing.row(store, session, None).child_sessions is None


async def test_the_row_of_an_archived_session_shows_its_path_in_the_archive(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "hello")
        [before] = (await owner.call("sessions_list"))["sessions"]
        await owner.call("sessions.reset", key=KEY)
        found = (await owner.call("sessions_list", includeArchived=True))["sessions"]
        [old] = [row for row in found if row["sessionId"] == before["sessionId"]]
        assert old["archived"] and "/archive/" in old["transcriptPath"]
        assert "archived" not in before
