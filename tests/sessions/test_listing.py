"""Rows of a list: made once for each state of a session, and never another's or an older one."""

from __future__ import annotations

from pathlib import Path

from support.in_process import inside

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


async def test_a_row_is_made_again_only_when_what_it_shows_has_changed(tmp_path: Path) -> None:
    async with inside(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "hello")
        store = parts.services.store
        session = store.catalog.by_key[KEY]
        row = listing.row(store, session, None)
        assert listing.row(store, session, None) is row
        assert row.transcript_path == str(store.path / session.path)
        await owner.call("sessions.patch", key=KEY, label="first")
        renamed = listing.row(store, session, None)
        assert (row.label, renamed.label) == (None, "first")


async def test_a_row_is_the_one_for_who_asks(tmp_path: Path) -> None:
    async with inside(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "hello")
        store = parts.services.store
        session = store.catalog.by_key[KEY]
        keys = [listing.row(store, session, agent).key for agent in ("main", "other", "main")]
        assert keys == ["main", KEY, "main"]


async def test_children_that_come_and_go_are_in_the_row_at_once(tmp_path: Path) -> None:
    async with inside(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "hello")
        store = parts.services.store
        session = store.catalog.by_key[KEY]
        assert listing.row(store, session, None).child_sessions is None
        await owner.call("sessions.create", key="agent:main:child", parentSessionKey=KEY)
        assert listing.row(store, session, None).child_sessions == ["agent:main:child"]
        await owner.call("sessions.delete", key="agent:main:child")
        assert listing.row(store, session, None).child_sessions is None


async def test_an_archived_session_is_shown_where_it_lies_now(tmp_path: Path) -> None:
    async with inside(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "hello")
        [before] = (await owner.call("sessions_list"))["sessions"]
        await owner.call("sessions.reset", key=KEY)
        found = (await owner.call("sessions_list", includeArchived=True))["sessions"]
        [old] = [row for row in found if row["sessionId"] == before["sessionId"]]
        assert old["archived"] and "/archive/" in old["transcriptPath"]
        assert "archived" not in before
