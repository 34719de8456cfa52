"""Archiving of children: when their sessions and files go, and that a child with a run is left alone."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from support.rows import check_each
from support.supervised_runs import MAIN, RunHarness, clock, ignore_call, inline, request, run_harness

from sessiond.attachments.decode import Attachment
from sessiond.attachments.service import AttachmentService
from sessiond.config.settings import Config, parse
from sessiond.model.entry import Spawn
from sessiond.model.record import ENTRY
from sessiond.runs.run import Run
from sessiond.runs.spawn_journal import SpawnJournal
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.store.catalog import Session
from sessiond.store.store import Custom
from sessiond.subagents.archive import AGAIN_MS, ArchiveSweep

ID = "11111111-1111-4111-8111-111111111111"
CHILD = f"agent:main:subagent:{ID}"
MINUTE = 60.0
DAY = 24 * 60 * MINUTE


class ArchiveHarness:
    """An archive sweep on a run harness, and the children it handles."""

    def __init__(self, runs: RunHarness, folder: Path, config: str) -> None:
        self.runs, self.workspace = runs, folder / "workspace"
        self.workspace.mkdir(exist_ok=True)
        config_now: Config = parse(config) if config else Config()
        self.files = AttachmentService(run_sync=inline)
        # The keys of sessions with an open conversation.
        self.conversing: set[str] = set()
        self.sweep = ArchiveSweep(
            runs.store,
            runs.feed,
            SessionChanges(runs.store, ignore_call),
            runs.supervisor,
            self.files,
            journal=SpawnJournal(runs.store),
            config=lambda: config_now,
            clock=clock(),
            workspace=lambda _agent: self.workspace,
            has_open_conversation=lambda key: key in self.conversing,
        )

    async def child(self, task: str = "x", *, child_id: str = ID, spawner: str = MAIN, **spawn: Any) -> Run:
        """A running child with one attachment."""
        config = parse("").tools.sessions_spawn.attachments
        prepared = self.files.check([Attachment(name="a.txt", content="a")], config)
        await self.files.materialize(prepared, self.workspace, child_id)
        facts = {"mode": "run", "cleanup": "keep", "attachments": {"relDir": "anywhere"}, **spawn}
        extra = [Custom(ENTRY, {"spawn": facts})]
        key = f"agent:main:subagent:{child_id}"
        return await self.runs.supervisor.create(key, request(task), cwd="", spawned_by=spawner, extra=extra)

    def write_note(self, child: Session, **spawn: Any) -> Any:
        return self.runs.store.append(child, [Custom(ENTRY, {"spawn": spawn})])

    @property
    def folder(self) -> Path:
        return self.workspace / ".openclaw" / "attachments" / ID

    @property
    def live(self) -> bool:
        return CHILD in self.runs.store.catalog.by_key

    def state(self) -> tuple[bool, bool]:
        """Whether the child's session is live, and whether its files are there."""
        return self.live, self.folder.exists()


@asynccontextmanager
async def archive_harness(
    folder: Path, config: str = "", *, store: Path | None = None
) -> AsyncIterator[ArchiveHarness]:
    async with run_harness(store or folder / "store") as runs:
        harness = ArchiveHarness(runs, folder, config)
        runs.nursery.start_soon(harness.sweep.run)
        yield harness


RETAIN = "[tools.sessions_spawn.attachments]\nretainOnSessionKeep = true\n"


