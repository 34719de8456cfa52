"""`sessions_spawn` over every transport: what it answers, each refusal with its code, each limit on both sides."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.rows import check_each
from support.sampling import share_out
from support.single_calls import SINGLE_CALLS

CONFIG = """
[agents.defaults.subagents]
announce = "reply"
wakeRequester = false
maxSpawnDepth = 2

[models]
allow = ["m-1", "m-2"]

[tools.sessions_spawn.attachments]
maxFiles = 3
maxFileBytes = 10
maxTotalBytes = 24
retainOnSessionKeep = true

[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }
subagents = { allowAgents = ["helper", "absent", "boxed"] }

[[agents.list]]
id = "helper"
runtime = { type = "echo" }

[[agents.list]]
id = "stranger"
runtime = { type = "echo" }

[[agents.list]]
id = "absent"
runtime = { type = "attached" }

[[agents.list]]
id = "boxed"
runtime = { type = "attached" }
sandbox = { mode = "all" }
"""
A = {"name": "a.txt", "content": "a"}


@pytest.fixture(scope="module")
def spawn_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("spawning")).start(CONFIG)
    yield made
    made.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    share_out(metafunc, "spawn", sorted(SINGLE_CALLS))


@pytest.fixture
def spawn(request: pytest.FixtureRequest, spawn_daemon: Daemon) -> Call:
    """`spawn(by=token, **params)` over each transport in turn. CallFailed for an error."""
    road = SINGLE_CALLS[request.param]

    def ask(by: str | None = None, **params: Any) -> Any:
        answer = road(spawn_daemon, "sessiond", by, "sessions_spawn", {"task": "do it", **params})
        if "error" in answer:
            raise CallFailed(answer["error"])
        return answer["result"]

    return ask


def requester(daemon: Daemon, **token: Any) -> tuple[str, str]:
    """A session of its own and a token that speaks for it."""
    key = daemon.call("sessions.create", key=f"agent:main:test:{uuid4()}")["key"]
    return key, mint(daemon, key, **token)


def mint(daemon: Daemon, key: str, **token: Any) -> str:
    text: str = daemon.call("tokens.mint", sessionKey=key, scopes=["spawn", "list", "read"], **token)["token"]
    return text


def refusal(spawn: Call, **params: Any) -> tuple[int, str, str]:
    with pytest.raises(CallFailed) as refused:
        spawn(**params)
    error = refused.value.error
    return error["code"], error["data"].get("code"), error["message"]


def find_row(daemon: Daemon, key: str) -> dict[str, Any]:
    [found] = daemon.call("sessions_list", search=key, limit=1)["sessions"]
    assert isinstance(found, dict)
    return found


def test_a_spawn_is_accepted_and_runs_in_its_own_session(spawn: Call, spawn_daemon: Daemon) -> None:
    key, token = requester(spawn_daemon)
    label = str(uuid4())
    got = spawn(by=token, label=label, agentId="helper", model="m-1", thinking="HIGH")
    child = got["childSessionKey"]
    assert got == {"status": "accepted", "runId": got["runId"], "childSessionKey": child, "mode": "run"}
    assert child.startswith("agent:helper:subagent:")
    assert spawn_daemon.call("agent.wait", runId=got["runId"])["reply"] == "do it"
    found = find_row(spawn_daemon, child)
    assert (found["spawnedBy"], found["label"], found["model"]) == (key, label, "m-1")
    assert found["thinkingLevel"] == "high"
    assert find_row(spawn_daemon, key)["childSessions"] == [child]
    first = spawn_daemon.call("sessions_history", sessionKey=child)["messages"][0]
    assert first["provenance"] == {"kind": "inter_session", "sourceSessionKey": key, "sourceTool": "sessions_spawn"}


def test_a_spawn_by_the_owner_is_made_for_the_main_session(spawn: Call, spawn_daemon: Daemon) -> None:
    got = spawn()
    assert find_row(spawn_daemon, got["childSessionKey"])["spawnedBy"] == "agent:main:main"


def test_attachments_are_written_and_the_receipt_equals_the_manifest(spawn: Call, spawn_daemon: Daemon) -> None:
    _, token = requester(spawn_daemon)
    files = [
        {"name": "Grüße.txt", "content": "hällo", "mimeType": "text/plain"},
        {"name": "b.bin", "content": base64.b64encode(b"\0\xff").decode(), "encoding": "base64"},
        {"name": "empty", "content": "", "encoding": "base64"},
    ]
    got = spawn(by=token, attachments=files, attachAs={"mountPath": "/mnt//in"})
    receipt = got["attachments"]
    contents = ["hällo".encode(), b"\0\xff", b""]
    child_id = got["childSessionKey"].rpartition(":")[2]
    assert receipt == {
        "relDir": f".openclaw/attachments/{child_id}",
        "count": 3,
        "totalBytes": 8,
        "files": [
            {"name": file["name"], "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            | ({"mimeType": file["mimeType"]} if "mimeType" in file else {})
            for file, data in zip(files, contents, strict=True)
        ],
    }
    folder = spawn_daemon.store / "agents/main/workspace" / receipt["relDir"]
    assert json.loads((folder / "manifest.json").read_text()) == receipt
    assert [(folder / file["name"]).read_bytes() for file in files] == contents
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_in_cbor_attachment_content_may_be_bytes(spawn_daemon: Daemon) -> None:
    for road in ("cbor", "http-cbor", "ws-binary"):
        params = {"task": "x", "attachments": [{"name": "a", "content": bytes(range(10))}]}
        answer = SINGLE_CALLS[road](spawn_daemon, "sessiond", requester(spawn_daemon)[1], "sessions_spawn", params)
        receipt = answer["result"]["attachments"]
        folder = spawn_daemon.store / "agents/main/workspace" / receipt["relDir"]
        assert (folder / "a").read_bytes() == bytes(range(10))
        params = {"task": "x", "attachments": [{"name": "a", "content": bytes(11)}]}
        answer = SINGLE_CALLS[road](spawn_daemon, "sessiond", requester(spawn_daemon)[1], "sessions_spawn", params)
        assert answer["error"]["data"]["code"] == "attachments_file_bytes_exceeded"


REFUSED: dict[str, tuple[dict[str, Any], int, str | None, str]] = {
    "an agent id of no shape": ({"agentId": "../x"}, -32602, "agent_id_invalid", "no agent id"),
    "a session without a thread": ({"mode": "session"}, -32602, "mode_requires_thread", "needs thread=true"),
    "an agent that is not allowed": ({"agentId": "stranger"}, -32003, "agent_not_allowed", "stranger is not allowed"),
    "an agent that is not there": ({"agentId": "nobody"}, -32003, "agent_not_allowed", "nobody is not allowed"),
    "a sandbox that is off": ({"sandbox": "require"}, -32003, "sandbox_required", "needs an agent with a sandbox"),
    "a model nobody knows": ({"model": "m-3"}, -32602, "model_unknown", "not a known model"),
    "a thinking level nobody knows": ({"thinking": "deep"}, -32602, "thinking_invalid", "adaptive, xhigh"),
    "a thread without a channel": ({"thread": True}, -32006, "thread_unsupported", "attached channel with threads"),
    "acp": ({"runtime": "acp"}, -32006, "acp_unsupported", 'use runtime="subagent"'),
    "acp with files": ({"runtime": "acp", "attachments": [A]}, -32006, "attachments_unsupported", "leave them out"),
    "a bad name": ({"attachments": [{"name": "../x", "content": ""}]}, -32602, "attachments_invalid_name", "slash"),
    "two of a name": (
        {"attachments": [A, {"name": "A.TXT", "content": ""}]},
        -32602,
        "attachments_duplicate_name",
        "same name",
    ),
    "bad base64": (
        {"attachments": [{"name": "x", "content": "YQ", "encoding": "base64"}]},
        -32602,
        "attachments_invalid_base64",
        "padding",
    ),
    "a bad place": (
        {"attachments": [A], "attachAs": {"mountPath": "mnt"}},
        -32602,
        "attachments_invalid_mount_path",
        "absolute",
    ),
    "a negative limit": ({"runTimeoutSeconds": -1}, -32602, None, "a number of at least 0"),
    "no task": ({"task": " "}, -32602, None, "$.task"),
    "an empty key": ({"idempotencyKey": ""}, -32602, None, "1 to 256"),
    "a long key": ({"idempotencyKey": "k" * 257}, -32602, None, "1 to 256"),
    "an unknown parameter": ({"prioritty": 1}, -32602, None, "prioritty"),
    "a channel's to": ({"to": "+49"}, -32602, None, "`$.to`: there is no such parameter"),
    "a channel": ({"channel": "telegram"}, -32602, None, "`$.channel`: there is no such parameter"),
    "a thread's id": ({"threadId": "1"}, -32602, None, "`$.threadId`: there is no such parameter"),
    "a word of another kind": ({"cleanup": "maybe"}, -32602, None, "$.cleanup"),
}


@check_each("case", sorted(REFUSED))
def test_every_refusal_has_its_own_code_and_sentence_and_creates_nothing(
    spawn: Call, spawn_daemon: Daemon, case: str
) -> None:
    params, code, reason, words = REFUSED[case]
    key, token = requester(spawn_daemon)
    got = refusal(spawn, by=token, **params)
    assert (got[0], got[1]) == (code, reason)
    assert words in got[2]
    assert "childSessions" not in find_row(spawn_daemon, key)


ORDER = [
    ({"agentId": "../x"}, "agent_id_invalid"),
    ({"mode": "session"}, "mode_requires_thread"),
    ({"agentId": "stranger"}, "agent_not_allowed"),
    ({"sandbox": "require"}, "sandbox_required"),
    ({"model": "m-3"}, "model_unknown"),
    ({"thinking": "deep"}, "thinking_invalid"),
    ({"thread": True}, "thread_unsupported"),
    ({"attachments": [{"name": "..", "content": "x" * 11}]}, "attachments_invalid_name"),
    ({"runtime": "acp"}, "acp_unsupported"),
]


def test_of_two_reasons_to_refuse_the_first_in_documented_order_is_reported(spawn_daemon: Daemon) -> None:
    """Tries every pair of reasons, except pairs that need different values of the same parameter."""
    _, token = requester(spawn_daemon)
    for first, (params, code) in enumerate(ORDER):
        for later, _ in ORDER[first + 1 :]:
            if set(params) & set(later) or {"mode", "thread"} <= set(params) | set(later):
                continue
            asked = {"task": "x", **params, **later}
            answer = SINGLE_CALLS["ndjson"](spawn_daemon, "sessiond", token, "sessions_spawn", asked)
            assert answer["error"]["data"]["code"] == code, asked


def test_attachments_are_accepted_up_to_their_limits_and_not_beyond(spawn: Call, spawn_daemon: Daemon) -> None:
    _, token = requester(spawn_daemon)

    def files(*sizes: int) -> dict[str, Any]:
        return {"attachments": [{"name": f"{n}", "content": "x" * size} for n, size in enumerate(sizes)]}

    assert spawn(by=token, **files(10, 10, 4))["attachments"]["totalBytes"] == 24
    assert refusal(spawn, by=token, **files(1, 1, 1, 1))[:2] == (-32005, "attachments_file_count_exceeded")
    assert refusal(spawn, by=token, **files(11))[:2] == (-32005, "attachments_file_bytes_exceeded")
    assert refusal(spawn, by=token, **files(10, 10, 5))[:2] == (-32005, "attachments_total_bytes_exceeded")
    with pytest.raises(CallFailed) as refused:
        spawn(by=token, **files(11))
    config = "tools.sessions_spawn.attachments.maxFileBytes"
    assert refused.value.error["data"] == {
        "type": "limit_exceeded",
        "code": "attachments_file_bytes_exceeded",
        "field": "$.attachments[0].content",
        "limit": config,
        "value": 10,
        "actual": 11,
    }


def test_running_children_are_limited_and_ended_ones_make_room(spawn: Call, spawn_daemon: Daemon) -> None:
    key, token = requester(spawn_daemon)
    children = [spawn(by=token, agentId="absent")["childSessionKey"] for _ in range(5)]
    code, reason, words = refusal(spawn, by=token)
    assert (code, reason) == (-32003, "spawn_children_exceeded")
    assert "5 children running" in words and "maxChildrenPerAgent is 5" in words
    spawn_daemon.call("chat.abort", sessionKey=children[0])
    assert spawn(by=token)["status"] == "accepted"
    spawn_daemon.call("sessions.kill", key=key)


def test_depth_is_counted_along_the_lineage(spawn: Call, spawn_daemon: Daemon) -> None:
    _, token = requester(spawn_daemon)
    child = spawn(by=token)["childSessionKey"]
    grandchild = spawn(by=mint(spawn_daemon, child))["childSessionKey"]
    assert find_row(spawn_daemon, grandchild)["spawnedBy"] == child
    code, reason, words = refusal(spawn, by=mint(spawn_daemon, grandchild))
    assert (code, reason) == (-32003, "spawn_depth_exceeded")
    assert "at depth 2" in words and "maxSpawnDepth is 2" in words


def test_a_sandboxed_requester_can_only_spawn_sandboxed_children(spawn: Call, spawn_daemon: Daemon) -> None:
    key, token = requester(spawn_daemon, sandboxed=True)
    assert refusal(spawn, by=token)[:2] == (-32003, "sandbox_inheritance")
    assert refusal(spawn, by=token, sandbox="require")[:2] == (-32003, "sandbox_inheritance")
    boxed = spawn(by=token, agentId="boxed", sandbox="require")
    assert boxed["childSessionKey"].startswith("agent:boxed:subagent:")
    # A sandboxed child stays sandboxed, even for a token without that mark.
    inner = refusal(spawn, by=mint(spawn_daemon, boxed["childSessionKey"]), agentId="main")
    assert inner[1] in ("agent_not_allowed", "sandbox_inheritance")
    spawn_daemon.call("sessions.kill", key=key)


def test_the_scope_is_checked_before_anything_else(spawn: Call, spawn_daemon: Daemon) -> None:
    key, _ = requester(spawn_daemon)
    token = spawn_daemon.call("tokens.mint", sessionKey=key, scopes=["send", "read", "list"])["token"]
    assert refusal(spawn, by=token, agentId="../x", nonsense=1)[0] == -32003


def test_the_same_idempotency_key_gives_the_same_child(spawn: Call, spawn_daemon: Daemon) -> None:
    key, token = requester(spawn_daemon)
    asked = {"idempotencyKey": "k", "attachments": [A], "label": str(uuid4())}
    first = spawn(by=token, **asked)
    assert spawn(by=token, **asked) == first
    code, _, words = refusal(spawn, by=token, idempotencyKey="k", attachments=[A])
    assert code == -32004 and "another payload" in words
    assert find_row(spawn_daemon, key)["childSessions"] == [first["childSessionKey"]]


def test_the_same_idempotency_key_gives_the_same_child_after_a_restart(daemon: Daemon) -> None:
    daemon.start(CONFIG)
    asked: dict[str, Any] = {"task": "x", "idempotencyKey": "k", "attachments": [A], "cleanup": "delete"}
    first = daemon.call("sessions_spawn", **asked)
    archive = daemon.store / "agents/main/sessions/archive"
    daemon.wait_for(lambda: archive.exists() and list(archive.iterdir()), "the child is not archived")
    daemon.kill()
    daemon.start()
    assert daemon.call("sessions_spawn", **asked) == first
    assert daemon.failure("sessions_spawn", **asked | {"task": "y"})["code"] == -32004


def test_with_attachments_disabled_an_empty_list_is_still_accepted(tmp_path: Path, daemon: Daemon) -> None:
    daemon.start("[tools.sessions_spawn.attachments]\nenabled = false\n")
    refused = daemon.failure("sessions_spawn", task="x", attachments=[A])
    assert (refused["code"], refused["data"]["code"]) == (-32003, "attachments_disabled")
    assert daemon.call("sessions_spawn", task="x", attachments=[])["status"] == "accepted"


def test_attachments_are_accepted_up_to_the_default_limits_and_not_beyond(daemon: Daemon) -> None:
    daemon.start()
    mebibyte = 1_048_576
    full = [{"name": str(n), "content": "x" * mebibyte} for n in range(5)]
    assert daemon.call("sessions_spawn", task="x", attachments=full)["attachments"]["totalBytes"] == 5_242_880
    more = [*full, {"name": "one more", "content": "x"}]
    refused = daemon.failure("sessions_spawn", task="x", attachments=more)
    assert refused["data"]["code"] == "attachments_total_bytes_exceeded"
    fifty = [{"name": str(n), "content": ""} for n in range(50)]
    assert daemon.call("sessions_spawn", task="x", attachments=fifty)["attachments"]["count"] == 50
    refused = daemon.failure("sessions_spawn", task="x", attachments=[*fifty, A])
    assert refused["data"]["code"] == "attachments_file_count_exceeded"
    big = [{"name": "x", "content": "x" * (mebibyte + 1)}]
    assert daemon.failure("sessions_spawn", task="x", attachments=big)["data"]["value"] == mebibyte


def test_a_task_too_long_for_a_record_is_refused_with_the_limit(daemon: Daemon) -> None:
    daemon.start("[limits]\nmaxRecordBytes = 8192\n")
    assert daemon.call("sessions_spawn", task="x" * 4096)["status"] == "accepted"
    refused = daemon.failure("sessions_spawn", task="x" * 4097)
    assert (refused["code"], refused["data"]["limit"]) == (-32005, "limits.maxRecordBytes")
