"""What must hold of a store after a process with it (store_steps.py) was killed: nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import trio
from support import store_steps
from support.store_listeners import fold_new

from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.store import paging
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore

MAIN = ["m1", "m2", "m3", "m4"]
OTHER = ["o1", "o2"]


def texts(store: SessionStore, session: Session) -> list[str]:
    """The texts of all messages in the session's file, which must have no bad line."""
    fd = os.open(store.path / session.path, os.O_RDONLY)
    page = paging.page_backwards(
        fd,
        os.fstat(fd).st_size,
        session.entry.message_count,
        wanted=lambda record: True,
        limit=10**6,
        max_bytes=10**9,
        record_limit=store.record_limit,
        dialect=V3,
    )
    os.close(fd)
    assert (page.skipped, page.has_more, session.entry.corrupt_records) == (0, False, 0)
    assert [seq for _, seq in page.lines] == list(range(1, len(page.lines) + 1))
    return [json.loads(line.record.message or b"")["content"] for line, _ in page.lines if line.record]


def entries(store: SessionStore) -> dict[str, tuple[Entry, bool]]:
    return {name: (session.entry, session.archived) for name, session in store.catalog.by_id.items()}


async def look(path: Path) -> tuple[dict[str, list[str]], dict[str, tuple[Entry, bool]]]:
    async with store_steps.open_inline(path, durable=False) as store:
        assert store.problems == []
        return {name: texts(store, session) for name, session in store.catalog.by_id.items()}, entries(store)


async def go_on(path: Path) -> None:
    """Append to every live session, and save the indexes."""
    os.environ["STORE_STEPS_SALT"] = "1"
    async with store_steps.open_inline(path, durable=False) as store:
        for session in list(store.catalog.by_key.values()):
            before = texts(store, session)
            await store.append(session, [store_steps.user_message("after")])
            fold_new(store, session)
            assert texts(store, session) == [*before, "after"]
        if "agent:main:main" not in store.catalog.by_key:
            await store.create("agent:main:main", "main", [store_steps.user_message("after")])
        for folder in store.dirty_folders():
            await store.save(folder)


def check(life: dict[str, Any], *, killed: bool) -> None:
    """Check the store after one process: acknowledged texts are there, refused ones are not, and it accepts more."""
    path, told = Path(life["store"]), life["told"]
    found, rows = trio.run(look, path)
    acknowledged: dict[str, list[str]] = {}
    for what, *more in told:
        if what == "message":
            acknowledged.setdefault(more[0], []).append(more[1])
    for name, wanted in acknowledged.items():
        assert found[name][: len(wanted)] == wanted
    for name, said in found.items():
        asked = MAIN if said[:1] == ["m1"] else OTHER
        own = acknowledged.get(name, [])
        failed = [more[-1] for what, *more in told if what == "failed"]
        if killed:
            # Unanswered appends may be there or not.
            assert said in (own, asked[: len(own) + 1])
        else:
            assert said == [text for text in asked if text not in failed]
    for what, *more in told:
        if what == "archived":
            assert rows[more[0]][1]
        if what == "labelled":
            assert rows[more[0]][0].label == "last"
    trio.run(go_on, path)
    after = trio.run(look, path)
    for index in (path / "agents").rglob("sessions.json"):
        index.unlink()
    assert trio.run(look, path) == after
