from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.real_daemon import Daemon
from support.rows import check_each
from support.sampling import amount

from sessiond.clock import Clock
from sessiond.model.caller import Caller

KEY = "agent:main:work"
ATTEMPTS, RESETS = amount(6, 2), amount(15, 6)
SLOW = """
[[agents.list]]
id = "main"
runtime = { type = "exec", command = ["sh", "-c", "read line; sleep 60"] }
"""


def _texts(path: Path) -> list[str]:
    """The texts of the user messages in a transcript."""
    found = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record["type"] == "message" and record["message"]["role"] == "user":
            found.append(record["message"]["content"])
    return found


def _folder(daemon: InProcessDaemon) -> Path:
    path: Path = daemon.services.store.path / "agents" / "main" / "sessions"
    return path


async def test_a_reset_creates_a_new_session_and_archives_the_old_transcript(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        old = await client.call("sessions.create", key=KEY)
        await client.say(KEY, "hello")
        before = (_folder(daemon) / f"{old['sessionId']}.jsonl").read_bytes()
        done = await client.call("sessions.reset", key=KEY)
        assert done == {"key": KEY, "sessionId": done["sessionId"], "archived": True}
        assert done["sessionId"] != old["sessionId"]
        assert (_folder(daemon) / "archive" / f"{old['sessionId']}.jsonl").read_bytes() == before
        assert [path.stem for path in _folder(daemon).glob("*.jsonl")] == [done["sessionId"]]
        history = await client.call("sessions_history", sessionKey=KEY)
        assert (history["sessionId"], history["messages"]) == (done["sessionId"], [])
        # The old session can still be read by its id.
        assert len((await client.call("sessions_history", sessionKey=old["sessionId"]))["messages"]) == 2
        assert await client.say(KEY, "again") == "again"


async def test_settings_and_lineage_survive_a_reset_and_counters_do_not(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key="agent:main:parent")
        await client.call("sessions.create", key=KEY, parentSessionKey="agent:main:parent", label="home")
        settings = {
            "displayName": "Work",
            "thinkingLevel": "high",
            "verboseLevel": "on",
            "model": "big",
            "sendPolicy": "allow",
            "notify": True,
            "contextTokens": 1000,
            "deliveryContext": {"channel": "telegram", "to": "42"},
        }
        await client.call("sessions.patch", key=KEY, **settings)
        store = daemon.services.store
        told = {"lastChannel": "telegram", "lastTo": "42", "channel": "telegram", "spawnDepth": 1, "sandboxed": True}
        usage = {"input": 10, "output": 5, "totalTokens": 15}
        path = store.path / store.catalog.by_key[KEY].path
        message = {"role": "assistant", "content": [], "model": "other", "usage": usage}
        with path.open("a") as file:
            file.write(json.dumps({"type": "custom", "customType": "sessiond/entry", "data": told, "id": "a"}) + "\n")
            file.write(json.dumps({"type": "message", "id": "b", "message": message}) + "\n")
        daemon.services.feed.poke(store.catalog.by_key[KEY])
        before = store.catalog.by_key[KEY].entry
        assert (before.input_tokens, before.message_count, before.model, before.last_to) == (10, 1, "other", "42")
        await client.call("sessions.reset", key=KEY)
        rows = (await client.call("sessions_list", label="home"))["sessions"]
        gone = {"updatedAt", "createdAt", "sessionId", "transcriptPath", "cwd"}
        assert [{name: value for name, value in row.items() if name not in gone} for row in rows] == [
            {
                "key": KEY,
                "kind": "other",
                "channel": "telegram",
                "source": "sessiond",
                "title": "Work",
                "label": "home",
                "lastChannel": "telegram",
                "lastTo": "42",
                "spawnedBy": "agent:main:parent",
                "spawnDepth": 1,
                "sandboxed": True,
                "messageCount": 0,
                "state": "idle",
                **settings,
            }
        ]
        assert store.catalog.by_key[KEY].entry.model_override == "big"
        assert store.catalog.children_of("agent:main:parent") == [KEY]


async def test_a_reset_first_aborts_the_live_and_the_queued_runs(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path, SLOW) as daemon, daemon.connect() as client:
        runs = [(await client.call("chat.send", sessionKey=KEY, message=str(n)))["runId"] for n in range(3)]
        old = daemon.services.store.catalog.by_key[KEY]
        await client.call("sessions.reset", key=KEY)
        for run_id in runs:
            assert (await client.call("agent.wait", runId=run_id))["status"] == "aborted"
        assert old.entry.runs == ()
        assert daemon.services.supervisor.live_runs() == 0
        lines = (daemon.services.store.path / old.path).read_text().splitlines()
        ends = [json.loads(line)["data"]["status"] for line in lines if '"sessiond/run"' in line]
        assert sorted(ends) == ["aborted"] * 3 + ["accepted"] * 3 + ["running"]


async def test_followers_get_a_resync_and_then_the_new_messages(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        async with daemon.connect() as follower, daemon.connect() as reader:
            await client.say(KEY, "before")
            await follower.call("sessions.subscribe")
            await reader.call("sessions.messages.subscribe", key=KEY)
            done = await client.call("sessions.reset", key=KEY)
            changed = await follower.event("sessions.changed")
            assert (changed["phase"], changed["row"]["sessionId"]) == ("reset", done["sessionId"])
            for connection in (follower, reader):
                resync = await connection.event("session.resync")
                assert (resync["sessionKey"], resync["reason"]) == (KEY, "reset")
            await client.say(KEY, "after")
            for connection in (follower, reader):
                said = await connection.event("session.message")
                assert (said["sessionId"], said["seq"], said["message"]["content"]) == (done["sessionId"], 1, "after")


async def test_no_message_sent_during_resets_is_lost_and_every_run_ends(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as owner:
        await owner.say(KEY, "first")
        accepted: dict[str, str] = {}

        async def send(connection: Connection, name: int) -> None:
            for count in range(amount(25, 10)):
                text = f"message {name}.{count}"
                accepted[text] = (await connection.call("chat.send", sessionKey=KEY, message=text))["runId"]

        async def reset(connection: Connection) -> None:
            for _ in range(RESETS):
                await connection.call("sessions.reset", key=KEY)

        async with trio.open_nursery() as work:
            for name in range(4):
                work.start_soon(_with_connection, daemon, send, name)
            for _ in range(2):
                work.start_soon(_with_connection, daemon, reset)
        for run_id in accepted.values():
            assert (await owner.call("agent.wait", runId=run_id))["status"] in ("ok", "aborted")
        folder = _folder(daemon)
        files = [*folder.glob("*.jsonl"), *(folder / "archive").glob("*.jsonl")]
        everything = b"".join(path.read_bytes() for path in files).decode()
        # Each is stored once: as a message, or in the record of a run that was aborted before it began.
        for text in accepted:
            assert everything.count(f'"{text}"') >= 1, text
        assert len(list(folder.glob("*.jsonl"))) == 1
        assert len(files) == 1 + 2 * RESETS
        assert [len(session.entry.runs) for session in daemon.services.store.catalog.by_id.values()] == [0] * (
            1 + 2 * RESETS
        )


async def _with_connection(daemon: InProcessDaemon, work: Any, *args: Any) -> None:
    async with daemon.connect() as connection:
        await work(connection, *args)


async def test_simultaneous_deletes_and_sends_leave_each_message_in_some_transcript(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon:
        accepted: list[str] = []

        async def send(connection: Connection, name: int) -> None:
            for count in range(20):
                text = f"message {name}.{count}"
                await connection.call("chat.send", sessionKey=KEY, message=text)
                accepted.append(text)

        async def delete(connection: Connection) -> None:
            for _ in range(20):
                answer = await connection.answer(await connection.send("sessions.delete", key=KEY))
                assert answer.get("result", {}).get("deleted") or answer["error"]["code"] == -32002

        async with trio.open_nursery() as work:
            for name in range(3):
                work.start_soon(_with_connection, daemon, send, name)
            work.start_soon(_with_connection, daemon, delete)
        folder = _folder(daemon)
        everything = b"".join(path.read_bytes() for path in folder.rglob("*.jsonl")).decode()
        assert [text for text in accepted if f'"{text}"' not in everything] == []
        assert len(accepted) == 60


async def test_a_caller_that_disconnects_leaves_no_half_done_reset(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as owner:
        for _ in range(20):
            await owner.say(KEY, "hello")
            async with daemon.connect() as hasty:
                await hasty.send("sessions.reset", key=KEY)
                await trio.lowlevel.checkpoint()
            # Whether it was carried out or not, the key has a session, and nothing hangs.
            assert await owner.say(KEY, "hello again") == "hello again"


async def test_a_session_with_a_header_of_a_future_version_can_be_reset(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    header = {"type": "session", "version": 3, "id": "future", "timestamp": "2999-01-01T00:00:00.000Z", "cwd": "/"}
    (folder / "future.jsonl").write_text(json.dumps({**header, "sessionKey": KEY, "agentId": "main"}) + "\n")
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        done = await client.call("sessions.reset", key=KEY)
        assert daemon.services.store.catalog.by_key[KEY].session_id == done["sessionId"] != "future"
    async with in_process_daemon(tmp_path) as daemon:
        assert daemon.services.store.catalog.by_key[KEY].session_id == done["sessionId"]


async def test_a_session_whose_transcript_was_removed_can_be_reset_without_an_archive(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        old = await client.call("sessions.create", key=KEY)
        reset = client.send("sessions.reset", key=KEY)
        (_folder(daemon) / f"{old['sessionId']}.jsonl").unlink()
        answer = await client.answer(await reset)
        # If the watcher was quicker, the session is already gone.
        if "result" in answer:
            assert answer["result"]["archived"] is False
        else:
            assert answer["error"]["code"] == -32002


async def test_missing_and_invisible_sessions_get_the_same_answer(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as daemon, daemon.connect() as client:
        await client.call("sessions.create", key=KEY)
        stranger = Caller(kind="token", scopes=frozenset(["admin"]), session_key="agent:main:other")
        async with daemon.connect(stranger) as agent:
            there = await agent.failure("sessions.reset", key=KEY)
            gone = await agent.failure("sessions.reset", key="agent:main:none")
        assert there["code"] == gone["code"] == -32002
        assert there["message"].replace("work", "none") == gone["message"]


async def test_a_message_after_the_idle_limit_resets_the_session_and_a_repeated_one_does_not(tmp_path: Path) -> None:
    config = '[session]\nreset = { mode = "idle", idleMinutes = 60 }'
    real, shift = Clock(), [0]
    clock = Clock(wall_ms=lambda: real.wall_ms() + shift[0])
    async with in_process_daemon(tmp_path, config, clock=clock) as daemon, daemon.connect() as client:
        services = daemon.services
        first = {"sessionKey": KEY, "message": "hello", "idempotencyKey": "once"}
        run_id = (await client.call("chat.send", **first))["runId"]
        await client.call("agent.wait", runId=run_id)
        old = services.store.catalog.by_key[KEY]
        await client.say(KEY, "and on")
        assert services.store.catalog.by_key[KEY] is old
        shift[0] = 60 * 60_000 + 1000
        assert (await client.call("chat.send", **first))["runId"] == run_id
        assert services.store.catalog.by_key[KEY] is old
        # Several messages at once trigger a single reset.
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(_with_connection, daemon, _say, str(number))
        assert services.store.catalog.by_key[KEY] is not old
        assert old.archived and old.entry.message_count == 4
        assert len(services.store.catalog.by_id) == 2
        assert services.store.catalog.by_key[KEY].entry.message_count == 10


@check_each(
    ("method", "target"), [("chat.send", "sessionKey"), ("sessions_send", "sessionKey"), ("sessions.steer", "key")]
)
async def test_a_new_message_by_any_method_triggers_the_idle_reset(tmp_path: Path, method: str, target: str) -> None:
    real, shift = Clock(), [0]
    clock = Clock(wall_ms=lambda: real.wall_ms() + shift[0])
    async with (
        in_process_daemon(tmp_path, '[session]\nreset = { mode = "idle", idleMinutes = 60 }', clock=clock) as daemon,
        daemon.connect() as client,
    ):
        catalog = daemon.services.store.catalog
        await client.say(KEY, "hello")
        old = catalog.by_key[KEY]
        shift[0] = 60 * 60_000 + 1000
        await client.failure(method, **{target: KEY}, message=" ", idempotencyKey="k")
        assert catalog.by_key[KEY] is old
        message = {target: KEY, "message": "and on", "idempotencyKey": "k"}
        sent = await client.call(method, **message)
        new = catalog.by_key[KEY]
        assert new is not old and old.archived
        await client.call("agent.wait", runId=sent["runId"])
        shift[0] *= 3
        assert (await client.call(method, **message))["runId"] == sent["runId"]
        assert catalog.by_key[KEY] is new


async def _say(connection: Connection, text: str) -> None:
    assert await connection.say(KEY, text) == text


@pytest.mark.system
def test_a_kill_during_a_reset_loses_nothing(daemon: Daemon) -> None:
    daemon.start()
    for attempt in range(ATTEMPTS):
        daemon.reply("main", f"kept {attempt}")
        daemon.call("sessions.patch", key="main", label=f"label {attempt}")
        before = len(list(daemon.store.rglob("*.jsonl")))
        with daemon.connect() as wire:
            wire.send({"jsonrpc": "2.0", "id": 1, "method": "sessions.reset", "params": {"key": "main"}})
            if attempt % 2:
                daemon.wait_for(lambda n=before: len(list(daemon.store.rglob("*.jsonl"))) > n, "no new transcript")
            daemon.kill()
        daemon.start()
        row = next(row for row in daemon.rows() if row["key"] == "main")
        assert row["label"] == f"label {attempt}"
        said = [text for path in daemon.store.rglob("*.jsonl") for text in _texts(path)]
        assert sorted(said) == [f"kept {n}" for n in range(attempt + 1)]
    daemon.call("sessions.reset", key="main")
    # A new transcript whose writing was killed before its first byte is empty and does not count.
    assert len([path for path in daemon.transcripts() if path.stat().st_size]) == 1
