"""Every caller finds what reading every message that it may read finds, whatever state the search index is in.

The reference reads `sessions_list` and `sessions_history` as that caller, and compares texts.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import trio
from support.foreign_daemon import daemon
from support.in_process import Connection, InProcessDaemon
from support.indexed_store import FILLER
from support.patience import PATIENCE_S
from support.sampling import spread
from support.searched_files import KINDS, TEXTS, Said, Transcript, write_home

from sessiond.clock import parse_iso_ms
from sessiond.model.caller import OWNER, Caller

CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }
[[agents.list]]
id = "other"
runtime = { type = "echo" }
[tools.sessions]
visibility = "tree"
[search]
"""
ROOT, CHILD, OTHER = "agent:main:root", "agent:main:child", "agent:other:one"
READ = frozenset({"list", "read"})
CALLERS = {
    "the owner": OWNER,
    "a session with a child": Caller(kind="token", scopes=READ, session_key=ROOT, agent_id="main", token_id="a"),
    "a child": Caller(kind="token", scopes=READ, session_key=CHILD, agent_id="main", sandboxed=True, token_id="b"),
    "another agent": Caller(kind="token", scopes=READ, session_key=OTHER, agent_id="other", token_id="c"),
    "an admin": Caller(kind="token", scopes=frozenset({*READ, "admin"}), token_id="d"),
}
SEARCHES: list[dict[str, Any]] = [
    {"query": "NEEDLE", "includeArchived": True},
    {"query": "eedl"},
    {"query": "and thread", "role": "assistant", "includeArchived": True},
    {"query": "\u672c n", "includeArchived": True},
]
PAGES: list[dict[str, Any]] = [{"limit": 200}, {"limit": 7}, {"limit": 50, "withinMs": 0}]
INDEX = Path("store", "cache", "search.sqlite")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _put_old(path: Path) -> None:
    path.unlink()
    shutil.copy2(path.with_name("old"), path)