@check_each(
    ("asked", "config", "state"),
    [
        ({"cleanup": "delete", "mode": "run"}, "", (False, False)),
        ({"cleanup": "delete", "mode": "run"}, RETAIN, (False, False)),
        ({"cleanup": "keep", "mode": "run"}, "", (True, False)),
        ({"cleanup": "keep", "mode": "run"}, RETAIN, (True, True)),
        ({"cleanup": "keep", "mode": "session"}, "", (True, True)),
    ],
)
async def test_what_remains_of_an_announced_child_follows_from_cleanup_mode_and_config(
    tmp_path: Path, autojump_clock: object, asked: dict[str, str], config: str, state: tuple[bool, bool]
) -> None:
    async with archive_harness(tmp_path, config) as harness:
        run = await harness.child(**asked)
        await run.done.wait()
        assert harness.state() == (True, True)
        await harness.sweep.child_announced(run.session)
        assert harness.state() == state
        live, files = state
        archived = harness.runs.store.path / "agents/main/sessions/archive" / run.session.file_name
        assert archived.exists() is not live
        assert (run.session.entry.spawn or Spawn()).attachments_removed is not bool(files)


@pytest.mark.parametrize("minutes", [0.05, 2.0])
async def test_a_child_that_was_not_announced_is_archived_so_many_minutes_after_its_end(
    tmp_path: Path, autojump_clock: object, minutes: float
) -> None:
    config = f"[agents.defaults.subagents]\narchiveAfterMinutes = {minutes}\n"

    async def turn(spec: RunSpec, sink: RunSink) -> RunOutcome:
        await trio.sleep(500)  # longer than the limit, which counts from the end of the run
        return RunOutcome(reply="done")

    async with archive_harness(tmp_path, config) as harness:
        harness.runs.agent.act = turn
        run = await harness.child(cleanup="delete")
        await run.done.wait()
        assert harness.live
        harness.sweep.run_ended(run.session)
        await trio.sleep(minutes * MINUTE - 1)
        assert harness.state() == (True, True)
        await trio.sleep(1.1)
        assert harness.state() == (False, False)


async def test_zero_minutes_means_never(tmp_path: Path, autojump_clock: object) -> None:
    async with archive_harness(tmp_path, "[agents.defaults.subagents]\narchiveAfterMinutes = 0\n") as harness:
        run = await harness.child(cleanup="delete")
        await run.done.wait()
        harness.sweep.run_ended(run.session)
        await trio.sleep(DAY - 1)
        assert harness.live


async def test_children_with_cleanup_keep_are_never_archived(tmp_path: Path, autojump_clock: object) -> None:
    async with archive_harness(tmp_path) as harness:
        for number, (cleanup, mode) in enumerate([("keep", "run"), ("keep", "session")]):
            run = await harness.child(child_id=ID.replace("1", str(number + 3)), cleanup=cleanup, mode=mode)
            await run.done.wait()
            harness.sweep.run_ended(run.session)
        await trio.sleep(DAY - 1)
        assert len(harness.runs.store.catalog.by_key) == 2


async def test_a_child_with_a_new_run_is_archived_only_after_that_run(tmp_path: Path, autojump_clock: object) -> None:
    async with archive_harness(tmp_path) as harness:
        run = await harness.child(cleanup="delete")
        await run.done.wait()
        harness.runs.agent.act = harness.runs.agent.wait
        again = await harness.runs.accept("more", CHILD)
        await harness.sweep.child_announced(run.session)
        harness.sweep.run_ended(run.session)
        await trio.sleep(DAY - 1)
        assert harness.state() == (True, True)
        harness.runs.agent.gate.set()
        await again.done.wait()
        await harness.sweep.child_announced(run.session)
        assert harness.state() == (False, False)


