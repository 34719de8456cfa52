"""A store with records that sessiond would never write: the daemon starts on it, serves, and starts again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from support.in_process import in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config
from support.rows import check_each
from support.sampling import spread

T = 1795224660000
AGENTS = '[[agents.list]]\nid = "main"\ndefault = true\nruntime = {{ type = "echo" }}\nworkspace = "{workspace}"\n'
MAIN = "agent:main:main"
CHILD_ID = "11111111-1111-4111-8111-111111111111"


def header(name: str, key: str, **more: Any) -> dict[str, Any]:
    return {"type": "session", "version": 3, "id": name, "timestamp": T, "sessionKey": key, "agentId": "main", **more}


def custom(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": "custom", "customType": f"sessiond/{kind}", "id": "c", "data": data}


def write(store: Path, name: str, *lines: Any, agent: str = "main") -> Path:
    folder = store / "agents" / agent / "sessions"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


async def run_daemon(folder: Path, config: str = "") -> list[str]:
    """Start, send a message, call doctor, stop. Return the faults that doctor found."""
    async with (
        in_process_daemon(folder, config or AGENTS.format(workspace=folder / "w")) as daemon,
        daemon.connect() as client,
    ):
        assert await client.say("agent:main:other", "hello") == "hello"
        await client.call("sessions_list")
        await client.call("sessions.usage")
        findings = (await client.call("daemon.doctor"))["findings"]
        return [f"{one['thing']}: {one['what']}" for one in findings if one["level"] != "ok"]


ENTRY_RECORDS = [
    {"spawn": {"mode": "run", "cleanup": "keep", "requesterKey": MAIN, "ended": []}},
    {"spawn": {"mode": "run", "cleanup": "delete", "requesterKey": [MAIN], "ended": "s1.0123456789abcdef"}},
    {"spawn": {"mode": [], "cleanup": {}, "requesterKey": None, "ended": "../../x", "attachments": []}},
    {"spawn": {"ended": "s1.0123456789abcdef", "attachments": {"relDir": []}, "mountPath": 5}},
    {"spawn": []},
    {"contextTokens": int("9" * 400), "estimatedCostUsd": int("9" * 400)},
    {"deliveryContext": {"channel": [], "to": int("9" * 400), "threadId": {}}, "label": "x"},
    {"status": [], "startedAt": -1, "endedAt": 2**60, "updatedAt": "x"},
    {"spawnedBy": f"agent:main:subagent:{CHILD_ID}", "chatType": "\x00", "channel": "\ud83d"},
]


@check_each("number", spread(range(len(ENTRY_RECORDS)), 4))
async def test_the_daemon_starts_twice_with_a_hostile_entry_record(tmp_path: Path, number: int) -> None:
    key = f"agent:main:subagent:{CHILD_ID}"
    write(tmp_path / "store", "s1", header("s1", key, spawnedBy=MAIN), custom("entry", **ENTRY_RECORDS[number]))
    await run_daemon(tmp_path)
    await run_daemon(tmp_path)


RUN_RECORDS = [
    {"runId": "s1.1", "status": [], "at": T},
    {"runId": [], "status": "accepted", "at": T},
    {"runId": "../../../x", "status": "accepted", "at": T, "request": {"text": "x", "message": {}}},
    {"runId": "s1.1", "status": "accepted", "at": int("9" * 400)},
    {"runId": "s1.1", "status": "accepted", "at": T, "request": {"text": [], "message": []}},
    {"runId": "s1.1", "status": "accepted", "at": T, "request": {"text": "x", "message": {"role": [], "content": {}}}},
    {"runId": "s1.1", "status": "accepted", "at": T, "request": {"text": "x", "message": {"a": 1}, "timeoutS": -5}},
    {
        "runId": "s1.1",
        "status": "accepted",
        "at": T,
        "request": {"text": "x", "message": {"a": 1}, "follow": {"talk": 5}},
    },
    {"runId": "s1.1", "status": "accepted", "at": T, "idempotencyKey": [], "payload": {}, "request": "x"},
]


@check_each("number", spread(range(len(RUN_RECORDS)), 4))
async def test_the_daemon_starts_twice_with_a_hostile_run_record(tmp_path: Path, number: int) -> None:
    write(tmp_path / "store", "s1", header("s1", MAIN), custom("run", **RUN_RECORDS[number]))
    await run_daemon(tmp_path)
    await run_daemon(tmp_path)


OPEN_CONVERSATION = {
    "conversation": {"requesterKey": MAIN, "targetKey": MAIN, "request": "", "maxTurns": 2},
    "traceId": "t",
    "hops": 1,
}
CONVERSATION_RECORDS = [
    {"talkId": [], "status": "open"},
    {"talkId": "s1.1", "status": "open", "topic": 5},
    {"talkId": "s1.1", "status": "open", "topic": {**OPEN_CONVERSATION, "hops": int("9" * 400)}},
    {"talkId": "s1.1", "status": "open", "topic": {**OPEN_CONVERSATION, "requesterSessionId": "nobody"}},
    {"talkId": "s1.1", "status": "open", "topic": {**OPEN_CONVERSATION, "conversation": {"requesterKey": 5}}},
    {"talkId": "s1.1", "status": "open", "topic": OPEN_CONVERSATION},
]


@check_each("number", spread(range(len(CONVERSATION_RECORDS)), 4))
async def test_the_daemon_starts_twice_with_a_hostile_conversation_record(tmp_path: Path, number: int) -> None:
    write(tmp_path / "store", "s1", header("s1", MAIN), custom("talk", **CONVERSATION_RECORDS[number]))
    await run_daemon(tmp_path)
    await run_daemon(tmp_path)


async def test_the_daemon_starts_twice_with_a_copied_transcript_that_has_an_open_run_and_conversation(
    tmp_path: Path,
) -> None:
    run = custom("run", runId="s1.1", status="accepted", at=T, request={"text": "hi", "message": {"role": "user"}})
    lines = [header("s1", MAIN), run, custom("talk", talkId="s1.2", status="open")]
    write(tmp_path / "store", "s1", *lines)
    write(tmp_path / "store", "s1", *lines, agent="other")
    await run_daemon(tmp_path)
    await run_daemon(tmp_path)


async def test_the_daemon_starts_twice_with_a_conversation_and_its_run_both_open(tmp_path: Path) -> None:
    run = custom("run", runId="s1.1", status="accepted", at=T, request={"text": "hi", "message": {"role": "user"}})
    write(
        tmp_path / "store",
        "s1",
        header("s1", MAIN),
        run,
        custom("talk", talkId="s1.1", status="open", topic=OPEN_CONVERSATION),
    )
    await run_daemon(tmp_path)
    await run_daemon(tmp_path)


DELIVERY = {
    "deliveryId": "d1",
    "channel": "telegram",
    "to": "1",
    "sessionKey": MAIN,
    "text": "x",
    "title": "x",
    "createdAt": 5,
}


@check_each(
    "wrong",
    spread(
        [
            {"attempts": -100},
            {"attempts": int("9" * 400)},
            {"createdAt": int("9" * 400)},
            {"createdAt": []},
            {"text": "\0 \ud83d"},
            {"to": ["x"]},
            {"deliveryId": "../x"},
            {"failedAt": "x"},
            {"sessionKey": "x"},
            {"sessionKey": "agent:main"},
        ],
        4,
    ),
)
async def test_the_daemon_starts_with_a_hostile_delivery_in_the_outbox(tmp_path: Path, wrong: dict[str, Any]) -> None:
    outbox = tmp_path / "store" / "outbox"
    outbox.mkdir(parents=True, mode=0o700)
    (outbox / "d1.json").write_text(json.dumps({**DELIVERY, **wrong}))
    (outbox / "deep.json").write_text("[" * 100_000)
    (outbox / "folder.json").mkdir()
    (outbox / "link.json").symlink_to("d1.json")
    config = AGENTS.format(workspace=tmp_path / "w") + '[channels.telegram]\ncommand = ["true", "{to}", "{text}"]\n'
    found = await run_daemon(tmp_path, config)
    assert any("deep.json" in line for line in found)


def _put_link(path: Path) -> None:
    path.with_name("elsewhere").mkdir()
    path.symlink_to("elsewhere")


@check_each("name", ["outbox", "spawning", "backups"])
@check_each("put", [_put_link, Path.touch], ids=["link", "file"])
async def test_a_link_or_file_in_place_of_a_store_folder_is_reported_and_the_daemon_starts(
    tmp_path: Path, name: str, put: Callable[[Path], None]
) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    put(store / name)
    found = await run_daemon(tmp_path)
    assert any(line.startswith(f"{name}:") for line in found), found
    await run_daemon(tmp_path)


async def test_a_spawn_into_a_workspace_that_is_a_file_is_refused_and_the_next_start_succeeds(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("in the way")
    attachment = {"name": "a.txt", "content": "x"}
    config = AGENTS.format(workspace=tmp_path / "w") + "[tools.sessions_spawn.attachments]\nenabled = true\n"
    async with in_process_daemon(tmp_path, config) as daemon, daemon.connect() as client:
        for _ in range(2):
            error = await client.failure("sessions_spawn", task="x", attachments=[attachment])
            assert error["code"] == -32009, error
            assert error["message"].startswith("the workspace of agent main cannot be made: File exists")
            assert str(tmp_path) not in error["message"]
    assert not list((tmp_path / "store").glob("spawning/*"))
    # A note as an older daemon left it in this situation.
    (tmp_path / "store" / "spawning").mkdir(exist_ok=True)
    (tmp_path / "store" / "spawning" / CHILD_ID).write_text("main")
    await run_daemon(tmp_path, AGENTS.format(workspace=tmp_path / "w2"))
    assert not list((tmp_path / "store").glob("spawning/*"))


async def test_a_spawn_note_is_kept_for_a_later_start_while_the_workspace_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("in the way")
    note = tmp_path / "store" / "spawning" / CHILD_ID
    note.parent.mkdir(parents=True, mode=0o700)
    note.write_text("main\n")
    async with (
        in_process_daemon(tmp_path, AGENTS.format(workspace=tmp_path / "w")) as daemon,
        daemon.connect() as client,
    ):
        await client.call("ping")
    assert note.exists()
    (tmp_path / "w").unlink()
    await run_daemon(tmp_path)
    assert not note.exists()


async def test_the_daemon_works_when_the_workspace_of_an_ended_child_is_now_a_file(tmp_path: Path) -> None:
    child = f"agent:main:subagent:{CHILD_ID}"
    spawn = {"mode": "run", "cleanup": "delete", "requesterKey": MAIN, "announced": "posted", "attachments": {}}
    ended = custom("run", runId="s1.1", status="ok", at=T)
    begun = custom("run", runId="s1.1", status="accepted", at=T)
    write(tmp_path / "store", "s1", header("s1", child, spawnedBy=MAIN), custom("entry", spawn=spawn), begun, ended)
    (tmp_path / "w").write_text("in the way")
    config = AGENTS.format(workspace=tmp_path / "w")
    async with in_process_daemon(tmp_path, config) as daemon, daemon.connect() as client:
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert [row["key"] for row in (await client.call("sessions_list"))["sessions"]] == [child]


async def test_the_daemon_starts_when_a_folder_has_replaced_a_transcript_with_an_open_run(tmp_path: Path) -> None:
    run = custom("run", runId="s1.1", status="accepted", at=T, request={"text": "hi", "message": {"role": "user"}})
    file = write(tmp_path / "store", "s1", header("s1", MAIN), run, custom("talk", talkId="s1.2", status="open"))
    await run_daemon(tmp_path)
    index = tmp_path / "store" / "agents" / "main" / "sessions" / "sessions.json"
    assert index.exists()
    file.unlink()
    file.mkdir()
    await run_daemon(tmp_path)


@check_each(
    "usage",
    [
        {"input": None},
        {"input": None, "output": 5},
        {"input": "9"},
        {"input": 1e300, "output": 1},
        {"input": 3, "cost": []},
    ],
)
async def test_a_run_with_malformed_usage_succeeds_although_its_model_has_a_price(tmp_path: Path, usage: Any) -> None:
    async def act(_: Program, __: dict[str, Any]) -> Any:
        return {"reply": "done", "usage": usage, "model": "m"}

    config = attached_agents_config("worker", more="[models.pricing.m]\ninput = 3.0\noutput = 15.0\n")
    async with in_process_daemon(tmp_path, config) as there, agent(there, "worker", act), there.connect() as client:
        for _ in range(2):
            assert await client.say("agent:worker:main", "hello") == "done"
