"""A store with its search index in the test's own process: real files, a real database, no daemon."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from support.patience import PATIENCE_S
from support.store_listeners import FoldingListener

from sessiond.clock import iso_ms
from sessiond.config.settings import SearchConfig
from sessiond.model.case import fold_case
from sessiond.model.keys import KeyRules
from sessiond.model.message_list import messages_in
from sessiond.model.record import BadLine
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore, open_store
from sessiond.trigrams.index import TrigramIndex
from sessiond.trigrams.narrowing import Narrowed

RECORD_LIMIT = 1024 * 1024
T = 1_795_300_000_000
# Shorter sessions are looked through and not indexed, at first.
FILLER = "filler " * 800
BUSY = SearchConfig(budget=1)


def message(text: Any, at: int = T, role: str = "user") -> dict[str, Any]:
    """A message as it stands in a transcript of ours."""
    said = {"role": role, "content": text, "timestamp": at}
    return {"type": "message", "id": f"{at:x}", "parentId": None, "timestamp": iso_ms(at), "message": said}


def write_session(
    store: Path, name: str, lines: Iterable[Any], *, dump: Callable[[Any], str] = json.dumps, archived: bool = False
) -> Path:
    """A transcript of ours with these lines (text, or what is dumped), and one long enough to be indexed at once."""
    sessions = store / "agents" / "main" / "sessions" / ("archive" if archived else "")
    sessions.mkdir(parents=True, exist_ok=True)
    header = {"type": "session", "version": 3, "id": name, "timestamp": iso_ms(T), "cwd": "/"}
    every = [header | {"sessionKey": f"agent:main:{name}", "agentId": "main"}, message(FILLER), *lines]
    texts = [line if isinstance(line, str) else dump(line) for line in every]
    path = sessions / f"{name}.jsonl"
    path.write_text("\n".join(texts) + "\n")
    return path


@asynccontextmanager
async def opened_store(folder: Path, record_limit: int = RECORD_LIMIT) -> AsyncIterator[SessionStore]:
    """The store, which folds what is appended."""
    async with open_store(
        folder, listener=lambda: FoldingListener(store), durable=False, record_limit=record_limit, rules=KeyRules()
    ) as store:
        yield store


@asynccontextmanager
async def running_index(
    store: SessionStore, settings: Callable[[], SearchConfig] = lambda: BUSY, **more: Any
) -> AsyncIterator[TrigramIndex]:
    """The index of a store at work."""
    index = TrigramIndex(store, settings, is_settled=lambda: True, **more)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(index.run)
        yield index
        nursery.cancel_scope.cancel()


async def wait_ready(index: TrigramIndex) -> None:
    """Return when all that is due is indexed."""
    await wait_until(lambda: index.status.state == "ready")


async def wait_until(condition: Callable[[], object]) -> None:
    """Return when `condition` holds."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - a thread works meanwhile
            await trio.sleep(0.002)


def find_missed(narrowed: Narrowed, session: Session, query: str) -> list[int]:
    """The offsets of lines with the text where nobody would look for it."""
    left, found = narrowed.leave_out([session]), narrowed.find_in(session)
    assert left == [session] or (found.indexed_to, found.blocks) == (session.entry.file.folded_to, ())
    spans = [(block.begin, block.end) for block in found.blocks]
    assert spans == sorted(spans) and all(begin < end <= found.indexed_to for begin, end in spans)
    spans.append((found.indexed_to, session.entry.file.folded_to))
    with open(session.folder.open_file(session.file_name), "rb") as file:
        data = file.read()[: session.entry.file.folded_to]
    missed, offset = [], 0
    for line in data.splitlines(keepends=True):
        if has_text(session, line, query) and not any(begin <= offset < end for begin, end in spans):
            missed.append(offset)
        offset += len(line)
    return missed


def has_text(session: Session, line: bytes, query: str) -> bool:
    """Whether a message in the line has the text."""
    dialect, line = session.dialect, line.rstrip(b"\n")
    if len(line) > RECORD_LIMIT or fold_case(query) not in fold_case(dialect.text_in(line)):
        return False
    try:
        return any(one.message is not None for one in messages_in(dialect.parse(line)))
    except BadLine:
        return False
