"""Spawns from within: all of a child or nothing, in whatever order callers come, leave and ask again."""

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
    """A spawner on a run harness. `gate` holds up every write of attachments until it is set."""

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
            AttachmentService(run_sync=self._later),
            self.channels,
            lambda: self.config,
            clock=clock(),
            ids=Ids(),
            workspace=lambda _agent: self.workspace,
            sandboxed=lambda _key: False,
        )

    async def _later(self, function: Any, *args: Any) -> Any:
        await self.gate.wait()
        return await inline(function, *args)

    async def spawn(self, task: str = "x", *, requester: str = MAIN, **fields: Any) -> SpawnedChild:
        wanted = SpawnOrder(task=task, request=SpawnRequest(), asked={"task": task}, **fields)
        return await self.spawner.spawn(await self.runs.session(requester), wanted, sandboxed=False)

    def children(self, requester: str = MAIN) -> list[Session]:
        catalog = self.runs.store.catalog
        return [catalog.by_key[key] for key in catalog.children_of(requester)]

    def files(self) -> list[str]:
        """The folders of attachments, and the notes of spawns under way."""
        attachments = self.workspace / ".openclaw" / "attachments"
        spawning = self.runs.store.path / "spawning"
        folders = (attachments, spawning)
        return sorted(path.name for folder in folders if folder.exists() for path in folder.iterdir())


@asynccontextmanager
async def spawn_harness(folder: Path, config: str = "", *, store: Path | None = None) -> AsyncIterator[SpawnHarness]:
    async with run_harness(store or folder / "store") as runs:
        made = SpawnHarness(runs, folder, config)
        runs.agent.act = runs.agent.wait
        await made.spawner.recover()
        yield made


