"""The newest 200 messages of a transcript, against `tail -n 200` run in this process, for files of any size."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import trio
from store_data import LIMIT, best_of, finish, header, line, scratch, verdict

from sessiond.model.keys import KeyRules
from sessiond.store.catalog import Session
from sessiond.store.shown_page import PageRequest
from sessiond.store.store import SessionStore, open_store

MB = 1_000_000
SIZES = {"10 MB": 10 * MB, "100 MB": 100 * MB, "1 GB": 1000 * MB}
ROUNDS = 60
BLOCK = 64 * 1024


def tail_200(path: Path) -> list[bytes]:
    """What tail(1) does: blocks from the end until there are enough newlines, then the lines."""
    fd = os.open(path, os.O_RDONLY)
    position, blocks, newlines = os.fstat(fd).st_size, [], 0
    while position > 0 and newlines <= 200:
        size = min(BLOCK, position)
        position -= size
        blocks.append(os.pread(fd, size, position))
        newlines += blocks[-1].count(b"\n")
    os.close(fd)
    return b"".join(reversed(blocks)).splitlines()[-200:]


def write_transcript(path: Path, size: int) -> None:
    chunk = b"".join(line(number) for number in range(2000))
    with path.open("wb") as file:
        file.write(header(path.stem, f"agent:main:cron:{path.stem}", 1))
        while file.tell() < size:
            file.write(chunk)


async def inline(function, *args):  # type: ignore[no-untyped-def]
    return function(*args)


async def newest_200(store: SessionStore, session: Session) -> None:
    end, count = session.entry.file.folded_to, session.entry.message_count
    asked = PageRequest(end=end, end_seq=count, limit=200, max_bytes=1 << 20)
    page = await store.shown_page(session, asked, lambda page: page)
    assert len(page.messages.seqs) == 200


def nothing_changes() -> NoReturn:
    raise AssertionError("a history reads only")


async def measure(path: Path, sizes: dict[str, int]) -> list[bool]:
    folder = path / "store" / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    for number, size in enumerate(sizes.values()):
        write_transcript(folder / f"s{number}.jsonl", size)
    ours: list[float] = []
    results: list[bool] = []
    # Inline, as tail is: the thread hop that keeps the loop free costs both the same.
    settings: dict[str, Any] = {"durable": True, "record_limit": LIMIT, "rules": KeyRules(), "run_sync": inline}
    async with open_store(path / "store", listener=nothing_changes, **settings) as store:
        for number, name in enumerate(sizes):
            session = store.catalog.by_id[f"s{number}"]
            tail = best_of(ROUNDS, lambda: tail_200(store.path / session.path))  # noqa: B023
            own = best_of(ROUNDS, lambda: run(newest_200(store, session)))  # noqa: B023
            ours.append(own)
            print(f"     {name}: tail {tail * 1e3:.2f} ms, history {own * 1e3:.2f} ms")
            results.append(verdict(f"history of the last 200 of {name}, against tail", own / tail, at_most=5))
    results.append(verdict("history, the largest file against the smallest", ours[-1] / ours[0], at_most=1.5))
    return results


def run(coroutine) -> None:  # type: ignore[no-untyped-def]
    """Run a coroutine that never waits, without a scheduler in the measurement."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


def main() -> None:
    sizes = {"10 MB": SIZES["10 MB"], "100 MB": SIZES["100 MB"]} if "--quick" in sys.argv else SIZES
    with scratch() as path:
        finish(trio.run(measure, path, sizes))


if __name__ == "__main__":
    main()
