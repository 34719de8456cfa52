"""Store, bus and supervisor put together for tests of runs, with agents that do what the test says.

Time is Trio's: with an autojump clock nothing waits. `RunHarness.copy_store` gives the store as a crash would leave it.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio
from support.commit_tasks import with_commits
from support.store_listeners import ObservedListener

from sessiond.clock import Clock, Ids
from sessiond.events.bus import EventBus
from sessiond.events.feed import TranscriptFeed
from sessiond.model.keys import KeyRules, agent_of
from sessiond.model.message import user_message
from sessiond.questions.desk import OpenQuestion, QuestionDesk
from sessiond.runs.recovery import Resumable, recover
from sessiond.runs.run import Run, RunRequest
from sessiond.runs.supervisor import AfterRuns, RunSupervisor, Work
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec, Runtime
from sessiond.store.catalog import Session
from sessiond.store.store import Part, SessionStore, open_store

NOW = 1_795_300_000_000
MAIN = "agent:main:main"


def ignore_call(*_: object) -> None:
    """A callback that does nothing."""


async def do_nothing(*_: object) -> None:
    """The same, awaited."""


async def inline(function: Callable[..., Any], *args: Any) -> Any:
    """Run in this thread what a worker thread would run."""
    return function(*args)


def clock() -> Clock:
    """A clock whose wall time follows Trio's time."""
    return Clock(wall_ms=lambda: NOW + round(trio.current_time() * 1000), monotonic=trio.current_time)


