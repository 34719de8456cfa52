"""Whatever happens in whatever order, a subscriber ends with every record exactly once and in file order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import trio
import trio.testing
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from live_store import Live, Reader, append, line, live, said

from sessiond.errors import InvalidParams
from sessiond.events.subscription import Place, Subscription
from sessiond.model.event import MessageEvent, ResyncEvent

KEYS = ("agent:main:a", "agent:main:b")
keys = st.sampled_from(KEYS)
counts = st.integers(1, 6)


class Hearer:
    """One who follows for the whole test, over as many connections as it takes, and keeps what it was told by session.

    Of one key it resumes from the cursor of the last message it had. After a reset of the key while it was away it
    begins with the new session, as the client library does.
    """

    def __init__(self, parts: Live, key: str | None, limit: int) -> None:
        self.parts, self.key, self.limit = parts, key, limit
        self.had: dict[str, list[str]] = {}
        # Sessions whose end was missed: the key was reset while nobody listened.
        self.cut: set[str] = set()
        self.cursor: tuple[str, str] | None = None
        self._subscription: Subscription
        self.reader: Reader
        self.connected = False
        self.connect()

    def connect(self) -> None:
        parts, place = self.parts, None
        if self.key is not None:
            session = parts.session(self.key)
            place = parts.start(self.key)
            if self.cursor is None:
                self.cursor = session.session_id, parts.store.cursor(session, 0, 0)
            else:
                try:
                    at = parts.store.position(session, self.cursor[1])
                    place = Place(session.session_id, at.offset, at.seq)
                except InvalidParams:
                    self.cut.add(self.cursor[0])
                    self.had.pop(session.session_id, None)
                    self.cursor = session.session_id, parts.store.cursor(session, 0, 0)
        self._subscription, self.reader = parts.follow(self.key, place=place, limit=self.limit)
        self.connected = True

    def disconnect(self) -> None:
        self.collect()
        self.parts.leave(self._subscription)
        self.connected = False

    def collect(self) -> None:
        """Take what has come."""
        for event in self.reader.events:
            match event:
                case MessageEvent():
                    self.had.setdefault(event.session_id, []).append(said(event))
                    assert len(self.had[event.session_id]) == event.seq, self.had
                    self.cursor = event.session_id, event.cursor
                case ResyncEvent(reason="lagged"):
                    if self.cursor is not None and self.cursor[0] == event.session_id:
                        # Neither gap nor repetition: behind as many messages as were had.
                        assert event.cursor.split("-")[1] == self.cursor[1].split("-")[1]
                case ResyncEvent():
                    self.had[event.session_id] = []
                    self.cursor = event.session_id, event.cursor
        self.reader.events.clear()

    def missing(self, written: dict[str, list[str]]) -> dict[str, list[str]]:
        """By session, what was written and not heard; AssertionError where it was heard wrongly."""
        self.collect()
        left: dict[str, list[str]] = {}
        for session_id, texts in written.items():
            had = self.had.get(session_id, [])
            assert had == texts[: len(had)], (session_id, had, texts)
            if len(had) < len(texts) and session_id not in self.cut:
                left[session_id] = texts[len(had) :]
        return left


class Machine(RuleBasedStateMachine):
    """Each rule is one step of a Trio program that runs between the steps only as far as they let it."""

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

    @rule(key=keys)
    def both_append_at_once(self, key: str) -> None:
        self.steps.append(("both", key))

    @rule(key=keys)
    def reset(self, key: str) -> None:
        self.steps.append(("reset", key))

    @rule(who=st.integers(0, 2), room=st.integers(0, 5))
    def reader_stops(self, who: int, room: int) -> None:
        self.steps.append(("stop", (who, room)))

    @rule(who=st.integers(0, 2))
    def reader_goes_on(self, who: int) -> None:
        self.steps.append(("go on", who))

    @rule()
    def follower_of_a_key_loses_its_connection(self) -> None:
        self.steps.append(("disconnect", None))

    @rule()
    def follower_of_a_key_comes_back(self) -> None:
        self.steps.append(("connect", None))

    @rule()
    def everyone_gets_their_turn(self) -> None:
        self.steps.append(("settle", None))

    def teardown(self) -> None:
        if self.steps:
            with tempfile.TemporaryDirectory() as folder:
                trio.run(Play(Path(folder), self.limit).run, self.steps)


class Play:
    """Carries the steps out."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.count = 0

    async def run(self, steps: list[tuple[str, Any]]) -> None:
        with trio.fail_after(60):
            async with live(self.folder) as self.parts:
                for key in KEYS:
                    await self.parts.create(key)
                self.of_key = Hearer(self.parts, KEYS[0], self.limit)
                everything = [Hearer(self.parts, None, self.limit) for _ in range(2)]
                self.hearers = [self.of_key, *everything]
                for name, what in steps:
                    await self.step(name, what)
                await self.finish()

    async def step(self, name: str, what: Any) -> None:
        parts = self.parts
        match name:
            case "say":
                await parts.say(what[0], *self.texts(what[1]))
            case "write":
                parts.write(what[0], *self.texts(what[1]))
            case "halves":
                data = line(self.texts(1)[0])
                append(parts.file(what[0]), data[: what[1]])
                await trio.testing.wait_all_tasks_blocked()
                append(parts.file(what[0]), data[what[1] :])
            case "both":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(parts.say, what, *self.texts(2))
                    parts.write(what, *self.texts(2))
                    nursery.start_soon(parts.say, what, *self.texts(1))
                    await trio.lowlevel.checkpoint()
                    parts.write(what, *self.texts(1))
            case "reset":
                # A stranger's record that the daemon has not seen when the file leaves is in the archive, and untold.
                await self.folded()
                await parts.reset(what)
            case "stop":
                self.hearers[what[0]].reader.stop(what[1])
            case "go on":
                self.hearers[what].reader.go_on()
            case "disconnect":
                if self.of_key.connected:
                    self.of_key.disconnect()
            case "connect":
                if not self.of_key.connected:
                    self.of_key.connect()
            case "settle":
                await trio.testing.wait_all_tasks_blocked(0.001)

    def texts(self, count: int) -> list[str]:
        self.count += count
        return [f"{number} " + "x" * (number % 50) for number in range(self.count - count, self.count)]

    async def folded(self) -> None:
        """Return when the feed has read what the strangers wrote."""
        for session in list(self.parts.store.catalog.by_key.values()):
            path = self.parts.store.path / session.path
            while session.entry.file.folded_to < path.stat().st_size:
                await trio.testing.wait_all_tasks_blocked(0.001)

    async def finish(self) -> None:
        if not self.of_key.connected:
            self.of_key.connect()
        for hearer in self.hearers:
            hearer.reader.go_on()
        written = {session.session_id: self.written(session.path) for session in self.sessions}
        of_key = {session.session_id for session in self.sessions if session.key == KEYS[0]}
        for hearer in self.hearers:
            due = written if hearer.key is None else {s: texts for s, texts in written.items() if s in of_key}
            if hearer.key is not None:
                # Reset more than once while it was away: what came and went between, it cannot know of.
                newest = self.parts.session(hearer.key).session_id
                due = {s: texts for s, texts in due.items() if s in hearer.had or s == newest or not hearer.cut}
            with trio.move_on_after(20):
                await hearer.reader.until(lambda hearer=hearer, due=due: not hearer.missing(due))
            assert hearer.missing(due) == {}

    @property
    def sessions(self) -> list[Any]:
        return list(self.parts.store.catalog.by_id.values())

    def written(self, path: str) -> list[str]:
        lines = (self.parts.store.path / path).read_bytes().splitlines()
        records = [msgspec.json.decode(text) for text in lines if text.strip()]
        return [record["message"]["content"] for record in records if record["type"] == "message"]


def test_every_record_comes_exactly_once_and_in_file_order() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
