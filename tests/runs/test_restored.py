"""Transcripts that are renamed, put back or replaced by an older copy while the daemon has runs in them."""

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
POLLED = '[watch]\nbackend = "polling"\n'


async def answers_at_the_gate(program: Program, params: dict[str, Any]) -> Any:
    await program.gate.wait()
    return {"reply": f"re: {params['message']}"}


def folder(there: InProcessDaemon) -> Path:
    path: Path = there.services.store.path / "agents" / "bob" / "sessions"
    return path


async def row(owner: Connection) -> dict[str, Any]:
    found: dict[str, Any]
    [found] = (await owner.call("sessions_list"))["sessions"]
    return found


@pytest.mark.parametrize("config", ["", POLLED], ids=["inotify", "polling"])
async def test_a_transcript_that_is_renamed_and_named_back_costs_no_run(tmp_path: Path, config: str):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob", more=config)) as there,
        agent(there, "bob", answers_at_the_gate) as bob,
    ):
        there.services.store.presence.patience_s = 0.05
        catalog = there.services.store.catalog
        async with there.connect() as owner:
            made = (await owner.call("sessions.create", key=KEY))["sessionId"]
            sent = [(await owner.call("chat.send", sessionKey=KEY, message=text))["runId"] for text in "abc"]
            await until(lambda: bob.turns)
            (folder(there) / f"{made}.jsonl").rename(folder(there) / "other.jsonl")
            await until(lambda: "other" in catalog.by_id and made not in catalog.by_id)
            await _pass(there)
            assert (await row(owner))["queuedRuns"] == 2
            # What is said meanwhile is written where the key is now.
            await owner.call("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "in between"}])
            (folder(there) / "other.jsonl").rename(folder(there) / f"{made}.jsonl")
            await until(lambda: made in catalog.by_id and "other" not in catalog.by_id)
            await _pass(there)
            bob.gate.set()
            ends = [await owner.call("agent.wait", runId=run_id, timeoutMs=60_000) for run_id in sent]
            assert [(end["status"], end["reply"]) for end in ends] == [("ok", f"re: {text}") for text in "abc"]
            after = await row(owner)
            assert (after["sessionId"], after["status"], after.get("queuedRuns")) == (made, "ok", None)
            page = await owner.call("sessions_history", sessionKey=KEY)
    said = [text if isinstance(text := one["content"], str) else text[0]["text"] for one in page["messages"]]
    assert said == ["a", "in between", "re: a", "b", "re: b", "c", "re: c"]


async def _pass(there: InProcessDaemon) -> None:
    """Longer than a transcript may be away."""
    await trio.sleep(2 * there.services.store.presence.patience_s)


async def test_a_run_that_ended_since_the_copy_was_made_ends_in_the_copy_as_well(tmp_path: Path):
    """An older copy put in place says that it waits or goes on; it does neither, and is not done again."""
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob")) as there,
        agent(there, "bob", answers_at_the_gate) as bob,
    ):
        there.services.store.presence.patience_s = 0.05
        async with there.connect() as owner:
            made = (await owner.call("sessions.create", key=KEY))["sessionId"]
            path = folder(there) / f"{made}.jsonl"
            live = (await owner.call("chat.send", sessionKey=KEY, message="a"))["runId"]
            queued = (await owner.call("chat.send", sessionKey=KEY, message="b"))["runId"]
            await until(lambda: bob.turns)
            shutil.copy(path, tmp_path / "backup")
            await owner.call("chat.abort", sessionKey=KEY)
            bob.gate.set()
            (tmp_path / "backup").rename(path)
            await until(lambda: ends_of(path).keys() == {live, queued})
            assert ends_of(path) == {live: "aborted", queued: "aborted"}
            await until(lambda: not there.services.store.catalog.by_key[KEY].entry.runs)
            after = await row(owner)
            assert (after["status"], after.get("queuedRuns")) == ("aborted", None)
            # It is a session like any other.
            assert await owner.say(KEY, "c") == "re: c"
            assert [turn["message"] for turn in bob.turns] == ["a", "c"]