class Agent:
    """A runtime that records every turn and answers it with `act`, which may wait for `gate`.

    `wait_for_turn(text)` is set once a turn with that message has begun.
    """

    def __init__(self) -> None:
        self.turns: list[RunSpec] = []
        self.gate = trio.Event()
        self.act: Callable[[RunSpec, RunSink], Awaitable[RunOutcome]] = self.answer
        self._begun: dict[str, trio.Event] = {}

    async def run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        self.turns.append(spec)
        self.wait_for_turn(spec.message).set()
        await trio.lowlevel.checkpoint()
        return await self.act(spec, sink)

    def wait_for_turn(self, text: str) -> trio.Event:
        return self._begun.setdefault(text, trio.Event())

    @staticmethod
    async def answer(spec: RunSpec, sink: RunSink) -> RunOutcome:
        return RunOutcome(reply=f"re: {spec.message}")

    async def wait(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        await self.gate.wait()
        return RunOutcome(reply=f"re: {spec.message}")


class FakeHost:
    """The supervisor's host. An agent that is not in `agents` is not attached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents: dict[str, Runtime] = {"main": Agent()}
        self.most = (4, 8)
        self.ttl_s = 300.0
        self.cost: float | None = None
        self.retired: list[str] = []
        self.unknown: set[str] = set()
        # Agents that do not understand announce steps.
        self.plain: set[str] = set()
        # Agents whose runs start nothing.
        self.light: set[str] = set()
        # Agents that stand for other machines.
        self.resumable: set[str] = set()

    def runtime(self, agent_id: str) -> Runtime | None:
        return self.agents.get(agent_id)

    def spec(self, run: Run) -> RunSpec:
        request = run.request
        return RunSpec(
            run_id=run.run_id,
            session_key=run.key,
            session_id=run.session.session_id,
            agent_id=agent_of(run.key),
            message=request.text,
            workspace=self.folder,
            socket=self.folder / "agent.sock",
            step=request.step,
            context=request.context,
            provenance=request.message.get("provenance"),
            turn=request.turn,
            max_turns=request.max_turns,
        )

    def knows_agent(self, agent_id: str) -> bool:
        return agent_id not in self.unknown

    def keeps_messages(self, _key: str) -> bool:
        return False

    def understands_steps(self, agent_id: str) -> bool:
        return agent_id not in self.plain

    def retire(self, run: Run) -> None:
        self.retired.append(run.run_id)

    def slot_limits(self) -> tuple[int, int]:
        return self.most

    def is_light(self, agent_id: str) -> bool:
        return agent_id in self.light

    def is_resumable(self, agent_id: str) -> bool:
        return agent_id in self.resumable

    def leave_open(self) -> None:
        pass

    def queue_ttl_s(self) -> float:
        return self.ttl_s

    def price(self, run: Run) -> float | None:
        return self.cost


class RunHarness:
    """A supervisor on one store."""

    desk: QuestionDesk

    def __init__(
        self,
        store: SessionStore,
        feed: TranscriptFeed,
        host: FakeHost,
        supervisor: RunSupervisor,
        nursery: trio.Nursery,
    ) -> None:
        self.store, self.feed, self.host, self.supervisor, self.nursery = store, feed, host, supervisor, nursery
        self.listener = ObservedListener(feed)
        # What goes on after runs; and what is resumed after a restart, set up before the recovery.
        self.follow_ups: list[AfterRuns] = []
        self.others: list[Resumable] = []
        self.desk: QuestionDesk
        self.before_end: Callable[[Run], Awaitable[None]] = do_nothing
        self.on_asked: Callable[[OpenQuestion], None] = ignore_call

    @property
    def agent(self) -> Agent:
        """The agent `main`."""
        agent = self.host.agents["main"]
        assert isinstance(agent, Agent)
        return agent

    async def session(self, key: str = MAIN) -> Session:
        """The session of a key, created if there is none."""
        found = self.store.catalog.by_key.get(key)
        if found is None:
            found, _ = await self.store.create(key, agent_of(key))
        return found

    async def accept(self, text: str, key: str = MAIN, **fields: Any) -> Run:
        """Accept a run with this message."""
        return await self.supervisor.accept(await self.session(key), request(text, **fields))

    async def wait_for_end(self, run: Run) -> tuple[str, str | None]:
        """How the run ended, and its reply or its error."""
        await run.done.wait()
        return run.status, run.error or run.reply

    def records(self, key: str = MAIN) -> list[dict[str, Any]]:
        """The lines of a transcript; torn ones are skipped, as by every reader."""
        path = self.store.path / self.store.catalog.by_key[key].path
        found: list[dict[str, Any]] = []
        for line in path.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):
                found.append(msgspec.json.decode(line))
        return found

    def messages(self, key: str = MAIN) -> list[str]:
        """The messages of a transcript, as `role: text`."""
        messages = [record["message"] for record in self.records(key) if record["type"] == "message"]
        return [f"{message['role']}: {_text(message['content'])}" for message in messages]

    def run_statuses(self, key: str = MAIN) -> list[tuple[str, str]]:
        """The run records of a transcript, as `(run id, status)`."""
        data = [record["data"] for record in self.records(key) if record.get("customType") == "sessiond/run"]
        return [(one["runId"], one["status"]) for one in data]

    def session_path(self, key: str = MAIN) -> str:
        """Where the session's transcript lies in a store."""
        return self.store.catalog.by_key[key].path

    def copy_store(self, to: Path) -> Path:
        """Copy the store as it is on disk now, for another daemon to open."""
        shutil.copytree(self.store.path, to, ignore=shutil.ignore_patterns("store.lock"))
        return to


@dataclass
class ScriptedFollowUp:
    """A follow-up of runs that does what the test says."""

    at_end: Callable[[Run], Sequence[Part]] = lambda _run: ()
    after_end: Callable[[Run], Work | None] = lambda _run: None


def request(text: str, **fields: Any) -> RunRequest:
    return RunRequest(text=text, message=user_message(text, NOW), **fields)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


@asynccontextmanager
async def run_harness(
    folder: Path,
    *,
    host: FakeHost | None = None,
    setup: Callable[[RunHarness], None] = lambda harness: None,
    recovering: bool = True,
    **options: Any,
) -> AsyncIterator[RunHarness]:
    """A harness on the store at `folder`, after recovery. `setup` is called before the recovery."""
    settings: dict[str, Any] = {
        "durable": False,
        "record_limit": 1024 * 1024,
        "rules": KeyRules(),
        "clock": clock(),
        "ids": Ids(),
        "run_sync": inline,
    }
    settings |= options
    async with open_store(folder, listener=lambda: harness.listener, **with_commits(settings)) as store:
        bus = EventBus()
        feed = TranscriptFeed(store, bus, on_lost=ignore_call, on_found=ignore_call)
        made = host or FakeHost(folder.parent)
        desk = QuestionDesk(
            store,
            settings["clock"],
            settings["ids"],
            on_asked=lambda asked: harness.on_asked(asked),  # noqa: PLW0108
        )
        supervisor = RunSupervisor(
            store,
            bus,
            made,
            settings["clock"],
            settings["ids"],
            follow_ups=lambda: harness.follow_ups,
            before_end=lambda run: harness.before_end(run),  # noqa: PLW0108 - made below
            desk=desk,
        )
        async with trio.open_nursery() as nursery:
            harness = RunHarness(store, feed, made, supervisor, nursery)
            harness.desk = desk
            setup(harness)
            await nursery.start(supervisor.run)
            if recovering:
                await recover(store, supervisor, harness.others)
            yield harness
            nursery.cancel_scope.cancel()
