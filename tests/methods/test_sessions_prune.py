from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from support.in_process import in_process_daemon

from sessiond.clock import iso_ms
from sessiond.model.caller import Caller

DAY = 86_400_000
OLD = 1_600_000_000_000


def _write(folder: Path, name: str, at: int, *, where: str = "archive", key: str | None = None) -> Path:
    sessions = folder / "store" / "agents" / "main" / "sessions" / where
    sessions.mkdir(parents=True, exist_ok=True)
    head = {"type": "session", "version": 3, "id": name, "timestamp": iso_ms(at), "cwd": "/"}
    path = sessions / f"{name}.jsonl"
    path.write_text(json.dumps({**head, "sessionKey": key or f"agent:main:{name}", "agentId": "main"}) + "\n")
    os.utime(path, (at / 1000, at / 1000))
    return path


def _names(found: dict[str, Any]) -> list[str]:
    return [row["sessionId"] for row in found["removed"]]


async def test_transcripts_to_delete_are_shown_and_deleted_only_when_confirmed(tmp_path: Path) -> None:
    old, older = _write(tmp_path, "old", OLD), _write(tmp_path, "older", OLD - DAY)
    live = _write(tmp_path, "live", OLD - 2 * DAY, where="")
    superseded = _write(tmp_path, "superseded", OLD - 3 * DAY, where="", key="agent:main:live")
    size = older.stat().st_size
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key="agent:main:fresh")
        await client.call("sessions.delete", key="agent:main:fresh")
        shown = await client.call("sessions.prune", olderThanMs=90 * DAY)
        assert (shown["confirmed"], _names(shown), shown["skipped"]) == (False, ["older", "old"], [])
        assert shown["removed"][0] == {
            "key": "agent:main:older",
            "sessionId": "older",
            "path": str(older),
            "bytes": size,
            "updatedAt": OLD - DAY,
        }
        assert shown["bytes"] == size + old.stat().st_size
        assert old.exists()
        done = await client.call("sessions.prune", olderThanMs=90 * DAY, confirm=True)
        assert done == {**shown, "confirmed": True}
        assert not old.exists() and not older.exists()
        assert live.exists() and superseded.exists()
        listed = (await client.call("sessions_list", includeArchived=True))["sessions"]
        assert sorted(row["key"] for row in listed) == ["agent:main:fresh", "agent:main:live", "agent:main:live"]
        again = await client.call("sessions.prune", olderThanMs=90 * DAY, confirm=True)
        assert (again["removed"], again["bytes"]) == ([], 0)
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert len((await client.call("sessions_list", includeArchived=True))["sessions"]) == 3


async def test_the_age_limit_is_exact_to_the_millisecond(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key="agent:main:a")
        await client.call("sessions.delete", key="agent:main:a")
        assert (await client.call("sessions.prune", olderThanMs=60_000))["removed"] == []
        for wrong in (-1, 10**18):
            assert (await client.failure("sessions.prune", olderThanMs=wrong))["data"]["field"] == "$.olderThanMs"
        assert (await client.failure("sessions.prune"))["code"] == -32602


async def test_a_file_that_changed_meanwhile_is_kept_and_the_reason_given(tmp_path: Path) -> None:
    grown, gone, link, good = (_write(tmp_path, name, OLD) for name in ("grown", "gone", "link", "good"))
    outside = tmp_path / "outside"
    outside.write_text("precious")
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        with grown.open("a") as file:
            file.write("{}\n")
        gone.unlink()
        link.unlink()
        link.symlink_to(outside)
        done = await client.call("sessions.prune", olderThanMs=0, confirm=True)
        assert _names(done) == ["good"]
        assert {row["path"]: row["reason"] for row in done["skipped"]} == {
            str(grown): "it was written to since it was last read",
            str(gone): "No such file or directory",
            str(link): "not a regular file",
        }
        assert grown.exists() and link.is_symlink() and not good.exists()
        assert outside.read_text() == "precious"


async def test_a_caller_prunes_only_the_sessions_it_can_see(tmp_path: Path) -> None:
    mine, other = _write(tmp_path, "mine", OLD), _write(tmp_path, "other", OLD)
    caller = Caller(kind="token", scopes=frozenset(["admin"]), session_key="agent:main:mine", agent_id="main")
    async with in_process_daemon(tmp_path) as daemon, daemon.connect(caller) as agent:
        assert _names(await agent.call("sessions.prune", olderThanMs=0, confirm=True)) == ["mine"]
        assert other.exists() and not mine.exists()
    reader = Caller(kind="token", scopes=frozenset(["read", "send"]), session_key="agent:main:other")
    async with in_process_daemon(tmp_path) as daemon, daemon.connect(reader) as agent:
        assert (await agent.failure("sessions.prune", olderThanMs=0))["code"] == -32003
