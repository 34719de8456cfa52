"""Forty long reads occupy Trio's threads: messages written meanwhile must be stored and announced all the same."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing
from support.followed_store import PATIENCE_S, append, followed_store, line
from support.shortage import busy_threads

from sessiond.store.transcript import LONG_LINE

KEY, OTHER = "agent:main:a", "agent:main:b"


async def test_messages_are_stored_and_announced_while_all_threads_are_busy(tmp_path: Path) -> None:
    long = "x" * (LONG_LINE + 1)
    async with followed_store(tmp_path, durable=True, record_limit=4 * LONG_LINE) as parts:
        session = await parts.create(KEY)
        await trio.testing.wait_all_tasks_blocked(0.05)  # until the watches are set up
        _, reader = parts.follow(KEY)
        with busy_threads(), trio.fail_after(PATIENCE_S):
            await parts.create(OTHER)
            await parts.say(KEY, "short")
            append(parts.folder() / session.file_name, line(long))
            await reader.wait_for_text(long)
            assert [text for text in reader.summaries if not text.startswith("changed:")] == ["short", long]
            assert await parts.store.archive(session)
