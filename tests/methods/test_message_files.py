"""Files sent with messages: noted in the spawn journal before they are written, claimed by a record, removed with
the session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import InProcessDaemon, Refused, in_process_daemon
from support.in_process_agents import until
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.model.caller import OWNER, Caller

FILE = {"name": "a.txt", "content": "text"}
OTHER = "agent:main:telegram:group:-100"
HALF = "22222222-2222-4222-8222-222222222222"


def attachment_folders(tmp_path: Path) -> list[str]:
    root = tmp_path / "store" / "agents" / "main" / "workspace" / ".openclaw" / "attachments"
    return sorted(path.name for path in root.iterdir()) if root.exists() else []


def journal_notes(tmp_path: Path) -> list[str]:
    root = tmp_path / "store" / "spawning"
    return sorted(path.name for path in root.iterdir()) if root.exists() else []


async def send_file(there: InProcessDaemon, owner: Any, key: str = "agent:main:main") -> str:
    sent = await owner.call("chat.send", sessionKey=key, message="take this", attachments=[FILE])
    await owner.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)
    session: str = there.services.store.catalog.by_key[key].session_id
    return session


@pytest.mark.parametrize("method", ["sessions.delete", "sessions.reset"])
async def test_files_of_messages_are_removed_with_their_session(tmp_path: Path, method: str) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        await owner.call("sessions.create", key=OTHER)
        session_id = await send_file(there, owner, OTHER)
        other = await send_file(there, owner)
        assert len(attachment_folders(tmp_path)) == 2
        assert {note.partition(".")[2] for note in journal_notes(tmp_path)} == {session_id, other}
        await owner.call(method, key=OTHER)
        await until(lambda: len(attachment_folders(tmp_path)) == 1)
        await until(lambda: [note.partition(".")[2] for note in journal_notes(tmp_path)] == [other])


async def test_after_a_crash_files_of_an_archived_session_are_removed_at_the_next_start(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        await owner.call("sessions.create", key=OTHER)
        session_id = await send_file(there, owner, OTHER)
        there.services.session_changes.on_put_away = lambda _session: None  # as if the daemon died right here
        await owner.call("sessions.delete", key=OTHER)
    assert [note.partition(".")[2] for note in journal_notes(tmp_path)] == [session_id]
    async with in_process_daemon(tmp_path):
        await until(lambda: not attachment_folders(tmp_path))
        await until(lambda: not journal_notes(tmp_path))


@check_each("stage", ["noted", "writing", "written", "accepted"])
async def test_files_left_by_a_crash_are_removed_unless_a_record_claims_them(tmp_path: Path, stage: str) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        session_id = await send_file(there, owner)
    (claimed,) = attachment_folders(tmp_path)
    attachments = tmp_path / "store" / "agents" / "main" / "workspace" / ".openclaw" / "attachments"
    note = tmp_path / "store" / "spawning" / (claimed if stage == "accepted" else HALF)
    if stage == "accepted":
        # The record is written; the note was not yet updated, or a power cut restored its first version.
        (tmp_path / "store" / "spawning" / f"{claimed}.{session_id}").unlink()
    elif stage != "noted":
        (attachments / HALF).mkdir()
        (attachments / HALF / "a.txt").write_text("te")
        if stage == "written":
            (attachments / HALF / "manifest.json").write_text(json.dumps({"count": 1}))
    note.write_text(f"main {session_id}\n")
    async with in_process_daemon(tmp_path):
        assert attachment_folders(tmp_path) == [claimed]
        assert journal_notes(tmp_path) == [f"{claimed}.{session_id}"]


async def test_a_torn_journal_note_is_removed(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        session_id = await send_file(there, owner)
    (claimed,) = attachment_folders(tmp_path)
    (tmp_path / "store" / "spawning" / HALF).write_text(f"main {session_id[:16]}")
    async with in_process_daemon(tmp_path):
        assert journal_notes(tmp_path) == [f"{claimed}.{session_id}"]


async def test_a_note_of_a_session_that_cannot_be_read_stays_with_its_files(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        await send_file(there, owner)
    note = tmp_path / "store" / "spawning" / HALF
    note.write_text("main 99999999-9999-4999-8999-999999999999\n")
    attachments = tmp_path / "store" / "agents" / "main" / "workspace" / ".openclaw" / "attachments"
    (attachments / HALF).mkdir()
    async with in_process_daemon(tmp_path):
        assert HALF in attachment_folders(tmp_path)
        assert HALF in journal_notes(tmp_path)


async def test_a_message_sent_twice_at_once_leaves_one_set_of_files(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as one, there.connect() as other:
        await one.call("sessions.create", key="main")
        runs: set[str] = set()

        async def ask(connection: Any) -> None:
            sent = await connection.call(
                "chat.send", sessionKey="main", message="take this", attachments=[FILE], idempotencyKey="k"
            )
            runs.add(sent["runId"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, one)
            nursery.start_soon(ask, other)
        (run_id,) = runs
        await one.call("agent.wait", runId=run_id, timeoutMs=PATIENCE_S * 1000)
        assert len(attachment_folders(tmp_path)) == 1
        assert [note.partition(".")[0] for note in journal_notes(tmp_path)] == attachment_folders(tmp_path)


async def test_a_refused_message_leaves_neither_files_nor_note(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        await owner.call("sessions.create", key="main")
        (tmp_path / "store" / "agents" / "main" / "workspace").mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / "agents" / "main" / "workspace" / ".openclaw").symlink_to("/")
        failed = await owner.failure("chat.send", sessionKey="main", message="x", attachments=[FILE])
        assert failed["data"]["code"] == "attachments_symlink"
        assert journal_notes(tmp_path) == []


async def test_doctor_names_files_that_no_session_claims(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        await send_file(there, owner)
        spawned = await owner.call("sessions_spawn", task="x", attachments=[FILE], cleanup="keep")
        await owner.call("agent.wait", runId=spawned["runId"], timeoutMs=PATIENCE_S * 1000)
        findings = (await owner.call("daemon.doctor"))["findings"]
        assert [one for one in findings if one["thing"] == "attachments"] == []
        attachments = tmp_path / "store" / "agents" / "main" / "workspace" / ".openclaw" / "attachments"
        (attachments / HALF).mkdir()
        (attachments / "of another program").mkdir()
        findings = (await owner.call("daemon.doctor"))["findings"]
        (found,) = [one for one in findings if one["thing"] == "attachments"]
        assert (found["level"], found["what"]) == (
            "warn",
            f"1 folder of attachments of no session in the workspace of agent main: {HALF}",
        )
        assert (attachments / HALF).exists()


TOKEN = Caller(
    kind="token", scopes=frozenset(["send", "spawn", "read"]), session_key="agent:main:main", agent_id="main"
)


@check_each("caller", [OWNER, TOKEN], ids=["owner", "token"])
@check_each("method", ["chat.send", "sessions_spawn"])
async def test_no_caller_can_have_the_daemon_read_a_file(tmp_path: Path, caller: Caller, method: str) -> None:
    """A path must be read by the client with its own rights: the daemon's rights are not the caller's."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the heron is grey")
    said = {"task": "x"} if method == "sessions_spawn" else {"sessionKey": "main", "message": "x"}
    async with in_process_daemon(tmp_path) as there, there.connect() as owner, there.connect(caller) as asking:
        await owner.call("sessions.create", key="main")
        for attachment in (
            {"path": str(secret)},
            {"name": "a.txt", "path": str(secret)},
            {"name": "a.txt", "content": "", "path": str(secret)},
            {"name": "a.txt", "content": str(secret), "encoding": "path"},
        ):
            with pytest.raises(Refused) as refused:
                await asking.call(method, **said, attachments=[attachment])
            assert refused.value.args[0]["code"] == -32602, refused.value
    assert attachment_folders(tmp_path) == []
