"""A daemon in the test's own process that shows the sessions of other programs below a home."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.patience import PATIENCE_S

from sessiond.clock import Clock
from sessiond.model.caller import Caller

CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }

[tools.sessions]
visibility = "all"
"""
READER = Caller(kind="token", scopes=frozenset({"list", "read", "send"}), session_key="agent:main:main", token_id="t")


@asynccontextmanager
async def daemon(
    tmp_path: Path, config: str = CONFIG, *, clock: Clock | None = None
) -> AsyncIterator[tuple[InProcessDaemon, Connection]]:
    """A daemon that has read every session below the home whole."""
    home = tmp_path / "home"
    async with in_process_daemon(tmp_path, config, clock=clock, home=home) as parts, parts.connect() as owner:
        sources = parts.services.sources
        with trio.fail_after(PATIENCE_S):
            await sources.listed.wait()
            while sources.partial_count:  # noqa: ASYNC110 - folding has no event
                await trio.sleep(0.005)
        yield parts, owner


def home_of(tmp_path: Path) -> Path:
    return tmp_path / "home"
