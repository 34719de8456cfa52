"""A spawn creates a whole child or nothing, also with concurrent, cancelled and repeated calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.conversing_runs import Adapter
from support.supervised_runs import MAIN, RunHarness, clock, ignore_call, inline, run_harness

from sessiond.attachments.decode import Attachment
from sessiond.attachments.service import AttachmentService
from sessiond.clock import Ids
from sessiond.config.settings import Config, parse
from sessiond.delivery.channels import Channels
from sessiond.errors import Conflict, Forbidden, SessiondError, StorageError
from sessiond.policy.spawn import SpawnRequest
from sessiond.sessions.patch import check_label
from sessiond.store.catalog import Session
from sessiond.subagents.spawn import SpawnedChild, Spawner, SpawnOrder

FILE = Attachment(name="a.txt", content="a")
GROUP = "agent:main:telegram:group:-100"


class SpawnHarness:
    """A spawner on a run harness. Every write of attachments waits until `gate` is set."""

    def __init__(self, runs: RunHarness, folder: Path, config: str) -> None:
        self.runs, self.workspace = runs, folder / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self.config: Config = parse(config) if config else Config()
        self.gate = trio.Event()
        self.gate.set()
        self.channels = Channels(dict, environ={}, cwd=Path("/"), on_attach=ignore_call)
        self.spawner = Spawner(
            runs.store,
            runs.supervisor,
            AttachmentService(run_sync=self._run_after_gate),
            self.channels,
            lambda: self.config,
            clock=clock(),
            ids=Ids(),
            workspace=lambda _agent: self.workspace,
            sandboxed=lambda _key: False,
            check_native=self._check_native,
        )

    async def _check_native(self, key: str, native_id: str, folder: Path | None) -> str | None:
        raise AssertionError("no agent here has sessions of its own")

    async def _run_after_gate(self, function: Any, *args: Any) -> Any:
        await self.gate.wait()
        return await inline(function, *args)

    async def spawn(self, task: str = "x", *, requester: str = MAIN, **fields: Any) -> SpawnedChild:
        wanted = SpawnOrder(task=task, request=SpawnRequest(), asked={"task": task}, **fields)
        return await self.spawner.spawn(await self.runs.session(requester), wanted, sandboxed=False)

    def children(self, requester: str = MAIN) -> list[Session]:
        catalog = self.runs.store.catalog
        return [catalog.by_key[key] for key in catalog.children_of(requester)]

    def files(self) -> list[str]:
        """The folders of attachments, and the notes of unfinished spawns."""
        attachments = self.workspace / ".openclaw" / "attachments"
        spawning = self.runs.store.path / "spawning"
        folders = (attachments, spawning)
        return sorted(path.name for folder in folders if folder.exists() for path in folder.iterdir())


@asynccontextmanager
async def spawn_harness(folder: Path, config: str = "", *, store: Path | None = None) -> AsyncIterator[SpawnHarness]:
    async with run_harness(store or folder / "store") as runs:
        harness = SpawnHarness(runs, folder, config)
        runs.agent.act = runs.agent.wait
        await harness.spawner.recover()
        yield harness


async def test_concurrent_spawns_keep_to_the_limit_of_children(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as harness:
        harness.gate = trio.Event()
        refused: list[SessiondError] = []

        async def one() -> None:
            try:
                await harness.spawn(attachments=[FILE])
            except Forbidden as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            harness.gate.set()
        assert len(harness.children()) == 5
        assert [error.code for error in refused] == ["spawn_children_exceeded"] * 3


async def test_concurrent_calls_with_one_idempotency_key_create_one_child(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with spawn_harness(tmp_path) as harness:
        harness.gate = trio.Event()
        answers: list[SpawnedChild] = []

        async def one() -> None:
            answers.append(await harness.spawn(attachments=[FILE], idempotency_key="k", label="l"))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            harness.gate.set()
        [child] = harness.children()
        assert answers == [answers[0]] * 3
        assert (answers[0].child_key, child.entry.label) == (child.key, "l")


async def test_an_idempotency_key_with_another_payload_is_a_conflict(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as harness:
        first = await harness.spawn("one", idempotency_key="k")
        with pytest.raises(Conflict) as refused:
            await harness.spawn("two", idempotency_key="k")
        assert refused.value.data["runId"] == first.run_id
        # A key counts for one requester only.
        other = await harness.spawn("two", idempotency_key="k", requester="agent:main:other")
        assert other.run_id != first.run_id


async def test_the_idempotency_key_of_an_archived_child_still_returns_it(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with spawn_harness(tmp_path) as harness:
        first = await harness.spawn(idempotency_key="k", attachments=[FILE])
        harness.runs.agent.gate.set()
        [child] = harness.children()
        await harness.runs.supervisor.registry.live[first.run_id].done.wait()
        await harness.runs.store.archive(child)
        assert await harness.spawn(idempotency_key="k", attachments=[FILE]) == first
        assert harness.children() == []


async def test_a_cancelled_call_still_creates_a_whole_child(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as harness:
        harness.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: harness.spawn(attachments=[FILE]))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            harness.gate.set()
        [child] = harness.children()
        assert child.entry.status == "running"
        assert harness.files() == [child.key.rpartition(":")[2]]


async def test_a_child_that_the_store_refuses_leaves_no_files(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as harness:

        async def refuse(*_: Any, **__: Any) -> Any:
            await trio.lowlevel.checkpoint()
            raise StorageError("no space left on device")

        await harness.runs.session()
        harness.runs.store.create = refuse  # type: ignore[method-assign]
        with pytest.raises(StorageError):
            await harness.spawn(attachments=[FILE])
        assert (harness.children(), harness.files()) == ([], [])


async def test_files_of_a_spawn_that_a_crash_interrupted_are_removed_at_the_next_start(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with spawn_harness(tmp_path) as harness:
        whole = await harness.spawn(attachments=[FILE])
        half = "22222222-2222-4222-8222-222222222222"
        whole_id = whole.child_key.rpartition(":")[2]
        (harness.workspace / ".openclaw" / "attachments" / half).mkdir()
        (harness.runs.store.path / "spawning" / half).write_text("main\n")
        (harness.runs.store.path / "spawning" / whole_id).write_text("main\n")
        harness.runs.copy_store(tmp_path / "copy")
    async with spawn_harness(tmp_path, store=tmp_path / "copy") as harness:
        assert harness.files() == [whole_id]


async def test_a_label_in_use_is_refused_and_creates_no_child(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as harness:
        await harness.spawn(label=" helper ")
        with pytest.raises(Conflict) as refused:
            await harness.spawn(label="helper", attachments=[FILE])
        assert (refused.value.code, len(harness.children()), harness.files()) == ("label_in_use", 1, [])


async def test_a_child_with_a_thread_gets_it_from_the_channel_before_it_is_created(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with spawn_harness(tmp_path) as harness:
        adapter = Adapter(threads=True)

        async def bind(_params: Any) -> Any:
            await trio.lowlevel.checkpoint()
            return {"threadId": "t-1"}

        adapter.act = bind
        harness.channels.attach("telegram", adapter)
        wanted = SpawnOrder(task="x", request=SpawnRequest(thread=True), asked={}, label="helper")
        spawned = await harness.spawner.spawn(await harness.runs.session(GROUP), wanted, sandboxed=False)
        child = harness.runs.store.catalog.by_key[spawned.child_key]
        told = {"sessionKey": child.key, "label": "helper", "to": "-100"}
        assert (spawned.mode, adapter.asked) == ("session", [("channel.bindThread", told)])
        assert child.entry.delivery_context == {"channel": "telegram", "to": "-100", "threadId": "t-1"}


async def test_of_two_concurrent_spawns_with_one_label_the_second_is_refused(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with spawn_harness(tmp_path) as harness:
        harness.gate = trio.Event()
        refused: list[str | None] = []

        async def one() -> None:
            try:
                await harness.spawn(attachments=[FILE], label=" helper ")
            except Conflict as error:
                refused.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            # Meanwhile nobody else can take the label.
            with pytest.raises(Conflict):
                check_label(harness.runs.store.catalog, MAIN, "helper", lambda _key: True)
            harness.gate.set()
        assert refused == ["label_in_use"]
        assert [child.entry.label for child in harness.children()] == ["helper"]
        assert harness.runs.store.catalog.claims == {}


@pytest.mark.parametrize("files", [[FILE], []], ids=["with files", "without"])
async def test_a_kill_cancels_a_child_that_is_being_created(tmp_path: Path, autojump_clock: object, files: Any) -> None:
    """The kill comes while its files are written, or while the channel is asked for a thread."""
    async with spawn_harness(tmp_path) as harness:
        harness.gate = trio.Event()

        adapter = Adapter(threads=True)

        async def bind(_params: Any) -> Any:
            await harness.gate.wait()
            return {"threadId": "t-1"}

        adapter.act = bind
        harness.channels.attach("telegram", adapter)
        errors: list[Conflict] = []

        async def one() -> None:
            wanted = SpawnOrder(task="x", request=SpawnRequest(thread=not files), asked={}, attachments=files)
            with pytest.raises(Conflict) as caught:
                await harness.spawner.spawn(await harness.runs.session(GROUP), wanted, sandboxed=False)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(harness.spawner.pending_children.cancel, GROUP)
            await trio.testing.wait_all_tasks_blocked()
            harness.gate.set()
        assert "was killed meanwhile; nothing was spawned" in errors[0].message
        assert (harness.children(GROUP), harness.files()) == ([], [])
        # Later spawns are not affected.
        await harness.spawn()
        assert len(harness.children()) == 1


async def test_a_kill_waits_for_a_child_whose_transcript_is_being_written(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with spawn_harness(tmp_path) as harness:
        requester = await harness.runs.session()
        gate, held = trio.Event(), trio.Event()
        create = harness.runs.store.create

        async def slow(*args: Any, **params: Any) -> Any:
            held.set()
            await gate.wait()
            return await create(*args, **params)

        harness.runs.store.create = slow  # type: ignore[method-assign]
        wanted = SpawnOrder(task="x", request=SpawnRequest(), asked={})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(harness.spawner.spawn, requester, wanted, sandboxed=False))
            await held.wait()
            nursery.start_soon(harness.spawner.pending_children.cancel, MAIN)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        [child] = harness.children()
        assert len(await harness.runs.supervisor.stop(child)) == 1
