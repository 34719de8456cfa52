"""Titles and last messages for a session list: cached for callers who see unmasked text, and read again when due."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from support.in_process import Connection, InProcessDaemon, in_process_daemon

CONFIG = '[[agents.list]]\nid = "main"\ndefault = true\nruntime = { type = "echo" }\n'
KEY, OTHER = "agent:main:one", "agent:main:two"
SECRET = "ghp_" + "a1B2" * 9


async def row(connection: Connection, key: str = KEY) -> dict[str, Any]:
    [found] = (await connection.call("sessions.list", search=key))["sessions"]
    return {name: found.get(name) for name in ("derivedTitle", "lastMessagePreview")}


def transcript_of(parts: InProcessDaemon, key: str = KEY) -> Path:
    store = parts.services.store
    return Path(os.path.join(store.path, store.catalog.by_key[key].path))


async def test_preview_texts_are_cached_until_the_next_message(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "what is a heron?")
        first = {"derivedTitle": "what is a heron?", "lastMessagePreview": "what is a heron?"}
        assert await row(owner) == first
        session = parts.services.store.catalog.by_key[KEY]
        kept = session.activity.texts
        assert await row(owner) == first
        assert session.activity.texts is kept
        await owner.say(KEY, "a bird")
        assert await row(owner) == {**first, "lastMessagePreview": "a bird"}
        assert session.activity.texts is not kept


async def test_a_display_name_is_the_title_at_once(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "what is a heron?")
        await row(owner)
        await owner.call("sessions.patch", key=KEY, displayName="Birds")
        assert (await row(owner))["derivedTitle"] == "Birds"


async def test_secrets_are_masked_for_a_token_even_if_the_owner_asked_before(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, f"the token is {SECRET}")
        assert SECRET in (await row(owner))["derivedTitle"]
        token = (await owner.call("tokens.mint", scopes=["list", "read"], sessionKey=KEY))["token"]
        async with parts.connect(parts.services.tokens.caller(token)) as stranger:
            shown = await row(stranger)
        assert SECRET not in str(shown) and shown["derivedTitle"].startswith("the token is ")
        assert SECRET in (await row(owner))["derivedTitle"]


async def test_an_unreadable_transcript_lacks_its_own_texts_only(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, CONFIG) as parts, parts.connect() as owner:
        await owner.say(KEY, "one")
        await owner.say(OTHER, "two")
        path = transcript_of(parts)
        real = path.with_name("elsewhere.jsonl")
        path.rename(real)
        path.symlink_to(real)  # symlinks are never followed
        assert (await row(owner, OTHER))["derivedTitle"] == "two"
        found = await owner.call("sessions.list")
        titles = {shown["key"]: shown["derivedTitle"] for shown in found["sessions"]}
        assert titles[OTHER] == "two"
        assert titles.get(KEY) != "one"
