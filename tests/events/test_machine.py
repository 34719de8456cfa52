"""Any events in any order: every record of every file reaches every follower once, or a resync says where to read it.

`SESSIOND_SOAK_S=3600 pytest tests/events/test_machine.py` goes on for an hour.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import trio
import trio.testing
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from support.followed_store import FollowedStore, Reader, append, followed_store, header, line, text_of
from support.patience import PATIENCE_S
from support.sampling import amount

from sessiond.clock import iso_ms
from sessiond.events import replay
from sessiond.events.subscription import Subscription
from sessiond.model.event import MessageEvent, ResyncEvent
from sessiond.store.catalog import Session

KEYS = ("agent:main:a", "agent:main:b")
keys = st.sampled_from(KEYS)
counts = st.integers(1, 6)


class RecordingFollower:
    """A client that follows for the whole test, over several connections and daemons, and records the messages it got
    by session.

    A follower of one key resumes from the cursor of its last event. A follower of everything starts again: the
    messages in the files by then count as received.
    """

    def __init__(self, key: str | None, limit: int) -> None:
        self.key, self.limit = key, limit
        self.had: dict[str, list[str]] = {}
        self.cursor: str | None = None
        self.subscription: Subscription
        self.reader: Reader
        self.connected = False

    def connect(self, parts: FollowedStore) -> None:
        place = None
        if self.key is not None:
            session = parts.session(self.key)
            place = replay.place_of(parts.store, session, self.cursor or "start")
            if self.cursor is None:
                self.cursor = parts.store.cursor(session, 0, 0)
        else:
            self.had = {session.session_id: texts_of(parts, session) for session in parts.store.catalog.by_id.values()}
        self.subscription, self.reader = parts.follow(self.key, place=place, limit=self.limit)
        self.connected = True

    def disconnect(self, parts: FollowedStore) -> None:
        self.collect()
        parts.leave(self.subscription)
        self.connected = False

    def collect(self) -> None:
        """Take the events received and check that none is missing or repeated."""
        for event in self.reader.events:
            match event:
                case MessageEvent():
                    self.had.setdefault(event.session_id, []).append(text_of(event))
                    assert len(self.had[event.session_id]) == event.seq, (event.session_id, self.had)
                    self.cursor = event.cursor
                case ResyncEvent(reason="lagged"):
                    # The cursor is after exactly as many messages as were received: no gap and no repetition.
                    assert int(event.cursor.split("-")[1]) == len(self.had.get(event.session_id, [])), self.had
                case ResyncEvent():
                    self.had[event.session_id] = []
                    self.cursor = event.cursor
        self.reader.events.clear()

    def missing(self, written: dict[str, list[str]]) -> dict[str, list[str]]:
        """By session, the messages that were written and not received."""
        self.collect()
        left = {session_id: (texts, self.had.get(session_id, [])) for session_id, texts in written.items()}
        return {session_id: [*texts, "!=", *had] for session_id, (texts, had) in left.items() if texts != had}


def texts_of(parts: FollowedStore, session: Session) -> list[str]:
    """The texts of the messages in a session's file."""
    found: list[str] = []
    try:
        data = (parts.store.path / session.path).read_bytes()
    except FileNotFoundError:
        return found
    for text in data.split(b"\n")[:-1]:
        try:
            record = msgspec.json.decode(text)
        except msgspec.DecodeError:
            continue
        if record["type"] == "message":
            found.append(record["message"]["content"])
    return found


