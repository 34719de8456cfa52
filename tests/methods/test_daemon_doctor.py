from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import in_process_daemon
from support.patience import PATIENCE_S
from support.real_daemon import Daemon

from sessiond.model.caller import Caller


async def test_the_daemon_checks_and_repairs_its_own_store(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        store = daemon.services.store
        path = store.path / store.catalog.by_key["agent:main:main"].path
        path.chmod(0o644)
        fresh = path.with_name(".tmp-0123456789abcdef")
        fresh.write_text("a write that goes on")
        fresh.chmod(0o600)
        found = (await client.call("daemon.doctor"))["findings"]
        wrong = [one["what"] for one in found if one["level"] != "ok"]
        assert wrong == [
            "left over from a write that was cut off",
            f"others may read it: {path.name} is 0644",
        ]
        assert f"process {os.getpid()}" in found[0]["what"]
        fixed = (await client.call("daemon.doctor", fix=True))["findings"]
        done = [one["what"] for one in fixed if one["thing"] == "repaired"]
        assert done[1:] == [
            f"agents/main/sessions/{path.name}: mode 0644 is 0600 now",
            "written again: the indexes of 1 agent",
        ]
        assert path.stat().st_mode & 0o777 == 0o600
        # Young files are left: this could be a write of the daemon that is under way.
        assert fresh.exists()
        index = json.loads((path.parent / "sessions.json").read_bytes())
        assert index["agent:main:main"]["messageCount"] == 2


@pytest.mark.parametrize("forged", [{"messageCount": 7, "label": "forged"}, {"sessionKey": "agent:main:forged"}])
async def test_an_entry_that_differs_from_its_transcript_is_found_and_read_again(
    tmp_path: Path, forged: dict[str, Any]
) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.say("main", "hello")
        store = daemon.services.store
        right = store.catalog.by_key["agent:main:main"].entry
        await store.save(store.folders["main"])
    index = tmp_path / "store/agents/main/sessions/sessions.json"
    rows = json.loads(index.read_bytes())
    rows["agent:main:main"] |= forged
    index.write_text(json.dumps(rows))
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        catalog = daemon.services.store.catalog
        (wrong,) = catalog.by_key.values()
        assert wrong.entry != right
        path = wrong.path
        found = (await client.call("daemon.doctor"))["findings"]
        assert [one["thing"] for one in found if "something else of it" in one["what"]] == [path]
        fixed = (await client.call("daemon.doctor", fix=True))["findings"]
        done = [one["what"] for one in fixed if one["thing"] == "repaired"]
        assert done == [
            f"{path}: what was known of it was wrong; it was read anew",
            "written again: the indexes of 1 agent",
        ]
        assert [one for one in fixed if "something else of it" in one["what"]] == []
        assert {key: session.entry for key, session in catalog.by_key.items()} == {"agent:main:main": right}
        assert list(json.loads(index.read_bytes())) == ["agent:main:main"]
        # A second time there is nothing to do.
        again = (await client.call("daemon.doctor", fix=True))["findings"]
        assert [one["what"] for one in again if one["thing"] == "repaired"] == done[1:]


async def test_a_failed_repair_is_reported_and_the_rest_is_repaired(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        store = daemon.services.store
        for key in ("agent:main:main", "agent:bob:main"):
            await store.create(key, key.split(":")[1])
        agents = store.path / "agents"
        # A folder in its place: as root nothing else makes writing the file fail.
        (agents / "bob/sessions/sessions.json").mkdir(mode=0o700)
        fixed = (await client.call("daemon.doctor", fix=True))["findings"]
        (unsaved,) = [one for one in fixed if one["level"] == "error"]
        assert (unsaved["thing"], unsaved["what"]) == (
            "agents/bob/sessions/sessions.json",
            "could not save the index of agent bob: Is a directory",
        )
        done = [one["what"] for one in fixed if one["thing"] == "repaired"]
        assert done == ["written again: the indexes of 1 agent"]
        assert set(json.loads((agents / "main/sessions/sessions.json").read_bytes())) == {"agent:main:main"}
        (agents / "bob/sessions/sessions.json").rmdir()
        (store.path / "backups").write_text("no folder")
        (agents / "bob").chmod(0o755)
        fixed = (await client.call("daemon.doctor", fix=True))["findings"]
        (no_backup,) = [one for one in fixed if one["level"] == "error"]
        assert no_backup["thing"] == "backups"
        assert no_backup["what"].startswith("no backup could be made: Not a directory; ")
        assert [one["what"] for one in fixed if one["thing"] == "repaired"] == [
            "written again: the indexes of 2 agents"
        ]
        assert set(json.loads((agents / "bob/sessions/sessions.json").read_bytes())) == {"agent:bob:main"}


async def test_a_torn_new_index_is_rewritten_if_it_is_ours_and_otherwise_left(tmp_path: Path) -> None:
    agents = tmp_path / "store/agents"
    async with in_process_daemon(tmp_path) as daemon:
        store = daemon.services.store
        for key in ("agent:main:main", "agent:bob:main"):
            await store.create(key, key.split(":")[1])
        for folder in store.dirty_folders():
            await store.save(folder)
    ours, theirs = (agents / agent_id / "sessions/sessions.json" for agent_id in ("main", "bob"))
    ours.write_bytes(ours.read_bytes()[:-20])
    theirs.write_text(half := '{\n  "agent:bob:other": {\n    "sess')
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        fixed = (await client.call("daemon.doctor", fix=True))["findings"]
        assert [one["what"] for one in fixed if one["thing"] == "repaired"] == ["written again: the indexes of 1 agent"]
        told = [one["what"] for one in fixed if one["level"] != "ok" and one["thing"].startswith("agents/bob")]
        assert told[0] == "not written yet: sessions.json may be in the middle of a write"
        assert set(json.loads(ours.read_bytes())) == {"agent:main:main"}
        assert theirs.read_text() == half
        assert not list(agents.rglob("*.damaged"))


async def test_the_doctor_needs_an_admin_that_is_not_bound_to_a_session(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        narrow = Caller(kind="token", scopes=frozenset(["admin"]), session_key="agent:main:main", agent_id="main")
        async with daemon.connect(narrow) as agent:
            assert (await agent.failure("daemon.doctor"))["code"] == -32003
        wide = Caller(kind="token", scopes=frozenset(["admin"]))
        async with daemon.connect(wide) as agent:
            assert (await agent.call("daemon.doctor"))["findings"][0]["level"] == "ok"


@pytest.mark.system
def test_the_command_line_reports_and_repairs(daemon: Daemon) -> None:
    daemon.start()
    daemon.reply("main", "hello")
    path = daemon.transcripts()[0]
    path.chmod(0o644)
    assert f"{path.name} is 0644" in daemon.cli("doctor").stdout
    assert "is 0600 now" in daemon.cli("doctor", "--fix").stdout
    daemon.stop()
    path.chmod(0o644)
    assert "is 0600 now" in daemon.cli("doctor", "--offline", "--fix").stdout


async def test_messages_removed_by_a_rewrite_in_place_are_reported(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        for number in range(3):
            await client.say("main", f"number {number}")
        store = daemon.services.store
        session = store.catalog.by_key["agent:main:main"]
        path = store.path / session.path
        whole = path.read_bytes()
        header, *lines = whole.splitlines(keepends=True)

        async def losses() -> list[str]:
            found = (await client.call("daemon.doctor"))["findings"]
            return [one["what"] for one in found if one["thing"] == session.path and one["level"] == "warn"]

        async def wait_for_count(count: int) -> None:
            with trio.fail_after(PATIENCE_S):
                while session.entry.message_count != count:
                    daemon.services.feed.poke(session)
                    await client.call("ping")

        # Some programs truncate the file and write it again, others replace it by a new one.
        path.write_bytes(b"")
        await wait_for_count(0)
        path.write_bytes(header + b"".join(lines[:4]))
        kept = sum(b'"type":"message"' in line for line in lines[:4])
        await wait_for_count(kept)
        (told,) = await losses()
        assert told.endswith(f": 6 messages were there, and {kept} of them now")
        # The time of a file lags behind by a tick: a message right after it would count as from before.
        written_ns = path.stat().st_mtime_ns
        while time.time_ns() < written_ns + 100_000_000:  # noqa: ASYNC110
            await trio.sleep(0.01)
        await client.say("main", "and on")
        (told,) = await losses()
        assert told.endswith(f": 6 messages were there, and {kept} of them now")
    # The loss is noted in the index, so that the next daemon reports it too.
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        found = (await client.call("daemon.doctor"))["findings"]
        assert any(str(one["what"]).endswith(f"and {kept} of them now") for one in found)