async def test_a_run_accepted_while_its_child_is_being_archived_is_not_aborted(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with archive_harness(tmp_path) as harness:
        run = await harness.child(cleanup="delete", attachments=None)
        await run.done.wait()
        harness.runs.agent.act = harness.runs.agent.wait
        async with trio.open_nursery() as nursery:
            nursery.start_soon(harness.sweep.child_announced, run.session)
            nursery.start_soon(harness.runs.accept, "more", CHILD)
            await trio.testing.wait_all_tasks_blocked()
            [more] = harness.runs.supervisor.registry.of_session(CHILD)
            assert harness.live
            harness.runs.agent.gate.set()
            assert await harness.runs.wait_for_end(more) == ("ok", "re: more")


async def test_a_parent_is_archived_only_after_the_announcements_of_its_own_children(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with archive_harness(tmp_path) as harness:
        run = await harness.child(cleanup="delete")
        await run.done.wait()
        inner = await harness.child(child_id=ID.replace("1", "2"), spawner=CHILD)
        await inner.done.wait()
        await harness.sweep.child_announced(run.session)
        assert harness.state() == (True, True)
        await harness.write_note(inner.session, announced="posted")
        await harness.sweep.child_announced(run.session)
        assert harness.state() == (False, False)


async def test_a_failed_removal_of_files_is_repeated_and_follows_no_symlink(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with archive_harness(tmp_path) as harness:
        run = await harness.child()
        await run.done.wait()
        parent = harness.folder.parent
        parent.rename(tmp_path / "moved")
        parent.symlink_to(tmp_path / "moved")
        await harness.sweep.child_announced(run.session)
        assert (tmp_path / "moved" / ID / "a.txt").exists()
        assert not (run.session.entry.spawn or Spawn()).attachments_removed
        parent.unlink()
        (tmp_path / "moved").rename(parent)
        await trio.sleep(AGAIN_MS / 1000 + 1)
        assert harness.state() == (True, False)
        assert (run.session.entry.spawn or Spawn()).attachments_removed


async def test_archiving_continues_after_a_restart(tmp_path: Path, autojump_clock: object) -> None:
    async with archive_harness(tmp_path, "[agents.defaults.subagents]\narchiveAfterMinutes = 0\n") as harness:
        run = await harness.child(cleanup="delete")
        kept = await harness.child(child_id=ID.replace("1", "2"))
        unannounced = await harness.child(child_id=ID.replace("1", "3"), cleanup="delete")
        for one in (run, kept, unannounced):
            await one.done.wait()
        for one in (run, kept):
            await harness.write_note(one.session, ended=one.run_id, announced="posted")
        harness.runs.copy_store(tmp_path / "copy")
    async with archive_harness(tmp_path, store=tmp_path / "copy") as harness:
        await trio.testing.wait_all_tasks_blocked()
        root = harness.workspace / ".openclaw" / "attachments"
        assert [path.name for path in root.iterdir()] == [ID.replace("1", "3")]
        assert set(harness.runs.store.catalog.by_key) == {kept.key, unannounced.key}
        await trio.sleep(61 * MINUTE)
        assert set(harness.runs.store.catalog.by_key) == {kept.key}


async def test_the_files_of_a_deleted_child_are_removed_at_the_next_start(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with archive_harness(tmp_path, RETAIN) as harness:
        run = await harness.child()
        await run.done.wait()
        await harness.runs.store.archive(run.session)
        harness.runs.copy_store(tmp_path / "copy")
    async with archive_harness(tmp_path, RETAIN, store=tmp_path / "copy") as harness:
        await trio.testing.wait_all_tasks_blocked()
        assert harness.state() == (False, False)


async def test_archiving_a_child_that_is_archived_already_does_nothing(tmp_path: Path, autojump_clock: object) -> None:
    async with archive_harness(tmp_path) as harness:
        run = await harness.child(cleanup="delete")
        await run.done.wait()
        shutil.rmtree(harness.folder)
        await harness.runs.store.archive(run.session)
        await harness.sweep.child_announced(run.session)
        assert harness.state() == (False, False)


@pytest.mark.parametrize("noted", [False, True])
async def test_missing_files_are_reported_unless_a_journal_note_says_that_a_crash_interrupted_their_removal(
    tmp_path: Path, autojump_clock: object, noted: bool
) -> None:
    async with archive_harness(tmp_path) as harness:
        run = await harness.child(cleanup="keep")
        await run.done.wait()
        if noted:
            SpawnJournal(harness.runs.store).begin("main", ID)
        (harness.workspace / ".openclaw").rename(harness.workspace / "away")
        await harness.sweep.child_announced(run.session)
        spawn = run.session.entry.spawn
        assert spawn is not None
        assert (spawn.attachments_removed, spawn.attachments_missing) == (True, not noted)
        assert SpawnJournal(harness.runs.store).unfinished_notes() == []


async def test_a_journal_note_of_a_recorded_removal_is_removed_at_the_next_start(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with archive_harness(tmp_path) as harness:
        run = await harness.child(cleanup="keep")
        await run.done.wait()
        await harness.sweep.child_announced(run.session)
        assert harness.state() == (True, False)
        # As after a crash between the record and the removal of the note.
        journal = SpawnJournal(harness.runs.store)
        journal.begin("main", ID)
        await journal.undo(harness.files, lambda _agent: harness.workspace)
        assert journal.unfinished_notes() == []


@pytest.mark.parametrize("due", ["announced", "overdue"])
async def test_a_child_stays_while_it_has_an_open_conversation(
    tmp_path: Path, autojump_clock: object, due: str
) -> None:
    """It is archived after the conversation, whether it was announced or its time was up."""
    async with archive_harness(tmp_path, "[agents.defaults.subagents]\narchiveAfterMinutes = 1\n") as harness:
        harness.conversing.add(CHILD)
        run = await harness.child(cleanup="delete")
        await run.done.wait()
        harness.sweep.run_ended(run.session)
        if due == "announced":
            await harness.write_note(run.session, announced="posted")
            await harness.sweep.child_announced(run.session)
        else:
            await trio.sleep(5 * MINUTE)
        assert harness.live
        harness.conversing.clear()
        await harness.sweep.conversation_over(run.session)
        await trio.testing.wait_all_tasks_blocked()
        assert harness.state() == (False, False)


def warnings_of_missing_files(logs: list[Any]) -> list[Any]:
    return [one for one in logs if one["event"].startswith("attachments are gone")]


@pytest.mark.parametrize("begun", [False, True], ids=["removed by another program", "interrupted removal"])
async def test_missing_message_files_are_warned_about_unless_their_removal_was_interrupted(
    tmp_path: Path, autojump_clock: object, begun: bool
) -> None:
    async with archive_harness(tmp_path) as harness:
        session = await harness.runs.session()
        config = parse("").tools.sessions_spawn.attachments
        await harness.files.materialize(
            harness.files.check([Attachment(name="a.txt", content="a")], config), harness.workspace, ID
        )
        journal = SpawnJournal(harness.runs.store)
        journal.begin("main", ID, session.session_id)
        journal.keep(ID, session.session_id)
        await harness.runs.store.archive(session)
        if begun:
            assert not journal.begin_removal(ID, session.session_id)
        shutil.rmtree(harness.folder)  # as by a daemon that was killed then, or by another program
        with capture_logs() as logs:
            harness.sweep.put_away(session)
            await trio.testing.wait_all_tasks_blocked()
        assert journal.message_files() == []
        assert len(warnings_of_missing_files(logs)) == (0 if begun else 1)


async def test_an_interrupted_removal_for_an_archived_child_continues_without_a_warning(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with archive_harness(tmp_path) as harness:
        run = await harness.child(cleanup="keep")
        await run.done.wait()
        await harness.write_note(run.session, announced=True)
        await harness.runs.store.archive(run.session)
        SpawnJournal(harness.runs.store).begin("main", ID)
        shutil.rmtree(harness.folder)  # as by a daemon that was killed then
        harness.runs.copy_store(tmp_path / "copy")
    with capture_logs() as logs:
        async with archive_harness(tmp_path, store=tmp_path / "copy") as harness:
            await SpawnJournal(harness.runs.store).undo(harness.files, lambda _agent: harness.workspace)
            await harness.sweep.child_announced(harness.runs.store.catalog.by_id[run.session.session_id])
            spawn = harness.runs.store.catalog.by_id[run.session.session_id].entry.spawn or Spawn()
            assert (spawn.attachments_removed, spawn.attachments_missing) == (True, False)
    assert warnings_of_missing_files(logs) == []