def _change_version(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("update about set value = 'another' where name = 'madeWith'")
        connection.commit()


STATES: dict[str, Callable[[Path], object]] = {
    "as it was": lambda _: None,
    "of an earlier day": _put_old,
    "deleted": Path.unlink,
    "cut": _cut,
    "of another version": _change_version,
    "without a word in it": lambda path: path.write_bytes(b"x" * 10_000),
}


def _transcripts() -> list[Transcript]:
    choose = random.Random(11)

    def said(number: int) -> Said:
        at = choose.choice((None, *range(30)))
        kind = choose.choice([kind for kind in KINDS if kind != "torn"])
        return Said(kind, number * 100 + choose.randrange(40), choose.choice(TEXTS), at)

    programs = ("claude", "gemini", "codex", "claude")
    return [
        Transcript(
            program,
            [*(said(number) for _ in range(30)), Said("user", 99, FILLER, 31), *(said(number) for _ in range(6))],
            copies=0 if number == 3 else None,
        )
        for number, program in enumerate(programs)
    ]


async def _write_own(owner: Connection) -> None:
    await owner.call("sessions.create", key=ROOT)
    await owner.call("sessions.create", key=CHILD, parentSessionKey=ROOT)
    for key in (ROOT, CHILD, OTHER):
        await owner.call("sessions.create", key=key)
        for round_ in range(2):
            messages = [{"role": "user", "content": text} for text in (*TEXTS, FILLER, *TEXTS[:3])]
            messages.append({"role": "assistant", "content": [{"type": "text", "text": "needle and thread"}]})
            await owner.call("chat.inject", sessionKey=key, messages=messages)
            if not round_ and key != CHILD:
                await owner.call("sessions.reset", key=key)


class ReadMessage(NamedTuple):
    """A message as history shows it. `identity` is what its copies have in common with it."""

    at: int
    key: str
    cursor: str
    role: str
    text: str
    archived: bool
    identity: Any
    seniority: tuple[int, str]


async def _read_everything(reader: Connection) -> list[ReadMessage]:
    """Every message that the caller may read."""
    rows = (await reader.call("sessions_list", limit=200, includeArchived=True))["sessions"]
    found: list[ReadMessage] = []
    for row in rows:
        is_archived, key = row.get("archived", False), "agent:main:main" if row["key"] == "main" else row["key"]
        name = row["sessionId"] if is_archived else key
        page = await reader.call("sessions_history", sessionKey=name, limit=1000, includeTools=True)
        assert not page["hasMore"]
        for message, position in zip(page["messages"], page["positions"], strict=True):
            stamp, text = position.get("timestamp"), _text_of(message)
            at = row["createdAt"] if stamp is None else parse_iso_ms(stamp) or 0
            has_identity = position.get("id") is not None and stamp is not None
            identity = (position["id"], at, message["role"], text) if has_identity else position["cursor"]
            one = (at, key, position["cursor"], message["role"], text, is_archived)
            found.append(ReadMessage(*one, identity, (row["createdAt"], key)))
    return found


def _choose(messages: list[ReadMessage], search: dict[str, Any]) -> list[tuple[int, str, str]]:
    """Time, key and cursor of every message that the search has to find: of copies the oldest session's."""
    first: dict[Any, ReadMessage] = {}
    for one in messages:
        is_wanted = search["query"].lower() in one.text.lower() and search.get("role") in (None, one.role)
        if is_wanted and (search.get("includeArchived") or not one.archived):
            known = first.setdefault(one.identity, one)
            if one.seniority < known.seniority:
                first[one.identity] = one
    return _sort([(one.at, one.key, one.cursor) for one in first.values()])


def _sort(found: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    return sorted(found, key=lambda one: (-one[0], one[1], one[2]))


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content or () if block["type"] == "text")


async def _search(reader: Connection, search: dict[str, Any], limit: int, **more: Any) -> list[tuple[int, str, str]]:
    found: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"hasMore": True}
    while answer["hasMore"]:
        cursor = {"cursor": answer["nextCursor"]} if "nextCursor" in answer else {}
        answer = await reader.call("sessions_search", **search, **more, limit=limit, **cursor)
        found += answer["matches"]
    order = [(-match["timestamp"], match["sessionKey"]) for match in found]
    assert order == sorted(order)
    return _sort([(match["timestamp"], match["sessionKey"], match["cursor"]) for match in found])


async def _check(parts: InProcessDaemon, state: str) -> int:
    """Compare all callers; how much there was to find."""
    count, pages = 0, cycle(PAGES)
    for who, caller in spread(list(CALLERS.items()), 3):
        async with parts.connect(caller) as reader:
            messages = await _read_everything(reader)
            for search in SEARCHES:
                expected, page = _choose(messages, search), next(pages)
                assert await _search(reader, search, **page) == expected, (state, who, search, page)
                count += len(expected)
    return count


async def _wait_ready(parts: InProcessDaemon) -> None:
    with trio.fail_after(PATIENCE_S):
        while parts.services.search_index.status.state != "ready":  # noqa: ASYNC110 - its threads have no event
            await trio.sleep(0.005)


async def test_every_caller_finds_the_same_in_every_state_of_the_index(tmp_path: Path) -> None:
    write_home(tmp_path / "home", _transcripts())
    quick = CONFIG + "budget = 1.0\n"
    async with daemon(tmp_path, quick) as (parts, owner):
        await _write_own(owner)
        await _wait_ready(parts)
    shutil.copy2(tmp_path / INDEX, (tmp_path / INDEX).with_name("old"))
    async with daemon(tmp_path, CONFIG + "index = false\n") as (parts, owner):
        await _write_own(owner)
        assert not (tmp_path / INDEX).exists()
        expected = await _check(parts, "off")
        assert expected > 100
    shutil.copy2((tmp_path / INDEX).with_name("old"), tmp_path / INDEX)
    for state, spoil in spread([*STATES.items()], 1):
        spoil(tmp_path / INDEX)
        async with daemon(tmp_path, quick) as (parts, _):
            assert await _check(parts, f"{state}, at once") == expected
            await _wait_ready(parts)
            assert await _check(parts, f"{state}, made good") == expected
