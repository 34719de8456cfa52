"""Acknowledged appends per second, against a loop that writes and syncs one by one."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import Any

import trio
from store_data import LIMIT, finish, line, median, scratch, text, verdict

from sessiond.errors import StorageError
from sessiond.events.bus import EventBus
from sessiond.events.feed import TranscriptFeed
from sessiond.model.keys import KeyRules
from sessiond.store.catalog import Session
from sessiond.store.store import Message, SessionStore, open_store

APPENDERS = 32
ROUNDS = 5
SECONDS = 0.6


def write_and_sync(path: Path) -> float:
    """Appends per second of one write and one fdatasync each."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    data, count, start = line(1), 0, perf_counter()
    while perf_counter() - start < SECONDS:
        os.write(fd, data)
        os.fdatasync(fd)
        count += 1
    os.close(fd)
    return count / (perf_counter() - start)


async def through_the_store(store: SessionStore, sessions: list[Session], appenders: int) -> float:
    """Appends per second of so many tasks that each wait for their acknowledgement."""
    counts = [0] * appenders
    start = perf_counter()

    async def appender(number: int) -> None:
        session = sessions[number % len(sessions)]
        while perf_counter() - start < SECONDS:
            await store.append(session, [Message(text(counts[number]))])
            counts[number] += 1

    async with trio.open_nursery() as nursery:
        for number in range(appenders):
            nursery.start_soon(appender, number)
    return sum(counts) / (perf_counter() - start)


async def append_later_through_the_store(store: SessionStore, session: Session, appenders: int) -> float:
    """The same with `append_later`, as `chat.inject` does it: told of the commit, without a task that waits for it."""
    count, going = 0, appenders
    start = perf_counter()
    over = trio.Event()

    def append_next(_ids: list[str], error: StorageError | None) -> None:
        nonlocal count, going
        assert error is None
        count += 1
        if perf_counter() - start < SECONDS:
            store.append_later(session, store.make_drafts([Message(text(count))]), append_next)
            return
        going -= 1
        if not going:
            over.set()

    for _ in range(appenders):
        store.append_later(session, store.make_drafts([Message(text(0))]), append_next)
    await over.wait()
    return count / (perf_counter() - start)


async def measure(path: Path) -> list[bool]:
    settings: dict[str, Any] = {"durable": True, "record_limit": LIMIT, "rules": KeyRules()}
    async with open_store(path / "store", listener=lambda: feed, **settings) as store:
        # Every append is folded before it is acknowledged, as in the daemon.
        feed = TranscriptFeed(store, EventBus(), on_lost=lambda _session: None, on_found=lambda _session: None)
        sessions = [(await store.create(f"agent:main:cron:{n}", "main"))[0] for n in range(APPENDERS)]
        rates: dict[str, list[float]] = {"bare": [], "1": [], "32 tasks in one session": []}
        rates |= {"32 in one session": [], "32 in 32 sessions": []}
        for _ in range(ROUNDS):
            rates["bare"].append(write_and_sync(path / "bare"))
            rates["1"].append(await through_the_store(store, sessions[:1], 1))
            rates["32 tasks in one session"].append(await through_the_store(store, sessions[:1], APPENDERS))
            rates["32 in one session"].append(await append_later_through_the_store(store, sessions[0], APPENDERS))
            rates["32 in 32 sessions"].append(await through_the_store(store, sessions, APPENDERS))
    for what, values in rates.items():
        print(f"     {what}: {median(values):,.0f} appends/s")
    ratio = {
        what: median([a / b for a, b in zip(values, rates["bare"], strict=True)]) for what, values in rates.items()
    }
    return [
        verdict("append, 1 appender, against the bare loop", ratio["1"], at_least=0.2),
        verdict("append, 32 appenders to one session", ratio["32 in one session"], at_least=5),
        verdict("the same by 32 tasks that wait", ratio["32 tasks in one session"], at_least=2.5),
        verdict("append, 32 appenders to 32 sessions, which share no sync", ratio["32 in 32 sessions"], at_least=0.5),
    ]


def main() -> None:
    with scratch() as path:
        finish(trio.run(measure, path))


if __name__ == "__main__":
    main()
