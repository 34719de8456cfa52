"""Rows of a session list: cached for as long as nothing that they show has changed."""

from __future__ import annotations

from pathlib import Path

import msgspec
from support.in_process import in_process_daemon

from sessiond.model.row import Row, add_texts, encode_texts
from sessiond.sessions import listing
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore

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


def encode(row: Row) -> bytes:
    return msgspec.json.encode(row)


def encoded(store: SessionStore, session: Session, agent: str | None = None) -> bytes:
    return bytes(listing.encoded_row(store, session, agent))


async def test_an_encoded_row_is_the_row_as_json_and_kept_until_it_changes(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "hello")
        store = parts.services.store
        session = store.catalog.by_key[KEY]
        kept = listing.encoded_row(store, session, None)
        assert listing.encoded_row(store, session, None) is kept
        assert bytes(kept) == encode(listing.row(store, session, None))
        assert encoded(store, session, "other") == encode(listing.row(store, session, "other")) != bytes(kept)
        await owner.call("sessions.patch", key=KEY, label="first")
        assert encoded(store, session) == encode(listing.row(store, session, None)) != bytes(kept)
        await owner.call("sessions.create", key="agent:main:child", parentSessionKey=KEY)
        assert b"agent:main:child" in encoded(store, session)
        assert encoded(store, session) == encode(listing.row(store, session, None))
        await owner.call("sessions.delete", key="agent:main:child")
        assert b"agent:main:child" not in encoded(store, session)


async def test_texts_are_added_to_an_encoded_row_where_a_row_has_them(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "hello")
        store = parts.services.store
        session = store.catalog.by_key[KEY]
        text = listing.encoded_row(store, session, None)
        for title, last in (("a", None), ('"q"', "b\n"), ("\u00e9", "")):
            with_texts = msgspec.structs.replace(
                listing.row(store, session, None), derived_title=title, last_message_preview=last
            )
            assert bytes(add_texts(text, encode_texts(title, last))) == encode(with_texts)
