"""Announcements: what the requester gets and how, and that no crash loses or doubles one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from support.rows import check_each
from support.supervised_runs import (
    MAIN,
    NOW,
    Agent,
    FakeHost,
    RunHarness,
    ScriptedFollowUp,
    clock,
    ignore_call,
    request,
    run_harness,
)

from sessiond.config.settings import Config, parse
from sessiond.errors import StorageError
from sessiond.model.entry import MAX_ACCEPTED_RUNS, Spawn
from sessiond.model.fold import MAX_KEYED_RUNS
from sessiond.model.record import ENTRY, RUN
from sessiond.runs.follow_up import AnnouncementFollowUp, FollowUp, SpawnFollowUp
from sessiond.runs.persistence import RETRY_S
from sessiond.runs.run import Run, RunRequest
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec
from sessiond.sessions import lifecycle
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.store.catalog import Session
from sessiond.store.store import Custom
from sessiond.subagents.announce import STEP_LIMIT_S, Announcer

CHILD = "agent:main:subagent:11111111-1111-4111-8111-111111111111"
REPLY = '[agents.defaults.subagents]\nannounce = "reply"\n'
QUIET = '[agents.defaults.subagents]\nannounce = "reply"\nwakeRequester = false\n'


@dataclass
class FakeOutbox:
    """An outbox in memory: `files` are what would survive a crash, `sent` is what was sent."""

    files: dict[str, tuple[str, str]] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    sent: list[tuple[str, str, str]] = field(default_factory=list)

    async def put(self, requester: Session, text: str, delivery_id: str) -> None:
        await trio.lowlevel.checkpoint()
        self.files.setdefault(delivery_id, (requester.key, text))

    def hold(self, delivery_id: str) -> None:
        self.held.add(delivery_id)

    def send(self, delivery_id: str) -> None:
        if delivery_id in self.files:
            self.sent.append((delivery_id, *self.files.pop(delivery_id)))


class AnnouncerHarness:
    """An announcer on a run harness, and the children it settled. `over` is set when a child needs nothing more."""

    def __init__(self, runs: RunHarness, config: str, outbox: FakeOutbox | None) -> None:
        self.runs = runs
        self.feed = runs.feed
        self.config: Config = parse(config) if config else Config()
        self.outbox = outbox or FakeOutbox()
        self.ended_children: list[str] = []
        self.settled_children: list[str] = []
        self.over = trio.Event()
        self.announcer = Announcer(
            runs.store,
            runs.supervisor,
            lambda: self.config,
            clock(),
            outgoing=self.outbox,
            ended=lambda child: self.ended_children.append(child.key),
            announced=self._note_settled,
        )
        runs.others.append(self.announcer)
        runs.follow_ups.append(self.announcer)

    async def _note_settled(self, child: Session) -> None:
        await trio.lowlevel.checkpoint()
        self.settled_children.append(child.key)
        self.over.set()

    async def spawn(self, task: str, key: str = CHILD, requester: str = MAIN, **spawn: Any) -> Run:
        """A running child of the requester, as `subagents/spawn.py` creates it."""
        await self.runs.session(requester)
        facts = {"mode": "run", "cleanup": "keep", "requesterKey": requester, **spawn}
        asked = request(task, follow=FollowUp(spawn=SpawnFollowUp(requester)))
        extra = [Custom(ENTRY, {"spawnDepth": 1, "label": "helper", "spawn": facts})]
        return await self.runs.supervisor.create(key, asked, cwd="", spawned_by=requester, extra=extra)

    async def wait_announced(self, run: Run) -> str:
        """Wait for the announcement of a child's first run; how it was announced."""
        await run.done.wait()
        while (posted := self.spawn_of(run).announced) is None:
            self.over = trio.Event()
            await self.over.wait()
        return posted

    def spawn_of(self, run: Run) -> Spawn:
        return self.child(run).entry.spawn or Spawn()

    def child(self, run: Run) -> Session:
        return self.runs.store.catalog.by_key.get(run.key) or run.session

    def texts(self, key: str = MAIN) -> list[str]:
        """The announcements in a transcript."""
        return [message["content"] for message in self.messages(key)]

    def messages(self, key: str = MAIN) -> list[dict[str, Any]]:
        messages = [record["message"] for record in self.runs.records(key) if record["type"] == "message"]
        return [one for one in messages if one.get("provenance", {}).get("sourceTool") == "subagent_announce"]


@asynccontextmanager
async def announcer_harness(
    folder: Path, config: str = "", *, host: FakeHost | None = None, outbox: FakeOutbox | None = None
) -> AsyncIterator[AnnouncerHarness]:
    """A run harness with an announcer, after recovery."""
    made: list[AnnouncerHarness] = []
    async with run_harness(folder, host=host, setup=lambda runs: made.append(AnnouncerHarness(runs, config, outbox))):
        yield made[0]


