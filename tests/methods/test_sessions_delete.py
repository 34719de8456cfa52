from __future__ import annotations

import json
from pathlib import Path

from support.in_process import in_process_daemon

from sessiond.model.caller import Caller

KEY = "agent:main:work"


async def test_a_deleted_session_is_gone_from_lists_and_its_transcript_is_in_the_archive(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        made = await client.call("sessions.create", key=KEY, label="home")
        await client.say(KEY, "hello")
        assert await client.call("sessions.delete", key=KEY) == {"key": KEY, "deleted": True, "archived": True}
        assert (await client.call("sessions_list"))["sessions"] == []
        archived = (await client.call("sessions_list", includeArchived=True))["sessions"]
        assert [(row["key"], row["sessionId"], row["archived"]) for row in archived] == [(KEY, made["sessionId"], True)]
        assert Path(archived[0]["transcriptPath"]).parent.name == "archive"
        for name in (KEY, "agent:main:none"):
            assert (await client.failure("sessions.delete", key=name))["code"] == -32002
        assert (await client.failure("sessions.resolve", label="home"))["code"] == -32002
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert (await client.call("sessions_list"))["sessions"] == []
        assert await client.say(KEY, "a new one") == "a new one"


async def test_the_main_session_cannot_be_deleted(tmp_path: Path) -> None:
    config = '[session]\nmainKey = "home"'
    async with in_process_daemon(tmp_path, config) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        error = await client.failure("sessions.delete", key="main")
        assert (error["code"], error["data"]["code"]) == (-32003, "main_session")
        await client.say("agent:main:other", "hello")
        assert (await client.call("sessions.delete", key="agent:main:other"))["deleted"]


async def test_older_transcripts_of_the_key_do_not_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    for year in (2020, 2021, 2022):
        header = {"type": "session", "version": 3, "id": f"s{year}", "timestamp": f"{year}-01-01T00:00:00.000Z"}
        text = json.dumps({**header, "cwd": "/", "sessionKey": KEY, "agentId": "main"})
        (folder / f"s{year}.jsonl").write_text(text + "\n")
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert (await client.call("sessions.resolve", key=KEY))["sessionId"] == "s2022"
        assert (await client.call("sessions.delete", key=KEY))["archived"] is True
        assert (await client.failure("sessions.resolve", key=KEY))["code"] == -32002
    assert sorted(path.name for path in (folder / "archive").glob("*.jsonl")) == [
        "s2020.jsonl",
        "s2021.jsonl",
        "s2022.jsonl",
    ]


async def test_followers_who_could_see_a_session_hear_of_its_deletion(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        parent = "agent:main:parent"
        await client.call("sessions.create", key=parent)
        await client.call("sessions.create", key=KEY, parentSessionKey=parent)
        caller = Caller(kind="token", scopes=frozenset(["list", "read"]), session_key=parent)
        stranger = Caller(kind="token", scopes=frozenset(["list", "read"]), session_key="agent:main:stranger")
        async with daemon.connect(caller) as follower, daemon.connect(stranger) as other, daemon.connect() as owner:
            for connection in (follower, other, owner):
                await connection.call("sessions.subscribe")
            await client.call("sessions.delete", key=KEY)
            for connection in (follower, owner):
                assert await connection.event("sessions.changed") == {"sessionKey": KEY, "phase": "delete"}
            await other.call("ping")
            assert other.events == []


async def test_a_delete_aborts_the_runs(tmp_path: Path) -> None:
    config = '[[agents.list]]\nid = "main"\nruntime = { type = "attached" }'
    async with in_process_daemon(tmp_path, config) as daemon, daemon.connect() as client:
        run_id = (await client.call("chat.send", sessionKey=KEY, message="hello"))["runId"]
        assert (await client.call("sessions.delete", key=KEY))["archived"] is True
        assert (await client.call("agent.wait", runId=run_id))["status"] == "aborted"
