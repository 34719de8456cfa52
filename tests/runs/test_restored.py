"""Transcripts that are renamed, put back, copied or replaced by an older copy while their sessions have runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config, until

from sessiond.runs.run import INTERRUPTED

KEY = "agent:bob:main"
POLLING_CONFIG = '[watch]\nbackend = "polling"\n'


async def answer_after_gate(program: Program, params: dict[str, Any]) -> Any:
    await program.gate.wait()
    return {"reply": f"re: {params['message']}"}


def folder(there: InProcessDaemon) -> Path:
    path: Path = there.services.store.path / "agents" / "bob" / "sessions"
    return path


async def row(owner: Connection) -> dict[str, Any]:
    found: dict[str, Any]
    [found] = (await owner.call("sessions_list"))["sessions"]
    return found


@pytest.mark.parametrize("config", ["", POLLING_CONFIG], ids=["inotify", "polling"])
async def test_a_transcript_that_is_renamed_and_renamed_back_loses_no_run(tmp_path: Path, config: str):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob", more=config)) as there,
        agent(there, "bob", answer_after_gate) as bob,
    ):
        # Longer than a busy machine takes to find the file under its other name.
        there.services.store.presence.patience_s = 1.0
        catalog = there.services.store.catalog
        async with there.connect() as owner:
            session_id = (await owner.call("sessions.create", key=KEY))["sessionId"]
            sent = [(await owner.call("chat.send", sessionKey=KEY, message=text))["runId"] for text in "abc"]
            await until(lambda: bob.turns)
            (folder(there) / f"{session_id}.jsonl").rename(folder(there) / "other.jsonl")
            await until(lambda: "other" in catalog.by_id and session_id not in catalog.by_id)
            await _outwait_presence(there)
            assert (await row(owner))["queuedRuns"] == 2
            # A message sent meanwhile is written to the file that has the key now.
            await owner.call("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "in between"}])
            (folder(there) / "other.jsonl").rename(folder(there) / f"{session_id}.jsonl")
            await until(lambda: session_id in catalog.by_id and "other" not in catalog.by_id)
            await _outwait_presence(there)
            bob.gate.set()
            ends = [await owner.call("agent.wait", runId=run_id, timeoutMs=60_000) for run_id in sent]
            assert [(end["status"], end["reply"]) for end in ends] == [("ok", f"re: {text}") for text in "abc"]
            after = await row(owner)
            assert (after["sessionId"], after["status"], after.get("queuedRuns")) == (session_id, "ok", None)
            page = await owner.call("sessions_history", sessionKey=KEY)
    texts = [text if isinstance(text := one["content"], str) else text[0]["text"] for one in page["messages"]]
    assert texts == ["a", "in between", "re: a", "b", "re: b", "c", "re: c"]


async def _outwait_presence(there: InProcessDaemon) -> None:
    """Wait longer than a transcript may be missing."""
    await trio.sleep(1.2 * there.services.store.presence.patience_s)


async def test_a_run_that_ended_after_a_copy_was_made_also_ends_in_the_restored_copy(tmp_path: Path):
    """In the restored copy, the runs still wait or go on; they end there with the same status and do not run again."""
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob")) as there,
        agent(there, "bob", answer_after_gate) as bob,
    ):
        there.services.store.presence.patience_s = 0.05
        async with there.connect() as owner:
            session_id = (await owner.call("sessions.create", key=KEY))["sessionId"]
            path = folder(there) / f"{session_id}.jsonl"
            live = (await owner.call("chat.send", sessionKey=KEY, message="a"))["runId"]
            queued = (await owner.call("chat.send", sessionKey=KEY, message="b"))["runId"]
            await until(lambda: bob.turns)
            shutil.copy(path, tmp_path / "backup")
            await owner.call("chat.abort", sessionKey=KEY)
            bob.gate.set()
            (tmp_path / "backup").rename(path)
            await until(lambda: read_run_ends(path).keys() == {live, queued})
            assert read_run_ends(path) == {live: "aborted", queued: "aborted"}
            await until(lambda: not there.services.store.catalog.by_key[KEY].entry.runs)
            after = await row(owner)
            assert (after["status"], after.get("queuedRuns")) == ("aborted", None)
            # The session works as before.
            assert await owner.say(KEY, "c") == "re: c"
            assert [turn["message"] for turn in bob.turns] == ["a", "c"]


@pytest.mark.parametrize("appears", [True, False], ids=["appears", "replaced"])
async def test_open_runs_in_a_transcript_from_elsewhere_end_as_interrupted(tmp_path: Path, appears: bool):
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        there.services.store.presence.patience_s = 0.05
        session_id = (await owner.call("sessions.create", key=KEY))["sessionId"]
        path = folder(there) / f"{session_id}.jsonl"
        await owner.call("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "said"}])
        foreign = f"{session_id}.0123456789abcdef"
        accepted = {"runId": foreign, "status": "accepted", "at": 5, "request": {"text": "x", "message": {}}}
        record = {"type": "custom", "customType": "sessiond/run", "id": "r", "data": accepted}
        (tmp_path / "copy").write_text(path.read_text() + json.dumps(record) + "\n")
        if appears:
            path.unlink()
            await until(lambda: KEY not in there.services.store.catalog.by_key)
        (tmp_path / "copy").rename(path)
        await until(lambda: foreign in read_run_ends(path))
        assert read_run_ends(path) == {foreign: "error"}
        assert f'"error":"{INTERRUPTED}"' in path.read_text()
        await until(lambda: not there.services.store.catalog.by_key[KEY].entry.runs)
        assert "queuedRuns" not in await row(owner)


async def test_a_run_that_goes_on_in_the_original_ends_at_once_in_a_copy_under_another_key(tmp_path: Path):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob")) as there,
        agent(there, "bob", answer_after_gate) as bob,
    ):
        there.services.store.presence.patience_s = 0.05
        async with there.connect() as owner:
            session_id = (await owner.call("sessions.create", key=KEY))["sessionId"]
            sent = [(await owner.call("chat.send", sessionKey=KEY, message=text))["runId"] for text in "ab"]
            await until(lambda: bob.turns)
            path = folder(there) / f"{session_id}.jsonl"
            (tmp_path / "copy").write_text(path.read_text().replace(f'"{KEY}"', '"agent:bob:cron:copy"'))
            (tmp_path / "copy").rename(path.with_name("copy.jsonl"))
            await until(lambda: read_run_ends(path.with_name("copy.jsonl")).keys() == set(sent))
            assert set(read_run_ends(path.with_name("copy.jsonl")).values()) == {"error"}
            assert f"a copy of that of session {session_id}" in path.with_name("copy.jsonl").read_text()
            bob.gate.set()
            ends = [await owner.call("agent.wait", runId=run_id, timeoutMs=60_000) for run_id in sent]
            assert [end["status"] for end in ends] == ["ok", "ok"]
            assert [turn["message"] for turn in bob.turns] == ["a", "b"]


async def test_the_ends_in_a_copy_that_is_still_being_written_are_kept(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        there.services.store.presence.patience_s = 1.0
        session_id = (await owner.call("sessions.create", key=KEY))["sessionId"]
        path = folder(there) / f"{session_id}.jsonl"
        session = there.services.store.catalog.by_key[KEY]
        foreign = f"{session_id}.0123456789abcdef"

        def step(status: str) -> str:
            data = {"runId": foreign, "status": status, "at": 5, "request": {"text": "x", "message": {}}}
            return json.dumps({"type": "custom", "customType": "sessiond/run", "id": status, "data": data}) + "\n"

        (tmp_path / "copy").write_text(path.read_text() + step("accepted"))
        (tmp_path / "copy").rename(path)
        await until(lambda: session.entry.runs)
        with path.open("a") as file:
            file.write(step("running") + step("ok"))
        await until(lambda: not session.entry.runs)
        await _outwait_presence(there)
        assert read_run_ends(path) == {foreign: "ok"}


def read_run_ends(path: Path) -> dict[str, str]:
    """The final status of each ended run of a transcript; fails if a run has two ends."""
    ends: dict[str, str] = {}
    for record in map(json.loads, path.read_text().splitlines()):
        data = record.get("data", {})
        if record.get("customType") == "sessiond/run" and data["status"] not in ("accepted", "running"):
            assert data["runId"] not in ends
            ends[data["runId"]] = data["status"]
    return ends