class FollowMachine(RuleBasedStateMachine):
    """Collects steps; `FollowScenario` carries them out."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, Any]] = []

    @initialize(limit=st.sampled_from([2, 5, 1000]))
    def begin(self, limit: int) -> None:
        self.limit = limit

    @rule(key=keys, count=counts)
    def daemon_appends(self, key: str, count: int) -> None:
        self.steps.append(("say", (key, count)))

    @rule(key=keys, count=counts)
    def stranger_appends(self, key: str, count: int) -> None:
        self.steps.append(("write", (key, count)))

    @rule(key=keys, cut=st.integers(1, 40))
    def stranger_writes_half_a_line_and_then_the_rest(self, key: str, cut: int) -> None:
        self.steps.append(("halves", (key, cut)))

    @rule(key=keys, cut=st.integers(1, 40))
    def stranger_writes_half_a_line(self, key: str, cut: int) -> None:
        self.steps.append(("half", (key, cut)))

    @rule(key=keys)
    def both_append_at_once(self, key: str) -> None:
        self.steps.append(("both", key))

    @rule(key=keys)
    def reset(self, key: str) -> None:
        self.steps.append(("reset", key))

    @rule(key=keys, count=counts, delete=st.booleans(), waits=st.integers(0, 4))
    def appends_during_a_reset_or_delete(self, key: str, count: int, delete: bool, waits: int) -> None:
        self.steps.append(("beside", (key, count, delete, waits)))

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.steps.append(("delete", key))

    @rule(key=keys, in_place=st.booleans(), count=st.integers(0, 6))
    def stranger_rewrites_the_file(self, key: str, in_place: bool, count: int) -> None:
        self.steps.append(("anew", (key, in_place, count)))

    @rule(key=keys)
    def stranger_keeps_a_copy(self, key: str) -> None:
        self.steps.append(("copy", key))

    @rule(key=keys, in_place=st.booleans(), count=st.integers(0, 6))
    def stranger_puts_the_copy_back(self, key: str, in_place: bool, count: int) -> None:
        self.steps.append(("put back", (key, in_place, count)))

    @rule(key=keys, count=counts)
    def stranger_puts_a_newer_transcript_there(self, key: str, count: int) -> None:
        self.steps.append(("newer", (key, count)))

    @rule()
    def restart(self) -> None:
        self.steps.append(("restart", None))

    @rule(who=st.integers(0, 3), room=st.integers(0, 5))
    def reader_stops(self, who: int, room: int) -> None:
        self.steps.append(("stop", (who, room)))

    @rule(who=st.integers(0, 3))
    def reader_goes_on(self, who: int) -> None:
        self.steps.append(("go on", who))

    @rule(who=st.integers(0, 1))
    def follower_of_a_key_loses_its_connection(self, who: int) -> None:
        self.steps.append(("disconnect", who))

    @rule(who=st.integers(0, 1))
    def follower_of_a_key_reconnects(self, who: int) -> None:
        self.steps.append(("connect", who))

    @rule()
    def other_tasks_run(self) -> None:
        self.steps.append(("settle", None))

    def teardown(self) -> None:
        if self.steps:
            with tempfile.TemporaryDirectory() as folder:
                trio.run(FollowScenario(Path(folder), self.limit).run, self.steps)


class FollowScenario:
    """Carries the steps out on a store, over restarts."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.count = 0
        self.copies: dict[str, tuple[str, bytes]] = {}
        self.key_followers = [RecordingFollower(key, limit) for key in KEYS]
        self.followers = [*self.key_followers, *(RecordingFollower(None, limit) for _ in range(2))]

    async def run(self, steps: list[tuple[str, Any]]) -> None:
        left = iter([*steps, ("finish", None)])
        with trio.fail_after(2 * PATIENCE_S):
            while True:
                async with followed_store(self.folder) as self.parts:
                    for key in KEYS:
                        await self.session_of(key)
                    for follower in self.followers:
                        follower.connect(self.parts)
                    for name, what in left:
                        if name == "restart":
                            break
                        if name == "finish":
                            await self.finish()
                            return
                        await self.step(name, what)
                    for follower in self.followers:
                        if follower.connected:
                            follower.disconnect(self.parts)

    async def session_of(self, key: str) -> Session:
        """The session of the key, created if there is none."""
        found = self.parts.store.catalog.by_key.get(key)
        return found if found is not None else await self.parts.create(key)

    async def step(self, name: str, what: Any) -> None:
        parts = self.parts
        key = what[0] if isinstance(what, tuple) else what
        if key in KEYS:
            await self.session_of(key)
        match name:
            case "say":
                await parts.say(key, *self.texts(what[1]))
            case "write":
                parts.write(key, *self.texts(what[1]))
            case "halves" | "half":
                data = line(self.texts(1)[0])
                append(parts.file(key), data[: what[1]], create=False)
                await trio.testing.wait_all_tasks_blocked()
                if name == "halves":
                    append(parts.file(key), data[what[1] :], create=False)
            case "both":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(parts.say, key, *self.texts(2))
                    parts.write(key, *self.texts(2))
                    nursery.start_soon(parts.say, key, *self.texts(1))
                    await trio.lowlevel.checkpoint()
                    parts.write(key, *self.texts(1))
            case "reset":
                await parts.reset(key)
            case "delete":
                await parts.delete(key)
                await self.session_of(key)
            case "beside":
                await self.append_during_reset(*what)
            case "newer":
                await self.add_newer_transcript(key, what[1])
            case "anew" | "copy" | "put back":
                self.change_file(name, key, what)
            case _:
                await self.change_follower(name, what)

    async def append_during_reset(self, key: str, count: int, delete: bool, waits: int) -> None:
        """Appends by the daemon and by a stranger while the session is reset or deleted."""
        parts = self.parts
        async with trio.open_nursery() as nursery:
            for text in self.texts(count):
                nursery.start_soon(parts.say, key, text)
            for _ in range(waits):
                await trio.lowlevel.checkpoint()
            parts.write(key, *self.texts(1))
            nursery.start_soon(parts.delete if delete else parts.reset, key)
            session = parts.session(key)
            for text in self.texts(count):
                await trio.lowlevel.checkpoint()
                nursery.start_soon(parts.say_to, session, text)
        await self.session_of(key)

    def change_file(self, name: str, key: str, what: Any) -> None:
        """Changes that another program makes to the whole file."""
        parts, session = self.parts, self.parts.session(key)
        path = parts.file(key)
        match name:
            case "copy":
                self.copies[key] = session.session_id, path.read_bytes()
            case "anew":
                texts = self.texts(what[2])
                self.write_file(path, header(session.session_id, key, iso_ms(session.entry.created_at)), texts, what[1])
            case "put back":
                session_id, data = self.copies.get(key, ("", b""))
                if session_id == session.session_id:
                    self.write_file(path, data, self.texts(what[2]), what[1])

    async def add_newer_transcript(self, key: str, count: int) -> None:
        """Add a newer transcript of the key and wait until it took over: a still newer one could archive it before."""
        by_id = self.parts.store.catalog.by_id
        self.count += 1
        path = self.parts.file(key).parent / f"0f0f0f0f-0000-4000-8000-{self.count:012d}.jsonl"
        created = max(found.entry.created_at for found in by_id.values()) + 1000
        append(path, header(path.stem, key, iso_ms(created)) + b"".join(map(line, self.texts(count))))
        while path.stem not in by_id:
            await trio.testing.wait_all_tasks_blocked(0.001)

    def write_file(self, path: Path, data: bytes, texts: list[str], in_place: bool) -> None:
        data += b"".join(map(line, texts))
        if in_place:
            path.write_bytes(data)
        else:
            (self.folder / "new").write_bytes(data)
            (self.folder / "new").rename(path)

    async def change_follower(self, name: str, what: Any) -> None:
        match name:
            case "stop":
                if self.followers[what[0]].connected:
                    self.followers[what[0]].reader.stop(what[1])
            case "go on":
                if self.followers[what].connected:
                    self.followers[what].reader.go_on()
            case "disconnect":
                if self.key_followers[what].connected:
                    self.key_followers[what].disconnect(self.parts)
            case "connect":
                if not self.key_followers[what].connected:
                    self.key_followers[what].connect(self.parts)
            case "settle":
                await trio.testing.wait_all_tasks_blocked(0.001)

    def texts(self, count: int) -> list[str]:
        self.count += count
        return [f"{number} " + "x" * (number % 50) for number in range(self.count - count, self.count)]

    async def finish(self) -> None:
        for follower in self.followers:
            if not follower.connected:
                follower.connect(self.parts)
            follower.reader.go_on()
        for follower in self.followers:
            with trio.move_on_after(PATIENCE_S):
                await follower.reader.wait_until(lambda follower=follower: not follower.missing(self.due(follower)))
            assert follower.missing(self.due(follower)) == {}, follower.key

    def due(self, follower: RecordingFollower) -> dict[str, list[str]]:
        """The messages in the files of the sessions that this follower follows."""
        catalog = self.parts.store.catalog
        found = {
            session.session_id: texts_of(self.parts, session)
            for session in catalog.by_id.values()
            if follower.key in (None, session.key)
        }
        return {session_id: texts for session_id, texts in found.items() if texts}


def test_every_record_reaches_every_follower_once_or_after_a_resync() -> None:
    soak_s = float(os.environ.get("SESSIOND_SOAK_S", "0"))
    deadline = time.monotonic() + soak_s
    while True:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            FollowMachine,
            settings=settings(
                max_examples=500 if soak_s else amount(80, 5),
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        if time.monotonic() >= deadline:
            return
