"""`sessions_spawn` with `runtime: "acp"` and `resumeSessionId` on every road, with an agent that speaks ACP by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import acp_agent_path
from support.continued_sessions import ID, KEY, ClaudeHome
from support.foreign_daemon import daemon as foreign_daemon
from support.real_daemon import Daemon
from support.rows import check_each
from support.single_calls import SINGLE_CALLS

from sessiond.model.caller import Caller
from sessiond.runs.run import payload_hash

COMMAND = json.dumps([sys.executable, "-S", str(acp_agent_path.PATH), "load"])
CONFIG = f"""
[agents.defaults.subagents]
announce = "reply"
wakeRequester = false
maxChildrenPerAgent = 100

[acp]
defaultAgent = "hand"

[[agents.list]]
id = "main"
default = true
runtime = {{ type = "echo" }}
subagents = {{ allowAgents = ["*"] }}

[[agents.list]]
id = "hand"
runtime = {{ type = "acp", command = {COMMAND} }}

[[agents.list]]
id = "other"
runtime = {{ type = "acp", command = {COMMAND} }}
subagents = {{ allowAgents = ["hand"] }}

[[agents.list]]
id = "broken"
runtime = {{ type = "acp", command = ["/no/such/agent"] }}
"""


@pytest.fixture(scope="module")
def acp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(Path(tmp_path_factory.mktemp("acp-spawn")))
    daemon.start(CONFIG)
    yield daemon
    daemon.kill()


def native_records(daemon: Daemon, key: str) -> list[dict[str, Any]]:
    return [one["data"] for one in daemon.records(key) if one.get("customType") == "sessiond/native"]


def reply_of(daemon: Daemon, accepted: dict[str, Any]) -> str:
    ended = daemon.call("agent.wait", runId=accepted["runId"], timeoutMs=60_000)
    assert ended["status"] == "ok", ended
    return str(ended["reply"])


def test_a_child_is_of_the_default_acp_agent_and_another_goes_on_with_its_session(acp: Daemon) -> None:
    first = acp.call("sessions_spawn", task="hello", runtime="acp")
    child = first["childSessionKey"]
    assert child.startswith("agent:hand:subagent:")
    assert reply_of(acp, first) == "hello"
    (native,) = native_records(acp, child)
    asked: dict[str, Any] = {"task": "known", "runtime": "acp", "resumeSessionId": native["nativeId"]}
    texts = ["hello"]
    second = acp.call("sessions_spawn", **asked, idempotencyKey="once")
    texts.append("known")
    assert reply_of(acp, second) == " | ".join(texts)
    assert acp.call("sessions_spawn", **asked, idempotencyKey="once") == second
    # It had to be that session until it was resumed once.
    required = {"nativeId": native["nativeId"], "required": True}
    assert native_records(acp, second["childSessionKey"]) == [required, {"nativeId": native["nativeId"]}]
    over_http = SINGLE_CALLS["http-json"](acp, "sessiond", None, "sessions_spawn", asked)["result"]
    texts.append("known")
    assert reply_of(acp, over_http) == " | ".join(texts)
    done = acp.cli("spawn", "--runtime", "acp", "--resume-session", native["nativeId"], "--wait", "known")
    texts.append("known")
    assert (done.returncode, done.stdout) == (0, " | ".join(texts) + "\n"), done.stderr


def test_a_request_without_the_new_parameter_is_the_same_as_before_there_was_one(acp: Daemon) -> None:
    """An idempotency key that an older release has stored is compared by this hash."""
    accepted = acp.call("sessions_spawn", task="x", idempotencyKey="as before")
    asked = {"task": "x", "runtime": "subagent", "sandbox": "inherit", "thread": False, "attachments": []}
    unset = ("label", "agentId", "model", "thinking", "runTimeoutSeconds", "mode", "cleanup", "attachAs")
    runs = [one["data"] for one in acp.records(accepted["childSessionKey"]) if one.get("customType") == "sessiond/run"]
    assert runs[0]["payload"] == payload_hash({**asked, **dict.fromkeys(unset)})


def test_a_run_of_an_acp_agent_spawns_over_mcp(acp: Daemon) -> None:
    key = "agent:other:main"
    acp.call("sessions.create", key=key)
    spawned = acp.reply(key, 'mcp sessions_spawn {"task": "hello", "runtime": "acp"}')["reply"]
    assert "agent:hand:subagent:" in spawned
    refused = acp.reply(key, 'mcp sessions_spawn {"task": "x", "runtime": "acp", "resumeSessionId": "gone"}')["reply"]
    assert "'gone'" in refused and "subagent:" not in refused


@check_each(
    ("params", "code", "reason", "sentence"),
    [
        ({"runtime": "acp", "resumeSessionId": "gone"}, -32002, "native_session_not_found", "no session gone"),
        ({"resumeSessionId": "gone"}, -32602, "resume_requires_acp", 'needs the runtime "acp"'),
        ({"runtime": "acp", "agentId": "main"}, -32006, "acp_unsupported", "agentId: hand, other, broken"),
        (
            {"runtime": "acp", "attachments": [{"name": "a", "content": ""}], "resumeSessionId": "gone"},
            -32006,
            "attachments_unsupported",
            "leave them out",
        ),
        ({"runtime": "acp", "resumeSessionId": " "}, -32602, None, "$.resumeSessionId"),
        ({"runtime": "acp", "resumeSessionId": "x" * 513}, -32602, None, "$.resumeSessionId"),
        (
            {"runtime": "acp", "agentId": "broken", "resumeSessionId": "gone"},
            -32006,
            "agent_unavailable",
            "agent broken cannot be asked for its session 'gone': ",
        ),
    ],
)
def test_a_refused_spawn_makes_nothing(
    params: dict[str, Any], code: int, reason: str | None, sentence: str, acp: Daemon
) -> None:
    before = children(acp)
    answer = SINGLE_CALLS["ndjson"](acp, "sessiond", None, "sessions_spawn", {"task": "x", **params})
    error = answer["error"]
    assert (error["code"], error["data"].get("code")) == (code, reason), error
    assert sentence in error["message"]
    if reason == "native_session_not_found":
        assert error["data"]["resumeSessionId"] == "gone" and "'gone'" in error["message"]
    assert children(acp) == before


def children(daemon: Daemon) -> list[str]:
    return [row["key"] for row in daemon.rows() if ":subagent:" in row["key"]]


def claude(home: ClaudeHome) -> str:
    command = [sys.executable, "-S", str(acp_agent_path.PATH), "load"]
    runtime = f'{{ type = "acp", preset = "claude", command = {json.dumps(command)} }}'
    return (
        '[[agents.list]]\nid = "main"\ndefault = true\nruntime = { type = "echo" }\n'
        'subagents = { allowAgents = ["*"], announce = "reply" }\n[tools.sessions]\nvisibility = "self"\n'
        f'[[agents.list]]\nid = "worker"\nworkspace = {json.dumps(str(home.workspace))}\nruntime = {runtime}\n'
        f'[[agents.list]]\nid = "plain"\nworkspace = {json.dumps(str(home.project))}\n'
        f'runtime = {{ type = "acp", command = {json.dumps(command)} }}\n'
    )


SPAWN = {"task": "known", "runtime": "acp", "agentId": "worker"}


async def test_a_session_of_the_program_is_resumed_in_its_own_folder(tmp_path: Path) -> None:
    home = ClaudeHome(tmp_path)
    home.write("typed by a person")
    home.write("another", native_id=f"{ID[:9]}2{ID[10:]}")
    (home.project / "native.json").write_text(json.dumps({ID: ["typed by a person"]}))
    async with foreign_daemon(tmp_path, claude(home)) as (parts, owner):
        accepted = await owner.call("sessions_spawn", **SPAWN, resumeSessionId=ID)
        ended = await owner.call("agent.wait", runId=accepted["runId"], timeoutMs=60_000)
        assert ended["reply"] == "typed by a person | known", ended
        child = parts.services.store.catalog.by_key[accepted["childSessionKey"]]
        assert (child.entry.cwd, child.entry.native_session_id) == (str(home.project), ID)
        # Lists show the beginning of the id, and its key.
        error = await owner.failure("sessions_spawn", **SPAWN, resumeSessionId=ID[:8])
        assert f"2 ids begin so: {ID}, " in error["message"]
        for shown in (ID[:10], f"{KEY[:17]}…", KEY):
            accepted = await owner.call("sessions_spawn", **SPAWN, resumeSessionId=shown)
            child = parts.services.store.catalog.by_key[accepted["childSessionKey"]]
            assert child.entry.native_session_id == ID
            await owner.call("agent.wait", runId=accepted["runId"], timeoutMs=60_000)
        # Whoever may not see the session of the program is told what is told of an unknown one.
        assert KEY in parts.services.store.catalog.by_key
        caller = Caller(kind="token", scopes=frozenset({"spawn"}), session_key="agent:main:main", token_id="t")
        async with parts.connect(caller) as run:
            for agent_id in ("worker", "plain"):  # of `plain` nobody knows that it is Claude Code
                for native_id in (ID, ID[:10], "0e821bfa-0000-4222-8333-0123456789ab"):
                    asked = {**SPAWN, "agentId": agent_id, "resumeSessionId": native_id}
                    error = await run.failure("sessions_spawn", **asked)
                    assert error["data"]["code"] == "native_session_not_found", error