@pytest.mark.parametrize("appears", [True, False], ids=["appears", "replaced"])
async def test_runs_of_a_transcript_from_elsewhere_end_as_interrupted(tmp_path: Path, appears: bool):
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        there.services.store.presence.patience_s = 0.05
        made = (await owner.call("sessions.create", key=KEY))["sessionId"]
        path = folder(there) / f"{made}.jsonl"
        await owner.call("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "said"}])
        foreign = f"{made}.0123456789abcdef"
        accepted = {"runId": foreign, "status": "accepted", "at": 5, "request": {"text": "x", "message": {}}}
        record = {"type": "custom", "customType": "sessiond/run", "id": "r", "data": accepted}
        (tmp_path / "copy").write_text(path.read_text() + json.dumps(record) + "\n")
        if appears:
            path.unlink()
            await until(lambda: KEY not in there.services.store.catalog.by_key)
        (tmp_path / "copy").rename(path)
        await until(lambda: foreign in ends_of(path))
        assert ends_of(path) == {foreign: "error"}
        assert f'"error":"{INTERRUPTED}"' in path.read_text()
        await until(lambda: not there.services.store.catalog.by_key[KEY].entry.runs)
        assert "queuedRuns" not in await row(owner)


async def test_a_run_that_goes_on_in_the_original_ends_at_once_in_a_copy_under_another_key(tmp_path: Path):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("bob")) as there,
        agent(there, "bob", answers_at_the_gate) as bob,
    ):
        there.services.store.presence.patience_s = 0.05
        async with there.connect() as owner:
            made = (await owner.call("sessions.create", key=KEY))["sessionId"]
            sent = [(await owner.call("chat.send", sessionKey=KEY, message=text))["runId"] for text in "ab"]
            await until(lambda: bob.turns)
            path = folder(there) / f"{made}.jsonl"
            (tmp_path / "copy").write_text(path.read_text().replace(f'"{KEY}"', '"agent:bob:cron:copy"'))
            (tmp_path / "copy").rename(path.with_name("copy.jsonl"))
            await until(lambda: ends_of(path.with_name("copy.jsonl")).keys() == set(sent))
            assert set(ends_of(path.with_name("copy.jsonl")).values()) == {"error"}
            assert f"a copy of that of session {made}" in path.with_name("copy.jsonl").read_text()
            bob.gate.set()
            ends = [await owner.call("agent.wait", runId=run_id, timeoutMs=60_000) for run_id in sent]
            assert [end["status"] for end in ends] == ["ok", "ok"]
            assert [turn["message"] for turn in bob.turns] == ["a", "b"]


async def test_a_copy_that_is_still_being_written_may_say_how_its_runs_ended(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("bob")) as there, there.connect() as owner:
        there.services.store.presence.patience_s = 1.0
        made = (await owner.call("sessions.create", key=KEY))["sessionId"]
        path = folder(there) / f"{made}.jsonl"
        session = there.services.store.catalog.by_key[KEY]
        foreign = f"{made}.0123456789abcdef"

        def step(status: str) -> str:
            data = {"runId": foreign, "status": status, "at": 5, "request": {"text": "x", "message": {}}}
            return json.dumps({"type": "custom", "customType": "sessiond/run", "id": status, "data": data}) + "\n"

        (tmp_path / "copy").write_text(path.read_text() + step("accepted"))
        (tmp_path / "copy").rename(path)
        await until(lambda: session.entry.runs)
        with path.open("a") as file:
            file.write(step("running") + step("ok"))
        await until(lambda: not session.entry.runs)
        await _pass(there)
        assert ends_of(path) == {foreign: "ok"}


def ends_of(path: Path) -> dict[str, str]:
    """How the runs of a transcript ended; each has one end."""
    ends: dict[str, str] = {}
    for record in map(json.loads, path.read_text().splitlines()):
        data = record.get("data", {})
        if record.get("customType") == "sessiond/run" and data["status"] not in ("accepted", "running"):
            assert data["runId"] not in ends
            ends[data["runId"]] = data["status"]
    return ends
