"""Files sent with a message are stored even if the sender disconnects meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio
from support.supervised_runs import inline, request, run_harness

from sessiond.attachments.decode import Attachment
from sessiond.attachments.service import AttachmentService
from sessiond.config.settings import parse
from sessiond.runs.message_files import accept_with_files
from sessiond.runs.recovery import recover
from sessiond.runs.spawn_journal import SpawnJournal


async def slow(function: Callable[..., Any], *args: Any) -> Any:
    """Do the file work at once but return a second later, so that a cancellation comes in between."""
    result = function(*args)
    await trio.sleep(1)
    return result


async def test_a_sender_who_disconnects_while_the_files_are_written_loses_neither_files_nor_message(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with run_harness(tmp_path / "store") as harness:
        session, attachments = await harness.session(), AttachmentService(run_sync=slow)
        prepared = attachments.check(
            [Attachment(name="a.txt", content="text")], parse("").tools.sessions_spawn.attachments
        )
        (tmp_path / "work").mkdir()
        # After 1.5 s the note is written, and the files are being written.
        with trio.move_on_after(1.5):
            await accept_with_files(
                harness.supervisor,
                attachments,
                SpawnJournal(harness.store),
                session=session,
                request=request("read it"),
                prepared=prepared,
                workspace=tmp_path / "work",
                on_queued=lambda: None,
            )
        with trio.fail_after(5):
            await harness.agent.wait_for_turn("read it").wait()
        [folder] = (tmp_path / "work" / ".openclaw" / "attachments").iterdir()
        assert (folder / "a.txt").read_text() == "text"
        [note] = (harness.store.path / "spawning").iterdir()
        assert note.name == f"{folder.name}.{session.session_id}"


async def test_files_of_a_message_whose_acceptance_a_crash_cut_off_are_removed(
    tmp_path: Path, autojump_clock: object
) -> None:
    work, attachments = tmp_path / "work", AttachmentService(run_sync=inline)
    work.mkdir()
    async with run_harness(tmp_path / "store") as harness:
        harness.agent.act = harness.agent.wait
        await accept_with_files(
            harness.supervisor,
            attachments,
            SpawnJournal(harness.store),
            session=await harness.session(),
            request=request("read it"),
            prepared=attachments.check(
                [Attachment(name="a.txt", content="text")], parse("").tools.sessions_spawn.attachments
            ),
            workspace=work,
            on_queued=lambda: None,
        )
        snapshot = harness.copy_store(tmp_path / "snapshot")
        path = snapshot / harness.session_path()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    [note] = (snapshot / "spawning").iterdir()
    note.rename(note.with_name(note.name.partition(".")[0]))
    assert list((work / ".openclaw" / "attachments").iterdir())
    async with run_harness(snapshot, recovering=False) as harness:
        journal = SpawnJournal(harness.store)
        undo = partial(journal.undo, attachments, lambda _agent_id: work)
        await recover(harness.store, harness.supervisor, remove_files=undo)
    assert list((work / ".openclaw" / "attachments").iterdir()) == []
    assert list((snapshot / "spawning").iterdir()) == []