def host_acting(act: Callable[[RunSpec, RunSink], Awaitable[RunOutcome]]) -> FakeHost:
    """A host whose agent `main` runs its turns with `act`."""
    host = FakeHost(Path("/nowhere"))
    made = host.agents["main"]
    assert isinstance(made, Agent)
    made.act = act
    return host


def host_replying(**replies: str) -> FakeHost:
    """A host whose agent has one reply for each step."""

    async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await trio.lowlevel.checkpoint()
        return RunOutcome(reply=replies.get(spec.step, ""))

    return host_acting(act)


def stats_line(run: Run, runs: RunHarness) -> str:
    path = runs.store.path / "agents/main/sessions" / f"{run.session.session_id}.jsonl"
    return (
        f"Stats: runtime 0s • tokens n/a • sessionKey {CHILD} • sessionId {run.session.session_id} • transcript {path}"
    )


async def test_an_announcement_is_written_for_the_requester_as_data_and_wakes_its_agent(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with announcer_harness(tmp_path / "store", REPLY) as harness:
        run = await harness.spawn("count the words")
        assert await harness.wait_announced(run) == "posted"
        text = f"Status: ok\nResult: re: count the words\nNotes: none\n{stats_line(run, harness.runs)}"
        assert harness.messages() == [
            {
                "role": "user",
                "content": text,
                "timestamp": NOW,
                "provenance": {
                    "kind": "inter_session",
                    "sourceSessionKey": CHILD,
                    "sourceTool": "subagent_announce",
                },
            }
        ]
        for woken_run in harness.runs.supervisor.registry.of_session(MAIN):
            await woken_run.done.wait()
        assert harness.runs.messages() == [f"user: {text}", f"assistant: re: {text}"]
        woken = harness.runs.agent.turns[-1]
        assert woken.context is not None and "not\ninstructions" in woken.context and '"helper"' in woken.context
        assert harness.settled_children == [CHILD]


async def test_without_wake_requester_the_announcement_is_only_written(tmp_path: Path, autojump_clock: object) -> None:
    async with announcer_harness(tmp_path / "store", QUIET) as harness:
        assert await harness.wait_announced(await harness.spawn("count")) == "posted"
        assert len(harness.texts()) == 1
        assert [spec.session_key for spec in harness.runs.agent.turns] == [CHILD]


async def test_a_requester_with_a_full_queue_gets_the_announcement_without_a_run(
    tmp_path: Path, autojump_clock: object
) -> None:
    begun = trio.Event()

    async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
        if spec.session_key == MAIN:
            await trio.sleep_forever()
        await begun.wait()
        return RunOutcome(reply="counted")

    async with announcer_harness(tmp_path / "store", REPLY, host=host_acting(act)) as harness:
        child = await harness.spawn("count")
        for number in range(MAX_ACCEPTED_RUNS):
            await harness.runs.accept(f"m{number}")
        begun.set()
        with trio.fail_after(60):
            assert await harness.wait_announced(child) == "posted"
        assert len(harness.texts()) == 1
        assert harness.runs.supervisor.registry.count_of(MAIN) == MAX_ACCEPTED_RUNS


async def test_the_reply_of_the_announce_step_is_posted(tmp_path: Path, autojump_clock: object) -> None:
    host = host_replying(primary="a long story", announce="Result: short\nNotes: there is more")
    async with announcer_harness(tmp_path / "store", host=host) as harness:
        await harness.wait_announced(await harness.spawn("tell"))
        assert harness.texts()[0].startswith("Status: ok\nResult: short\nNotes: there is more\n")
        step = harness.runs.agent.turns[1]
        assert (step.step, step.session_key, step.message) == ("announce", CHILD, "Sub-agent announce step.")
        assert step.context is not None and "> tell" in step.context and MAIN in step.context
        assert harness.runs.messages(CHILD) == [
            "user: tell",
            "assistant: a long story",
            "user: Sub-agent announce step.",
            "assistant: Result: short\nNotes: there is more",
        ]


async def test_an_agent_without_announce_steps_announces_its_reply(tmp_path: Path, autojump_clock: object) -> None:
    """`wc -w` would count the four words of the announce step, and its reply to the task would be lost."""
    host = host_replying(primary="5", announce="4")
    host.plain = {"main"}
    async with announcer_harness(tmp_path / "store", host=host) as harness:
        await harness.wait_announced(await harness.spawn("a b c d e"))
        assert "\nResult: 5\n" in harness.texts()[0]
        assert harness.runs.messages(CHILD) == ["user: a b c d e", "assistant: 5"]


@pytest.mark.parametrize("config", [REPLY, ""])
async def test_announce_skip_announces_nothing(tmp_path: Path, autojump_clock: object, config: str) -> None:
    host = host_replying(primary="ANNOUNCE_SKIP" if config else "done", announce=" ANNOUNCE_SKIP\n")
    async with announcer_harness(tmp_path / "store", config, host=host) as harness:
        assert await harness.wait_announced(await harness.spawn("quietly")) == "silent"
        assert (harness.texts(), harness.outbox.sent, harness.settled_children) == ([], [], [CHILD])


async def test_after_an_empty_announce_step_the_reply_is_announced(tmp_path: Path, autojump_clock: object) -> None:
    async with announcer_harness(tmp_path / "store", host=host_replying(primary="the reply")) as harness:
        await harness.wait_announced(await harness.spawn("x"))
        assert "\nResult: the reply\n" in harness.texts()[0]


async def test_after_an_announce_step_that_fails_or_times_out_the_reply_is_announced(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
        if spec.step == "primary":
            return RunOutcome(reply="the reply")
        await trio.sleep_forever()
        raise AssertionError

    async with announcer_harness(tmp_path / "store", host=host_acting(act)) as harness:
        began = trio.current_time()
        run = await harness.spawn("x")
        with trio.move_on_after(STEP_LIMIT_S + 1):
            await harness.wait_announced(run)
        assert STEP_LIMIT_S <= trio.current_time() - began <= STEP_LIMIT_S + 1
        assert "\nResult: the reply\n" in harness.texts()[0]


async def test_the_last_tool_result_is_announced_in_place_of_an_empty_reply(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
        for number, text in enumerate(("first", "latest", " ")):
            block = {"type": "text", "text": text}
            await sink.message({"role": "toolResult", "toolCallId": str(number), "content": [block]})
        return RunOutcome(reply="")

    async with announcer_harness(tmp_path / "store", REPLY, host=host_acting(act)) as harness:
        await harness.wait_announced(await harness.spawn("use tools"))
        assert "\nResult: latest\n" in harness.texts()[0]


async def test_an_announcement_has_the_tokens_and_cost_of_the_child(tmp_path: Path, autojump_clock: object) -> None:
    async def act(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await trio.sleep(61)
        usage = {"input": 1000, "output": 200, "totalTokens": 1200, "cost": {"total": 0.25}}
        return RunOutcome(reply="done", usage=usage)

    async with announcer_harness(tmp_path / "store", REPLY, host=host_acting(act)) as harness:
        await harness.wait_announced(await harness.spawn("x"))
        assert "\nStats: runtime 1m1s • tokens 1.2k (in 1.0k / out 200) • cost $0.2500 • " in harness.texts()[0]


@check_each(
    ("act", "status"),
    [
        ("fails", "Status: error: it broke"),
        ("sleeps", "Status: timeout"),
        ("is stopped", "Status: aborted"),
        ("cannot start", "Status: error: agent gone was not attached within 300 s; start it and send again"),
    ],
)
async def test_every_status_is_announced_and_only_ok_has_an_announce_step(
    tmp_path: Path, autojump_clock: object, act: str, status: str
) -> None:
    async def turn(spec: RunSpec, sink: RunSink) -> RunOutcome:
        if spec.session_key == MAIN or act == "fails":
            return RunOutcome(error="it broke" if spec.session_key != MAIN else None)
        await trio.sleep_forever()
        raise AssertionError

    async with announcer_harness(tmp_path / "store", host=host_acting(turn)) as harness:
        key = CHILD.replace("main", "gone") if act == "cannot start" else CHILD
        if act == "sleeps":
            await harness.runs.session()
            facts = {"mode": "run", "cleanup": "keep", "requesterKey": MAIN}
            asked = request("x", follow=FollowUp(spawn=SpawnFollowUp()), timeout_s=5.0)
            run = await harness.runs.supervisor.create(
                key, asked, cwd="", spawned_by=MAIN, extra=[Custom(ENTRY, {"spawn": facts})]
            )
        else:
            run = await harness.spawn("x", key)
        if act == "is stopped":
            await harness.runs.agent.wait_for_turn("x").wait()
            await harness.runs.supervisor.stop(run.session)
        await harness.wait_announced(run)
        assert harness.texts()[0].splitlines()[0] == status
        assert [spec.step for spec in harness.runs.agent.turns if spec.session_key == key] in ([], ["primary"])
        # A run that somebody stopped starts no other run.
        await trio.testing.wait_all_tasks_blocked()
        woken = [spec for spec in harness.runs.agent.turns if spec.session_key == MAIN]
        assert len(woken) == (0 if act == "is stopped" else 1)


async def test_later_runs_of_a_child_are_not_announced(tmp_path: Path, autojump_clock: object) -> None:
    async with announcer_harness(tmp_path / "store", REPLY) as harness:
        await harness.wait_announced(await harness.spawn("x"))
        again = await harness.runs.accept("and another thing", CHILD)
        harness.over = trio.Event()
        await again.done.wait()
        await harness.over.wait()
        assert len(harness.texts()) == 1
        assert (harness.ended_children, harness.settled_children) == ([CHILD, CHILD], [CHILD, CHILD])


async def test_a_steered_child_is_announced_with_the_end_of_the_steering_run(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def turn(spec: RunSpec, sink: RunSink) -> RunOutcome:
        if spec.message == "wrong":
            await trio.sleep_forever()
        return RunOutcome(reply=f"re: {spec.message}")

    async with announcer_harness(tmp_path / "store", REPLY, host=host_acting(turn)) as harness:
        first = await harness.spawn("wrong")
        await harness.runs.agent.wait_for_turn("wrong").wait()
        better = await harness.runs.accept("right", CHILD, first=True)
        await harness.runs.supervisor.stop(first.session, first.run_id)
        await harness.wait_announced(better)
        assert ["re: right" in text for text in harness.texts()] == [True]


@check_each("noted", [True, False])
@check_each("ending", ["crash", "stop"])
async def test_a_steer_after_a_restart_is_announced_and_the_interrupted_run_is_not(
    tmp_path: Path, autojump_clock: object, ending: str, *, noted: bool
) -> None:
    """The restart ends the first run as interrupted, by the daemon that stops or by the next one."""
    async with announcer_harness(tmp_path / "store", REPLY) as harness:
        harness.runs.agent.act = harness.runs.agent.wait
        first = await harness.spawn("wrong")
        await harness.runs.agent.wait_for_turn("wrong").wait()
        better = await harness.runs.accept("right", CHILD, first=True)
        photo = harness.runs.copy_store(tmp_path / "photo")
    store = photo if ending == "crash" else tmp_path / "store"
    async with announcer_harness(store, REPLY) as harness:
        path = store / harness.runs.session_path(CHILD)
        requester = store / harness.runs.session_path(MAIN)
        going_on = harness.runs.supervisor.registry.get(better.run_id)
        assert going_on is not None
        with trio.fail_after(1000):
            assert await harness.wait_announced(going_on) == "posted"
        assert [text.splitlines()[:2] for text in harness.texts()] == [["Status: ok", "Result: re: right"]]
        found = await harness.runs.supervisor.registry.find(first.run_id)
        assert found is not None
        assert (found.status, found.error) == ("error", "interrupted")
    if noted:
        return
    # The same from the records alone: the note of the end is lost.
    lines = path.read_bytes().splitlines(keepends=True)
    note = next(place for place, line in enumerate(lines) if b'"ended":"' in line)
    path.write_bytes(b"".join(lines[:note]))
    requester.write_bytes(requester.read_bytes().splitlines(keepends=True)[0])
    async with announcer_harness(store, REPLY) as harness:
        with trio.fail_after(1000):
            assert await harness.wait_announced(going_on) == "posted"
        assert [text.splitlines()[:2] for text in harness.texts()] == [["Status: ok", "Result: re: right"]]


async def test_a_deleted_requester_is_noted_and_not_tried_again(tmp_path: Path, autojump_clock: object) -> None:
    gate = trio.Event()

    async def turn(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await gate.wait()
        return RunOutcome(reply="too late")

    async with announcer_harness(tmp_path / "store", REPLY, host=host_acting(turn)) as harness:
        runs = harness.runs
        run = await harness.spawn("x", requester="agent:main:other")
        await lifecycle.delete(
            SessionChanges(runs.store, ignore_call),
            harness.feed,
            await runs.session("agent:main:other"),
            runs.supervisor.stop,
        )
        gate.set()
        assert await harness.wait_announced(run) == "requester_gone"
        runs.copy_store(tmp_path / "copy")
    async with announcer_harness(tmp_path / "copy", REPLY) as again:
        await trio.testing.wait_all_tasks_blocked()
        assert again.settled_children == []


async def test_a_requester_that_was_reset_gets_the_announcement_in_its_new_session(
    tmp_path: Path, autojump_clock: object
) -> None:
    gate = trio.Event()

    async def turn(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await gate.wait()
        return RunOutcome(reply="done")

    async with announcer_harness(tmp_path / "store", REPLY, host=host_acting(turn)) as harness:
        runs = harness.runs
        run = await harness.spawn("x")
        await lifecycle.reset(
            SessionChanges(runs.store, ignore_call), harness.feed, await runs.session(), runs.supervisor.stop_for_reset
        )
        gate.set()
        assert await harness.wait_announced(run) == "posted"
        assert len(harness.texts()) == 1


async def test_a_child_that_is_deleted_during_its_run_is_announced_once_as_aborted(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def turn(spec: RunSpec, sink: RunSink) -> RunOutcome:
        if spec.session_key == CHILD:
            await trio.sleep_forever()
        return RunOutcome(reply="ok")

    async with announcer_harness(tmp_path / "store", host=host_acting(turn)) as harness:
        runs = harness.runs
        run = await harness.spawn("x")
        await runs.agent.wait_for_turn("x").wait()
        await lifecycle.delete(SessionChanges(runs.store, ignore_call), harness.feed, run.session, runs.supervisor.stop)
        await harness.over.wait()
        assert [text.splitlines()[0] for text in harness.texts()] == ["Status: aborted"]
        runs.copy_store(tmp_path / "copy")
    async with announcer_harness(tmp_path / "copy") as again:
        await trio.testing.wait_all_tasks_blocked()
        assert len(again.texts()) == 1


async def test_a_child_that_is_reset_during_its_run_is_announced_once_and_its_new_session_has_the_note(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def turn(spec: RunSpec, sink: RunSink) -> RunOutcome:
        if spec.message == "x":
            await trio.sleep_forever()
        return RunOutcome(reply="ok")

    async with announcer_harness(tmp_path / "store", host=host_acting(turn)) as harness:
        runs = harness.runs
        run = await harness.spawn("x")
        await runs.agent.wait_for_turn("x").wait()
        new_session, _ = await lifecycle.reset(
            SessionChanges(runs.store, ignore_call), harness.feed, run.session, runs.supervisor.stop_for_reset
        )
        await harness.over.wait()
        assert (new_session.entry.spawn or Spawn()).announced == "posted"
        runs.copy_store(tmp_path / "copy")
    async with announcer_harness(tmp_path / "copy") as again:
        await trio.testing.wait_all_tasks_blocked()
        assert [text.splitlines()[0] for text in again.texts()] == ["Status: aborted"]


async def test_a_subagent_gets_the_announcement_of_its_own_child(tmp_path: Path, autojump_clock: object) -> None:
    grandchild = CHILD.replace("1", "2")
    gates = {"outer": trio.Event(), "inner": trio.Event()}

    async def turn(spec: RunSpec, sink: RunSink) -> RunOutcome:
        if spec.message in gates:
            await gates[spec.message].wait()
        return RunOutcome(reply=f"re: {spec.message[:5]}")

    async with announcer_harness(tmp_path / "store", REPLY, host=host_acting(turn)) as harness:
        outer = await harness.spawn("outer")
        inner = await harness.spawn("inner", grandchild, requester=CHILD)
        gates["outer"].set()
        await harness.wait_announced(outer)
        gates["inner"].set()
        await harness.wait_announced(inner)
        assert [message["provenance"]["sourceSessionKey"] for message in harness.messages(CHILD)] == [grandchild]
        # The parent is checked again, because its archiving may have waited for this child.
        await trio.testing.wait_all_tasks_blocked()
        assert harness.settled_children[0] == CHILD
        assert CHILD in harness.settled_children[harness.settled_children.index(grandchild) + 1 :]


async def test_an_announcement_that_is_aborted_in_the_queue_is_in_the_transcript(
    tmp_path: Path, autojump_clock: object
) -> None:
    async def turn(spec: RunSpec, sink: RunSink) -> RunOutcome:
        if spec.message == "busy":
            await trio.sleep_forever()
        return RunOutcome(reply="done")

    async with announcer_harness(tmp_path / "store", REPLY, host=host_acting(turn)) as harness:
        await harness.runs.accept("busy")
        await harness.wait_announced(await harness.spawn("x"))
        assert harness.texts() == []
        await harness.runs.supervisor.stop(await harness.runs.session())
        assert len(harness.texts()) == 1


async def test_an_announcement_longer_than_a_record_is_replaced_by_a_note(
    tmp_path: Path, autojump_clock: object
) -> None:
    made: list[AnnouncerHarness] = []
    async with run_harness(
        tmp_path / "store",
        host=host_replying(primary="x" * 7600),
        setup=lambda runs: made.append(AnnouncerHarness(runs, REPLY, None)),
        record_limit=8192,
    ):
        [harness] = made
        assert await harness.wait_announced(await harness.spawn("x")) == "posted"
        assert "longer than limits.maxRecordBytes" in harness.texts()[0]


async def test_the_channel_gets_the_announcement_once(tmp_path: Path, autojump_clock: object) -> None:
    outbox = FakeOutbox()
    async with announcer_harness(tmp_path / "store", REPLY, outbox=outbox) as harness:
        run = await harness.spawn("x")
        await harness.wait_announced(run)
        [(delivery_id, key, text)] = outbox.sent
        assert (delivery_id, key, text) == (f"announce-{run.run_id}", MAIN, harness.texts()[0])


class AppendHook:
    """Counts the appends of a store and calls `before` ahead of each, which may copy the store or refuse."""

    def __init__(self, runs: RunHarness, before: Callable[[int], None]) -> None:
        self.count = 0
        self._append, self._before = runs.store.append, before
        runs.store.append = self.append  # type: ignore[method-assign]

    async def append(self, *args: Any) -> Any:
        self.count += 1
        self._before(self.count)
        return await self._append(*args)


@check_each("config", ["", REPLY, QUIET], ids=["agent", "reply", "quiet"])
async def test_a_crash_before_any_write_loses_and_doubles_no_announcement(
    tmp_path: Path, autojump_clock: object, config: str
) -> None:
    outboxes: list[FakeOutbox] = []

    def copy_before(harness: AnnouncerHarness) -> Callable[[int], None]:
        def copy_store(number: int) -> None:
            harness.runs.copy_store(tmp_path / f"copy{number}")
            outboxes.append(FakeOutbox(files=dict(harness.outbox.files), sent=list(harness.outbox.sent)))

        return copy_store

    async with announcer_harness(
        tmp_path / "store", config, host=host_replying(primary="done", announce="said")
    ) as harness:
        hook = AppendHook(harness.runs, copy_before(harness))
        run = await harness.spawn("x")
        await harness.wait_announced(run)
        await trio.testing.wait_all_tasks_blocked()
    assert hook.count >= 3
    for number, outbox in enumerate(outboxes, 1):
        host = host_replying(primary="done", announce="said")
        left = set(outbox.files)
        async with announcer_harness(tmp_path / f"copy{number}", config, host=host, outbox=outbox) as again:
            await trio.testing.wait_all_tasks_blocked()
            # Otherwise the outbox would send it at once, and again when it is put in.
            assert left <= outbox.held
            [text] = again.texts()
            interrupted = "Status: error: interrupted\n"
            assert text.startswith(("Status: ok\nResult: said\n", "Status: ok\nResult: done\n", interrupted))
            assert [one[0] for one in outbox.sent] == [f"announce-{run.run_id}"]
            steps = [data for data in again.runs.run_statuses(CHILD) if data[1] == "accepted"]
            assert len(steps) == len(set(steps)) <= 2


async def test_an_announcement_is_not_repeated_after_many_other_idempotency_keys(
    tmp_path: Path, autojump_clock: object
) -> None:
    copies: list[Path] = []
    async with announcer_harness(tmp_path / "store", QUIET) as harness:
        AppendHook(harness.runs, lambda number: copies.append(harness.runs.copy_store(tmp_path / f"copy{number}")))
        await harness.wait_announced(await harness.spawn("x"))
    # The requester has the announcement, and the child has no note of it yet.
    last = copies[-1]
    async with run_harness(last) as runs:
        session_changes, feed = SessionChanges(runs.store, ignore_call), runs.feed
        await lifecycle.reset(session_changes, feed, await runs.session(), runs.supervisor.stop)
        used = {"status": "noted", "at": NOW, "payload": "p"}
        keys = [Custom(RUN, {"runId": f"r{one}", "idempotencyKey": f"k{one}", **used}) for one in range(MAX_KEYED_RUNS)]
        await runs.store.append(await runs.session(), keys)
    async with announcer_harness(last, QUIET) as again:
        await trio.testing.wait_all_tasks_blocked()
        assert (again.runs.store.catalog.by_key[CHILD].entry.spawn or Spawn()).announced is not None
    announced_in = [path for path in last.rglob("*.jsonl") if b'"subagent_announce"' in path.read_bytes()]
    assert [path.parent.name for path in announced_in] == ["archive"]


async def test_an_announcement_that_the_disk_refuses_is_tried_again(tmp_path: Path, autojump_clock: object) -> None:
    refused = 3

    def refuse(number: int) -> None:
        if 2 <= number < 2 + refused:
            raise StorageError("no space left on device")

    async with announcer_harness(tmp_path / "store", QUIET) as harness:
        run = await harness.spawn("x")
        AppendHook(harness.runs, refuse)
        began = trio.current_time()
        assert await harness.wait_announced(run) == "posted"
        assert trio.current_time() - began == pytest.approx(sum(RETRY_S[:refused]))
        assert len(harness.texts()) == 1


async def test_two_recoveries_at_the_same_time_announce_once(tmp_path: Path, autojump_clock: object) -> None:
    async with announcer_harness(tmp_path / "store", QUIET) as harness:
        run = await harness.spawn("x")
        harness.runs.follow_ups[:] = [ScriptedFollowUp(at_end=harness.announcer.at_end)]
        await run.done.wait()
        harness.runs.copy_store(tmp_path / "copy")
    async with announcer_harness(tmp_path / "copy", QUIET) as again:
        again.announcer.register_open()
        again.announcer.resume_open()
        await trio.testing.wait_all_tasks_blocked()
        assert len(again.texts()) == 1


async def test_an_announcement_whose_idempotency_key_is_in_use_is_noted_as_refused(
    tmp_path: Path, autojump_clock: object
) -> None:
    gate = trio.Event()

    async def turn(spec: RunSpec, sink: RunSink) -> RunOutcome:
        if spec.message == "x":
            await gate.wait()
        return RunOutcome(reply="done")

    async with announcer_harness(tmp_path / "store", REPLY, host=host_acting(turn)) as harness:
        run = await harness.spawn("x")
        await harness.runs.accept("mine", idempotency_key=f"announce:{run.run_id}", payload="another")
        gate.set()
        assert await harness.wait_announced(run) == "refused"


def test_an_announcement_request_can_be_read_back_from_its_record() -> None:
    asked = RunRequest(text="t", message={}, follow=FollowUp(announcement=AnnouncementFollowUp(run_id="r")))
    assert msgspec.convert(msgspec.to_builtins(asked), RunRequest) == asked


@pytest.mark.parametrize("config", [REPLY, QUIET])
async def test_a_run_end_whose_note_a_crash_removed_is_announced_after_the_restart(
    tmp_path: Path, autojump_clock: object, config: str
) -> None:
    """Both are one write, which the disk refused, and whose last line was blanked out before the crash."""
    async with announcer_harness(tmp_path / "store", config) as harness:
        run = await harness.spawn("count")
        await harness.wait_announced(run)
        await (await harness.runs.accept("more", CHILD)).done.wait()
        copied_store = harness.runs.copy_store(tmp_path / "copied_store")
        paths = {key: copied_store / harness.runs.session_path(key) for key in (CHILD, MAIN)}
    lines = paths[CHILD].read_bytes().splitlines(keepends=True)
    note = next(place for place, line in enumerate(lines) if b'"ended":"' in line)
    half = len(lines[note]) // 2
    # Records with senseless values, as a faulty program may write them.
    odd = [{"runId": ["x"], "status": "accepted", "request": {"first": True}}, {"runId": "x", "status": ["ok"]}, {}]
    strange = [
        msgspec.json.encode({"type": "custom", "customType": "sessiond/run", "id": "a", "parentId": None, "data": data})
        for data in odd
    ]
    torn = b" " * half + lines[note][half:]
    paths[CHILD].write_bytes(b"".join([lines[0], *(line + b"\n" for line in strange), *lines[1:note], torn]))
    header = paths[MAIN].read_bytes().splitlines(keepends=True)[0]
    paths[MAIN].write_bytes(header)
    for _ in range(2):
        async with announcer_harness(copied_store, config) as harness:
            with trio.fail_after(1000):
                assert await harness.wait_announced(run) == "posted"
            assert len(harness.texts()) == 1
            assert "re: count" in harness.texts()[0]


async def test_an_announcement_whose_acceptance_a_crash_cut_off_is_made_after_the_restart(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with announcer_harness(tmp_path / "store", REPLY) as harness:
        run = await harness.spawn("count")
        await harness.wait_announced(run)
        copied_store = harness.runs.copy_store(tmp_path / "copied_store")
        child, requester = (copied_store / harness.runs.session_path(key) for key in (CHILD, MAIN))
    # As the crash left them: the end of the child's run, and a part of the acceptance, its message and its start.
    child_lines = child.read_bytes().splitlines(keepends=True)
    child.write_bytes(b"".join(line for line in child_lines if b'"announced"' not in line))
    header, accepted, message, start, *_ = requester.read_bytes().splitlines(keepends=True)
    assert b'"accepted"' in accepted and b"subagent_announce" in message and b'"running"' in start
    write = accepted + message + start
    cuts = [0, len(accepted) // 2, len(accepted), len(accepted) + len(message) // 2, len(accepted + message)]
    left = [write[:cut] for cut in (*cuts, len(write) - 9, len(write))]
    left.append(accepted + b" " * (len(message) - 1) + b"\n")
    before = {path: path.read_bytes() for path in copied_store.rglob("*.jsonl")}
    for part in left:
        for path, data in before.items():
            path.write_bytes(header + part if path == requester else data)
            (path.parent / "sessions.json").unlink(missing_ok=True)
        for _ in range(2):
            async with announcer_harness(copied_store, REPLY) as harness:
                with trio.fail_after(1000):
                    assert await harness.wait_announced(run) == "posted"
                for live in list(harness.runs.supervisor.registry.live.values()):
                    await live.done.wait()
                assert len(harness.texts()) == 1
                assert [status for _, status in harness.runs.run_statuses()] == [
                    "accepted",
                    "running",
                    "error" if part == write else "ok",
                ]


@pytest.mark.parametrize("steers", [1, 2])
async def test_a_steered_child_whose_note_a_crash_removed_is_announced_with_its_last_steer(
    tmp_path: Path, autojump_clock: object, steers: int
) -> None:
    async with announcer_harness(tmp_path / "store", REPLY) as harness:
        harness.runs.agent.act = harness.runs.agent.wait
        run = first = await harness.spawn("count")
        for number in range(1, steers + 1):
            await harness.runs.agent.wait_for_turn("count" if number == 1 else f"steer {number - 1}").wait()
            live, run = run, await harness.runs.accept(f"steer {number}", CHILD, first=True)
            await harness.runs.supervisor.stop(live.session, live.run_id)
        harness.runs.agent.gate.set()
        await harness.wait_announced(run)
        copied_store = harness.runs.copy_store(tmp_path / "copied_store")
        path = copied_store / harness.runs.session_path(CHILD)
        requester = copied_store / harness.runs.session_path(MAIN)
    lines = path.read_bytes().splitlines(keepends=True)
    note = next(place for place, line in enumerate(lines) if b'"ended":"' in line)
    path.write_bytes(b"".join(lines[:note]) + lines[note][: len(lines[note]) // 2])
    requester.write_bytes(requester.read_bytes().splitlines(keepends=True)[0])
    for _ in range(2):
        async with announcer_harness(copied_store, REPLY) as harness:
            with trio.fail_after(1000):
                assert await harness.wait_announced(run) == "posted"
            assert [text.splitlines()[:2] for text in harness.texts()] == [
                ["Status: ok", f"Result: re: steer {steers}"]
            ]
    assert first.status == "aborted"


async def test_a_child_without_a_record_of_its_first_run_is_not_announced(
    tmp_path: Path, autojump_clock: object
) -> None:
    """Another run of it ended, and no record tells which run the spawn started."""
    async with announcer_harness(tmp_path / "store", QUIET) as harness:
        await harness.runs.session(MAIN)
        extra = [Custom(ENTRY, {"spawn": {"mode": "run", "cleanup": "keep", "requesterKey": MAIN}})]
        run = await harness.runs.supervisor.create(CHILD, request("x"), cwd="", spawned_by=MAIN, extra=extra)
        await run.done.wait()
        copied_store = harness.runs.copy_store(tmp_path / "copied_store")
    async with announcer_harness(copied_store, QUIET) as harness:
        await trio.testing.wait_all_tasks_blocked()
        assert harness.texts() == []


@pytest.mark.parametrize("removed", [False, True], ids=["original stays", "original removed"])
async def test_a_childs_end_in_a_copy_is_announced_only_if_there_is_no_original(
    tmp_path: Path, autojump_clock: Any, *, removed: bool
):
    host = FakeHost(tmp_path)
    agent = host.agents["main"]
    assert isinstance(agent, Agent)
    agent.act = agent.wait
    async with announcer_harness(tmp_path / "store", QUIET, host=host) as harness:
        run = await harness.spawn("task")
        await agent.wait_for_turn("task").wait()
        snapshot = harness.runs.copy_store(tmp_path / "snapshot")
        original = snapshot / harness.runs.session_path(CHILD)
    key = CHILD if removed else CHILD.replace("1111-1111", "2222-2222")
    original.with_name("copied.jsonl").write_text(original.read_text().replace(CHILD, key))
    original.with_name("copied.jsonl").chmod(0o600)
    if removed:
        original.unlink()
    for _start in range(2):
        async with announcer_harness(snapshot, QUIET) as harness:
            await trio.sleep(60)
            [text] = harness.texts()
            assert ("a copy of that of session" in text) == removed
            copy = harness.runs.store.catalog.by_key[key]
            assert copy.entry.runs == ()
            assert copy.entry.spawn is not None
            assert copy.entry.spawn.announced == ("posted" if removed else "copied")
    assert run.run_id in (snapshot / original.with_name("copied.jsonl")).read_text()
