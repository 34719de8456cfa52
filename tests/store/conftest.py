"""A folder with transcripts in it, and stores on throw-away folders whose file work runs inline."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commit_tasks import with_commits
from support.store_listeners import FoldingListener

from sessiond.clock import Clock, Ids
from sessiond.model.dialects import V3
from sessiond.model.keys import KeyRules
from sessiond.store.catalog import Folder
from sessiond.store.scan import ScanSettings
from sessiond.store.store import SessionStore, open_store

LIMIT = 8 * 1024 * 1024
NOW = 1_795_300_000_000
Opener = Callable[..., AbstractAsyncContextManager[SessionStore]]


async def run_inline(function: Callable[..., Any], *args: Any) -> Any:
    """Runs the work of a worker thread at once, in the calling task."""
    return function(*args)


def counting_ids() -> Ids:
    """Ids that are known in advance: uuids 00000000-...-01, record ids 0000000000000001."""
    uuids, records = iter(range(1, 10**6)), iter(range(1, 10**6))
    return Ids(
        uuid=lambda: f"00000000-0000-4000-8000-{next(uuids):012d}",
        record=lambda: f"{next(records):016x}",
    )


@pytest.fixture
def clock() -> Clock:
    return Clock(wall_ms=lambda: NOW, monotonic=lambda: 0.0)


@pytest.fixture
def settings(clock: Clock) -> ScanSettings:
    return ScanSettings(KeyRules(), LIMIT, clock, counting_ids(), sync=False)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """The sessions folder of the agent `main`, at `tmp_path`."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield Folder("main", fd, dialect=V3)
    os.close(fd)


@pytest.fixture
def opener(tmp_path: Path, clock: Clock) -> Opener:
    """`async with opener() as store`: the store at `tmp_path/store`, opened again at each call.

    Its appends are folded when they are committed, as the feed would do.
    """

    @asynccontextmanager
    async def open_at(path: Path = tmp_path / "store", **options: Any) -> AsyncIterator[SessionStore]:
        settings: dict[str, Any] = {
            "durable": False,
            "record_limit": LIMIT,
            "rules": KeyRules(),
            "clock": clock,
            "ids": counting_ids(),
            "run_sync": run_inline,
        }
        async with open_store(
            path, listener=lambda: FoldingListener(store), **with_commits(settings | options)
        ) as store:
            yield store

    return open_at