async def test_spawns_beside_each_other_do_not_all_find_the_last_place(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as made:
        made.gate = trio.Event()
        refused: list[SessiondError] = []

        async def one() -> None:
            try:
                await made.spawn(attachments=[FILE])
            except Forbidden as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            made.gate.set()
        assert len(made.children()) == 5
        assert [error.code for error in refused] == ["spawn_children_exceeded"] * 3


async def test_the_same_request_twice_at_once_makes_one_child(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as made:
        made.gate = trio.Event()
        answers: list[SpawnedChild] = []

        async def one() -> None:
            answers.append(await made.spawn(attachments=[FILE], idempotency_key="k", label="l"))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            made.gate.set()
        [child] = made.children()
        assert answers == [answers[0]] * 3
        assert (answers[0].child_key, child.entry.label) == (child.key, "l")


async def test_the_same_key_with_another_payload_is_a_conflict(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as made:
        first = await made.spawn("one", idempotency_key="k")
        with pytest.raises(Conflict) as refused:
            await made.spawn("two", idempotency_key="k")
        assert refused.value.data["runId"] == first.run_id
        # Keys belong to a requester.
        other = await made.spawn("two", idempotency_key="k", requester="agent:main:other")
        assert other.run_id != first.run_id


async def test_an_archived_child_still_answers_for_its_key(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as made:
        first = await made.spawn(idempotency_key="k", attachments=[FILE])
        made.runs.agent.gate.set()
        [child] = made.children()
        await made.runs.supervisor.registry.live[first.run_id].done.wait()
        await made.runs.store.archive(child)
        assert await made.spawn(idempotency_key="k", attachments=[FILE]) == first
        assert made.children() == []


async def test_a_caller_who_leaves_in_the_middle_leaves_a_whole_child(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as made:
        made.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: made.spawn(attachments=[FILE]))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            made.gate.set()
        [child] = made.children()
        assert child.entry.status == "running"
        assert made.files() == [child.key.rpartition(":")[2]]


async def test_a_store_that_refuses_the_child_keeps_nothing_of_it(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as made:

        async def refuse(*_: Any, **__: Any) -> Any:
            await trio.lowlevel.checkpoint()
            raise StorageError("no space left on device")

        await made.runs.session()
        made.runs.store.create = refuse  # type: ignore[method-assign]
        with pytest.raises(StorageError):
            await made.spawn(attachments=[FILE])
        assert (made.children(), made.files()) == ([], [])


async def test_what_a_crash_cut_off_is_removed_at_the_next_start(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as made:
        whole = await made.spawn(attachments=[FILE])
        half = "22222222-2222-4222-8222-222222222222"
        whole_id = whole.child_key.rpartition(":")[2]
        (made.workspace / ".openclaw" / "attachments" / half).mkdir()
        (made.runs.store.path / "spawning" / half).write_text("main\n")
        (made.runs.store.path / "spawning" / whole_id).write_text("main\n")
        made.runs.copy_store(tmp_path / "copy")
    async with spawn_harness(tmp_path, store=tmp_path / "copy") as made:
        assert made.files() == [whole_id]


async def test_a_label_in_use_makes_no_child(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as made:
        await made.spawn(label=" helper ")
        with pytest.raises(Conflict) as refused:
            await made.spawn(label="helper", attachments=[FILE])
        assert (refused.value.code, len(made.children()), made.files()) == ("label_in_use", 1, [])


async def test_a_thread_is_asked_for_before_anything_is_written(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as made:
        adapter = Adapter(threads=True)

        async def bind(_params: Any) -> Any:
            await trio.lowlevel.checkpoint()
            return {"threadId": "t-1"}

        adapter.act = bind
        made.channels.attach("telegram", adapter)
        wanted = SpawnOrder(task="x", request=SpawnRequest(thread=True), asked={}, label="helper")
        spawned = await made.spawner.spawn(await made.runs.session(GROUP), wanted, sandboxed=False)
        child = made.runs.store.catalog.by_key[spawned.child_key]
        told = {"sessionKey": child.key, "label": "helper", "to": "-100"}
        assert (spawned.mode, adapter.asked) == ("session", [("channel.bindThread", told)])
        assert child.entry.delivery_context == {"channel": "telegram", "to": "-100", "threadId": "t-1"}


async def test_of_two_spawns_at_once_one_has_the_label(tmp_path: Path, autojump_clock: object) -> None:
    async with spawn_harness(tmp_path) as made:
        made.gate = trio.Event()
        refused: list[str | None] = []

        async def one() -> None:
            try:
                await made.spawn(attachments=[FILE], label=" helper ")
            except Conflict as error:
                refused.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            # Nor can anybody else take it meanwhile.
            with pytest.raises(Conflict):
                check_label(made.runs.store.catalog, MAIN, "helper", lambda _key: True)
            made.gate.set()
        assert refused == ["label_in_use"]
        assert [child.entry.label for child in made.children()] == ["helper"]
        assert made.runs.store.catalog.claims == {}


@pytest.mark.parametrize("files", [[FILE], []], ids=["with files", "without"])
async def test_a_kill_reaches_a_child_that_is_being_made(tmp_path: Path, autojump_clock: object, files: Any) -> None:
    """Held up while its files are written, or while a thread is asked for."""
    async with spawn_harness(tmp_path) as made:
        made.gate = trio.Event()

        adapter = Adapter(threads=True)

        async def bind(_params: Any) -> Any:
            await made.gate.wait()
            return {"threadId": "t-1"}

        adapter.act = bind
        made.channels.attach("telegram", adapter)
        errors: list[Conflict] = []

        async def one() -> None:
            wanted = SpawnOrder(task="x", request=SpawnRequest(thread=not files), asked={}, attachments=files)
            with pytest.raises(Conflict) as caught:
                await made.spawner.spawn(await made.runs.session(GROUP), wanted, sandboxed=False)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(made.spawner.pending_children.cancel, GROUP)
            await trio.testing.wait_all_tasks_blocked()
            made.gate.set()
        assert "was killed meanwhile; nothing was spawned" in errors[0].message
        assert (made.children(GROUP), made.files()) == ([], [])
        # What is asked for afterwards is another matter.
        await made.spawn()
        assert len(made.children()) == 1


async def test_a_child_whose_transcript_is_being_written_is_there_when_the_kill_looks(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with spawn_harness(tmp_path) as made:
        requester = await made.runs.session()
        gate, held = trio.Event(), trio.Event()
        create = made.runs.store.create

        async def slow(*args: Any, **params: Any) -> Any:
            held.set()
            await gate.wait()
            return await create(*args, **params)

        made.runs.store.create = slow  # type: ignore[method-assign]
        wanted = SpawnOrder(task="x", request=SpawnRequest(), asked={})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(made.spawner.spawn, requester, wanted, sandboxed=False))
            await held.wait()
            nursery.start_soon(made.spawner.pending_children.cancel, MAIN)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        [child] = made.children()
        assert len(await made.runs.supervisor.stop(child)) == 1
