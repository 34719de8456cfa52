from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from support.in_process import in_process_daemon
from support.rows import check_each

from sessiond.model.caller import Caller

GOLDEN = Path(__file__).parents[1] / "golden" / "openclaw-store"
SID = "0e821bfa-101c-4841-b9ad-71d2ff5627e8"


def _fingerprint(folder: Path) -> dict[str, Any]:
    """Every name below a folder with its content, mode and times."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.lstat().st_mtime_ns,
                                        hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }  # fmt: skip


def _head(session_id: str, at: str = "2026-01-01T00:00:00.000Z") -> dict[str, Any]:
    return {"type": "session", "version": 3, "id": session_id, "timestamp": at, "cwd": "/home"}


def _message(text: str) -> dict[str, Any]:
    message = {"role": "user", "content": text, "timestamp": 1_767_225_600_000}
    return {
        "type": "message",
        "id": "a1",
        "parentId": None,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "message": message,
    }


def _write(sessions: Path, name: str, *lines: Any) -> Path:
    sessions.mkdir(parents=True, exist_ok=True)
    path = sessions / name
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def _skipped(done: dict[str, Any]) -> dict[str, str]:
    return {row["path"]: row["reason"] for row in done["skipped"]}


async def test_a_real_openclaw_folder_is_imported_completely_and_left_unchanged(tmp_path: Path) -> None:
    before = _fingerprint(GOLDEN)
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        done = await client.call("sessions.import", path=str(GOLDEN))
        assert done["skipped"] == []
        store = daemon.services.store
        for row in done["imported"]:
            source = GOLDEN / row["path"]
            if source.name == "sessions.json":
                continue  # a session that is only in the index
            session = store.catalog.by_id[row["sessionId"]]
            copied = (store.path / session.path).read_bytes()
            assert copied.startswith(source.read_bytes())
            # One more record: the adoption.
            assert copied.count(b"\n") == source.read_bytes().count(b"\n") + 1
            assert (store.path / session.path).stat().st_mode & 0o777 == 0o600
            assert row["archived"] is (".jsonl." in source.name)
        history = await client.call("sessions_history", sessionKey="main")
        assert history["sessionId"] == SID
        assert len(history["messages"]) > 0
        row = next(row for row in (await client.call("sessions_list"))["sessions"] if row["key"] == "main")
        assert (row["lastChannel"], row["deliveryContext"], row["status"]) == ("webchat", {"channel": "webchat"}, "ok")
        again = await client.call("sessions.import", path=str(GOLDEN))
        assert again["imported"] == []
        assert set(_skipped(again).values()) == {"a session with this id is here already"}
        assert len(again["skipped"]) == len(done["imported"])
        files = _fingerprint(store.path / "agents")
    assert _fingerprint(GOLDEN) == before
    # A restart reads the same entries as the import made.
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert (await client.call("sessions_history", sessionKey="main"))["messages"] == history["messages"]
        kept = {name: facts for name, facts in _fingerprint(daemon.services.store.path / "agents").items() if facts[2]}
        assert {name for name in kept if name.endswith(".jsonl")} == {name for name in files if name.endswith(".jsonl")}
        assert (await client.call("sessions.import", path=str(GOLDEN)))["imported"] == []


async def test_file_names_agents_and_skipped_files_are_reported(tmp_path: Path) -> None:
    source = tmp_path / "openclaw"
    main = source / "agents" / "main" / "sessions"
    other = source / "agents" / "Other" / "sessions"
    _write(main, "plain.jsonl", _head("plain"), _message("hello"))
    _write(main, "twice.jsonl", _head("twice"), _message("now"))
    _write(main, "twice.jsonl.deleted.2026-01-02T03-04-05.678Z", _head("twice"), _message("then"))
    _write(main, "gone.jsonl.reset.2026-01-02T03-04-05Z", _head("gone"), _message("before"))
    _write(main, "plain.jsonl.bak.2026-01-02T03-04-05.678Z", _head("plain"))
    _write(main, "keep.deleted.keep.jsonl", _head("keep"))
    _write(main, "sid-topic-a%2Fb.jsonl", _head("sid"), _message("in a thread"))
    _write(main, "usage.jsonl", {"some": "log"})
    _write(main, "empty.jsonl")
    half = _write(main, "half.jsonl", _head("half"), _message("whole"), _message("x"))
    half.write_bytes(half.read_bytes() + b'{"type":"mess')
    _write(main, "notes.txt", "not ours")
    _write(other, "own.jsonl", _head("own"), _message("another agent"))
    (main / "link.jsonl").symlink_to(main / "plain.jsonl")
    (source / "agents" / "linked").symlink_to(source / "agents" / "main")
    (source / "agents" / "not an agent").mkdir()
    (source / "agents" / "bare").mkdir()
    index = {
        "Agent:Main:Telegram:Group:7": {"sessionId": "plain", "updatedAt": 5, "provider": "telegram", "label": "home"},
        "agent:main:thread": {"sessionId": "sid", "sessionFile": str(main / "sid-topic-a%2Fb.jsonl"), "updatedAt": 6},
        "agent:main:settings": {"sessionId": "only-settings", "updatedAt": 1_767_225_600_000, "thinkingLevel": "high"},
        "agent:else:x": {"sessionId": "twice"},
    }
    (main / "sessions.json").write_text(json.dumps(index))
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        done = await client.call("sessions.import", path=str(source))
        prefix = "agents/main/sessions/"
        assert {row["path"].removeprefix(prefix): (row["key"], row["sessionId"], row["messages"], row["archived"])
                for row in done["imported"]} == {
            "plain.jsonl": ("agent:main:telegram:group:7", "plain", 1, False),
            "twice.jsonl": ("agent:main:import:twice", "twice", 1, False),
            "twice.jsonl.deleted.2026-01-02T03-04-05.678Z":
                ("agent:main:import:twice", "twice.deleted.2026-01-02T03-04-05.678Z", 1, True),
            "gone.jsonl.reset.2026-01-02T03-04-05Z": ("agent:main:import:gone", "gone", 1, True),
            "keep.deleted.keep.jsonl": ("agent:main:import:keep.deleted.keep", "keep.deleted.keep", 0, False),
            "sid-topic-a%2Fb.jsonl": ("agent:main:thread", "sid-topic-a_2Fb", 1, False),
            "half.jsonl": ("agent:main:import:half", "half", 2, False),
            "sessions.json": ("agent:main:settings", "only-settings", 0, False),
            "agents/Other/sessions/own.jsonl": ("agent:other:import:own", "own", 1, False),
        }  # fmt: skip
        assert {path.removeprefix(prefix): reason for path, reason in _skipped(done).items()} == {
            "agents/linked": "a symlink; it is not followed",
            "agents/not an agent": "no agent's folder",
            "link.jsonl": "a symlink; it is not followed",
            "plain.jsonl.bak.2026-01-02T03-04-05.678Z":
                "what a compaction left over; the session's own transcript goes on from it",
            "usage.jsonl": "no transcript: it does not begin with the header of a session",
            "empty.jsonl": "no transcript: it does not begin with the header of a session",
        }  # fmt: skip
        catalog = daemon.services.store.catalog
        assert catalog.by_id["plain"].entry.label == "home"
        assert catalog.by_id["plain"].entry.channel == "telegram"
        assert catalog.by_id["only-settings"].entry.thinking_level == "high"
        assert catalog.corrupt_records == 0
        # No temporary file is left, and the files keep their times.
        sessions = daemon.services.store.path / "agents" / "main" / "sessions"
        assert [path.name for path in sessions.iterdir() if path.name.startswith(".")] == []
        assert (sessions / "plain.jsonl").stat().st_mtime == 1_700_000_000
        assert await client.say("agent:main:telegram:group:7", "and on") == "and on"


async def test_an_import_does_not_displace_an_existing_session(tmp_path: Path) -> None:
    sessions = tmp_path / "openclaw" / "agents" / "main" / "sessions"
    _write(sessions, "theirs.jsonl", _head("theirs", "2999-01-01T00:00:00.000Z"), _message("hello"))
    index = {"agent:main:main": {"sessionId": "theirs"}, "agent:main:work": {"sessionId": "only-settings"}}
    (sessions / "sessions.json").write_text(json.dumps(index))
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        mine = await client.call("sessions.create", key="main")
        await client.call("sessions.create", key="agent:main:work")
        done = await client.call("sessions.import", path=str(tmp_path / "openclaw"))
        assert [(row["key"], row["archived"]) for row in done["imported"]] == [("agent:main:main", True)]
        assert _skipped(done) == {
            "agents/main/sessions/sessions.json": "its key has a session here, with settings of its own"
        }
        assert (await client.call("sessions.resolve", key="main"))["sessionId"] == mine["sessionId"]
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert (await client.call("sessions.resolve", key="main"))["sessionId"] == mine["sessionId"]


async def test_followers_hear_of_imported_sessions(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client, daemon.connect() as follower:
        await follower.call("sessions.subscribe")
        await client.call("sessions.import", path=str(GOLDEN))
        event = await follower.event("sessions.changed")
        assert (event["phase"], event["reason"]) == ("create", "imported")


@check_each("path", ["relative/path", "/nowhere/at/all", "/dev/null", "/proc/version", "/usr"])
async def test_a_path_that_is_not_an_openclaw_folder_is_refused(tmp_path: Path, path: str) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        error = await client.failure("sessions.import", path=path)
        assert (error["code"], error["data"]["field"]) == (-32602, "$.path")


async def test_importing_the_store_itself_or_by_a_session_token_is_refused(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert (await client.failure("sessions.import", path=str(tmp_path / "store")))["code"] == -32602
        narrow = Caller(kind="token", scopes=frozenset(["admin"]), session_key="agent:main:main", agent_id="main")
        async with daemon.connect(narrow) as agent:
            assert (await agent.failure("sessions.import", path=str(GOLDEN)))["code"] == -32003
