"""`sessiond mcp` with the official client: every tool, errors, waits, progress, and restarts of the daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from support.foreign_sessions import key_of, pi_file
from support.mcp_client import PATIENCE_S, Agent, agent, server
from support.real_daemon import Daemon

TOOLS = [
    "sessions_list",
    "sessions_history",
    "sessions_send",
    "sessions_spawn",
    "agents_list",
    "sessions_search",
    "sessions_wait",
    "sessions_inbox",
]
OWN = "agent:main:mcp:tester"


def fields(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: data[name] for name in names}


async def wait_until(daemon: Daemon, condition: Callable[[], object], what: str) -> None:
    await trio.to_thread.run_sync(daemon.wait_for, condition, what)


async def test_without_a_daemon_tools_are_listed_and_calls_report_that_it_is_not_running(daemon: Daemon) -> None:
    async with agent(daemon) as client:
        listed = (await client.session.list_tools()).tools
        said = await client.use("sessions_list")
        assert said.error
        assert said.text.startswith("sessiond is not running (")
        assert "sessiond serve" in said.text
        daemon.start()
        assert (await client.data("sessions_list"))["count"] == 1
    assert [tool.name for tool in listed] == TOOLS
    for tool in listed:
        assert tool.title and tool.description
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        # An output schema would be useless: clients do not pass it on to the model.
        assert tool.output_schema is None
    hints = {tool.name: tool.annotations for tool in listed}
    assert {name for name, hint in hints.items() if not hint.read_only_hint} == {"sessions_send", "sessions_spawn"}
    assert {hint.destructive_hint for hint in hints.values()} == {False}
    schemas = {tool.name: tool.input_schema for tool in listed}
    assert list(schemas["sessions_wait"]["properties"]) == ["runId", "timeoutSeconds"]
    assert list(schemas["sessions_inbox"]["properties"]) == ["wait"]
    assert schemas["sessions_history"]["required"] == ["sessionKey"]


async def test_every_tool_answers_with_text_and_with_data(running: Daemon) -> None:
    running.reply("main", "the heron is grey")
    async with agent(running) as client:
        await client.session.list_tools()
        # Null is the same as an omitted argument.
        rows = (await client.data("sessions_list", messageLimit=2, label=None, includeArchived=None))["sessions"]
        assert {"main", OWN} <= {row["key"] for row in rows}
        history = await client.use("sessions_history", sessionKey="main")
        assert history.text.splitlines() == [
            "agent:main:main: 2 messages",
            "user: the heron is grey",
            "assistant: the heron is grey",
        ]
        found = await client.data("sessions_search", query="HERON")
        assert [match["role"] for match in found["matches"]] == ["assistant", "user"]
        asked = {"query": "HERON", "since": 1, "includeArchived": True}
        first = await client.use("sessions_search", **asked, limit=1)
        assert first.text.splitlines()[0] == f"1 match; more with cursor {first.data['nextCursor']}"
        rest = await client.data("sessions_search", **asked, cursor=first.data["nextCursor"])
        assert [match["role"] for match in rest["matches"]] == ["user"]
        agents = await client.data("agents_list")
        assert agents["requester"] == "main"
        sent = await client.use("sessions_send", sessionKey="main", message="and the wren?")
        assert (sent.text, sent.data["reply"]) == ("and the wren?", "and the wren?")
        assert fields(sent.data, "status", "sessionKey") == {"status": "ok", "sessionKey": "agent:main:main"}
        spawned = await client.data("sessions_spawn", task="look", attachments=[{"name": "a.txt", "content": "a"}])
        ended = await client.use("sessions_wait", runId=spawned["runId"])
        assert (ended.data["status"], ended.data["sessionKey"]) == ("ok", spawned["childSessionKey"])
        # A reply that was returned by the call is not in the inbox too.
        inbox = await client.data("sessions_inbox", wait=30)
        assert [message["from"] for message in inbox["messages"]] == [spawned["childSessionKey"]]


async def test_a_reply_that_nobody_waited_for_is_put_into_the_inbox(running: Daemon) -> None:
    running.call("sessions.create", key="main")
    async with agent(running) as client:
        accepted = await client.data("sessions_send", sessionKey="main", message="later is fine", timeoutSeconds=0)
        assert accepted["status"] == "accepted"
        inbox = await client.data("sessions_inbox", wait=30)
        assert [fields(message, "from", "text") for message in inbox["messages"]] == [
            {"from": "agent:main:main", "text": "later is fine"}
        ]


async def test_an_error_has_the_daemons_message(running: Daemon) -> None:
    wrong: list[tuple[str, str, dict[str, Any]]] = [
        ("sessions_history", "sessions_history", {"sessionKey": "agent:main:nowhere"}),
        ("sessions_history", "sessions_history", {"sessionKey": "main", "limits": 3}),
        ("sessions_spawn", "sessions_spawn", {"task": "x", "agentId": "NO!"}),
        ("sessions_send", "sessions_send", {"message": "to nobody"}),
        ("sessions_send", "sessions_send", {"sessionKey": "current", "message": "x", "timeoutSeconds": "soon"}),
        ("sessions_wait", "agent.wait", {"runId": "nothing.such"}),
        ("sessions_inbox", "sessions_inbox", {"cursor": "12"}),
    ]
    async with agent(running) as client:
        await client.data("sessions_list")
        token = running.call("tokens.mint", sessionKey=OWN, scopes=["list", "read", "send", "spawn"])["token"]
        for tool, method, arguments in wrong:
            said = await client.use(tool, **arguments)
            with running.connect() as wire:
                wire.call("initialize", protocol=1, client={"name": "test"}, token=token)
                error = wire.ask(method, **arguments)["error"]
            assert (said.error, said.text, said.data) == (True, error["message"], None)
            what = {"code": error["code"], "type": error["data"]["type"]}
            assert said.meta is not None and fields(said.meta["sessiond/error"], "code", "type") == what
        unknown = await client.use("sessions_guess")
        assert unknown.error
        assert all(name in unknown.text for name in TOOLS)


async def test_a_client_of_the_newest_protocol_is_listed_before_it_has_used_any_tool(running: Daemon) -> None:
    from mcp import types
    from mcp.client.client import Client
    from mcp.client.stdio import stdio_client

    info = types.Implementation(name="Claude Code (vscode)", version="1")
    own = "agent:main:mcp:claude-code-vscode"
    with trio.fail_after(PATIENCE_S):
        async with Client(stdio_client(server(running)), client_info=info) as client:
            await client.list_tools()
            await wait_until(running, lambda: own in {row["key"] for row in running.rows()}, "the session is not there")
            result = await client.call_tool("sessions_inbox", {})
    assert result.structured_content["sessionKey"] == own


async def test_the_session_option_sets_the_session_that_the_server_speaks_for(daemon: Daemon) -> None:
    daemon.start()  # the default visibility: the session itself and those that it spawned
    daemon.reply("main", "a secret")
    async with agent(daemon, "Tester", "--session", "mcp:reviewer") as client:
        listed = await client.data("sessions_list")
        assert [row["key"] for row in listed["sessions"]] == ["agent:main:mcp:reviewer"]
        assert listed["visibility"] == "tree"
        assert (await client.use("sessions_history", sessionKey="main")).error
        assert (await client.data("sessions_search", query="secret"))["matches"] == []


async def test_an_attachment_given_by_path_is_read_by_the_server(running: Daemon, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a heron")
    (tmp_path / "pipe").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "pipe")
    async with agent(running) as client:
        named = [{"path": str(tmp_path / "notes.txt")}, {"path": str(tmp_path / "notes.txt"), "name": "b.txt"}]
        spawned = await client.data("sessions_spawn", task="look", attachments=named)
        assert [file["name"] for file in spawned["attachments"]["files"]] == ["notes.txt", "b.txt"]
        assert {file["bytes"] for file in spawned["attachments"]["files"]} == {7}
        for path, why in (("nowhere", "No such file"), ("pipe", "not a regular file"), (".", "Is a directory")):
            said = await client.use("sessions_spawn", task="x", attachments=[{"path": str(tmp_path / path)}])
            assert (said.error and why in said.text) or "not a regular file" in said.text


async def test_a_token_in_the_environment_determines_session_and_scopes(running: Daemon, tmp_path: Path) -> None:
    running.call("sessions.create", key="agent:main:other")
    file = tmp_path / "token"
    file.write_text(running.call("tokens.mint", sessionKey="agent:main:other", scopes=["list"])["token"])
    # The session option has no effect beside it.
    async with agent(running, "Tester", "--session", "main", SESSIOND_TOKEN_FILE=str(file)) as client:
        said = await client.use("sessions_inbox")
        assert said.error and "scope" in said.text
        keys = {row["key"] for row in (await client.data("sessions_list"))["sessions"]}
    assert keys == {"agent:main:other"}


async def test_its_token_is_valid_for_its_session_only_and_is_shown_nowhere(running: Daemon) -> None:
    async with agent(running) as client:
        await client.data("sessions_list")
        (token,) = running.call("tokens.list")["tokens"]
        assert fields(token, "sessionKey", "scopes", "sandboxed", "revoked") == {
            "sessionKey": OWN,
            "scopes": ["list", "read", "send", "spawn"],
            "sandboxed": False,
            "revoked": False,
        }
        # How every token begins: COSE_Sign1 in base64url.
        assert "0oRDoQEnoE" not in running.log.read_text()
        running.call("tokens.revoke", id=token["id"])
        assert (await client.data("sessions_list"))["count"] == 1
        assert [one["revoked"] for one in running.call("tokens.list")["tokens"]] == [False, True]
    # No valid token is left behind.
    assert all(one["revoked"] for one in running.call("tokens.list")["tokens"])


async def test_progress_is_reported_during_a_wait(running: Daemon) -> None:
    seen: list[tuple[float, float | None, str | None]] = []
    enough = trio.Event()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))
        if len(seen) == 2:
            enough.set()

    async with agent(running) as client, trio.open_nursery() as nursery:

        async def wait() -> None:
            await client.session.call_tool("sessions_inbox", {"wait": 50}, progress_callback=progress)

        nursery.start_soon(wait)
        await enough.wait()
        nursery.cancel_scope.cancel()
    assert seen[0] == (seen[0][0], 50, "waiting, 0 of 50 s")
    assert seen[0][0] < seen[1][0]


async def test_a_cancelled_wait_is_cancelled_in_the_daemon_too(running: Daemon) -> None:
    async with agent(running) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.session.call_tool, "sessions_inbox", {"wait": 3600})
            await wait_until(running, lambda: _waiting(running), "nobody waits")
            nursery.cancel_scope.cancel()
        await wait_until(running, lambda: not _waiting(running), "the wait goes on")
        assert (await client.data("sessions_inbox"))["messages"] == []


def _waiting(daemon: Daemon) -> bool:
    return bool(daemon.call("daemon.status")["subscribers"])


async def test_a_cancelled_send_leaves_its_run_going(daemon: Daemon) -> None:
    daemon.start(
        '[tools.sessions]\nvisibility = "agent"\n[[agents.list]]\nid = "main"\nruntime = { type = "attached" }\n'
    )
    daemon.call("sessions.create", key="main")
    async with agent(daemon) as client:
        async with trio.open_nursery() as nursery:
            send = {"sessionKey": "main", "message": "work", "timeoutSeconds": 600}
            nursery.start_soon(client.session.call_tool, "sessions_send", send)
            await wait_until(daemon, lambda: _queued(daemon), "nothing was sent")
            nursery.cancel_scope.cancel()
        assert (await client.data("sessions_list"))["count"] == 2
    assert _queued(daemon)


def _queued(daemon: Daemon) -> bool:
    return any(row["key"] == "main" and row.get("queuedRuns") for row in daemon.rows())


async def test_the_server_reconnects_after_the_daemon_was_killed_and_a_wait_goes_on(running: Daemon) -> None:
    got: list[Any] = []

    async def wait(client: Agent) -> None:
        got.append(await client.data("sessions_inbox", wait=50))

    async with agent(running) as client:
        before = await client.data("sessions_list")
        running.kill()
        running.start()
        assert (await client.data("sessions_list"))["sessions"] == before["sessions"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, client)
            await wait_until(running, lambda: _waiting(running), "nobody waits")
            running.kill()
            running.start()
            running.call("chat.send", sessionKey=OWN, message="back again")
    assert [message["text"] for message in got[0]["messages"]] == ["back again"]


async def test_two_clients_exchange_messages_over_a_restart_without_loss(running: Daemon) -> None:
    async with agent(running, "Ada") as ada, agent(running, "Bea") as bea:
        await bea.data("sessions_inbox")
        hello = await ada.data("sessions_send", sessionKey="agent:main:mcp:bea", message="hello Bea")
        assert fields(hello, "status", "reason", "sessionKey") == {
            "status": "accepted",
            "reason": "inbox",
            "sessionKey": "agent:main:mcp:bea",
        }
        running.kill()
        running.start()
        await ada.data("sessions_send", sessionKey="agent:main:mcp:bea", message="are you there?")
        page = await bea.data("sessions_inbox")
        assert [fields(message, "from", "text") for message in page["messages"]] == [
            {"from": "agent:main:mcp:ada", "text": "hello Bea"},
            {"from": "agent:main:mcp:ada", "text": "are you there?"},
        ]
        await bea.data("sessions_send", sessionKey=page["messages"][0]["from"], message="hello Ada")
        running.kill()
        running.start()
        answer = await ada.use("sessions_inbox", wait=30)
        assert [fields(message, "from", "text") for message in answer.data["messages"]] == [
            {"from": "agent:main:mcp:bea", "text": "hello Ada"}
        ]
        assert "--- from agent:main:mcp:bea" in answer.text and answer.text.endswith("hello Ada")
        # Each client has read what it was shown, and no message is returned twice.
        assert (await bea.data("sessions_inbox"))["messages"] == []
        assert (await ada.data("sessions_inbox"))["messages"] == []


async def test_messages_read_in_one_window_are_not_returned_in_another_or_after_a_restart(running: Daemon) -> None:
    running.call("sessions.create", key="mcp:tester")
    for number in range(60):
        running.call("chat.send", sessionKey=OWN, message=f"number {number}")

    async def wait_for_unread(count: int) -> None:
        """An answer counts as read when its window has written it and told the daemon, a moment after it arrives."""

        def is_marked() -> bool:
            return len(running.call("sessions_inbox", sessionKey=OWN)["messages"]) == count

        await wait_until(running, is_marked, "it was not marked as read")

    async with agent(running) as one, agent(running) as other:
        first = await one.use("sessions_inbox")
        await wait_for_unread(10)
        assert first.text.splitlines()[0] == f"50 messages to {OWN}; there are more: call again"
        rest = await other.data("sessions_inbox")
        assert [message["text"] for message in rest["messages"]] == [f"number {number}" for number in range(50, 60)]
        await wait_for_unread(0)
        assert (await one.data("sessions_inbox"))["messages"] == []
    running.kill()
    running.start()
    async with agent(running) as later:
        assert (await later.data("sessions_inbox"))["messages"] == []


def test_a_single_call_is_answered_and_marked_read_though_input_closes_at_once(running: Daemon) -> None:
    """Some programs start the server for one call and close its standard input at once."""
    running.call("sessions.create", key="mcp:client")
    running.call("chat.send", sessionKey="mcp:client", message="hello")
    call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sessions_inbox"}}\n'
    command = [sys.executable, "-m", "sessiond", "mcp"]
    answers = []
    for _ in range(2):
        done = subprocess.run(
            command, check=True, input=call, env=running.environ, capture_output=True, timeout=PATIENCE_S
        )
        answers.append(json.loads(done.stdout)["result"]["structuredContent"])
    assert [[message["text"] for message in answer["messages"]] for answer in answers] == [["hello"], []]


IN_A_RUN = """
import json, os, sys
import mcp.types as types, trio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main():
    env = {name: value for name, value in os.environ.items() if name.startswith("SESSIOND_") or name == "PATH"}
    parameters = StdioServerParameters(command=sys.executable, args=["-m", "sessiond", "mcp"], env=env)
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        inbox = (await session.call_tool("sessions_inbox", {})).structured_content
        message = {"sessionKey": "agent:main:mcp:tester", "message": "from a run"}
        sent = await session.call_tool("sessions_send", message)
        print(json.dumps({"own": inbox["sessionKey"], "sent": sent.structured_content["status"]}), end="")

sys.stdin.read()
trio.run(main)
"""


async def test_inside_a_run_the_server_speaks_for_the_runs_session(daemon: Daemon) -> None:
    script = daemon.folder / "agent.py"
    script.write_text(IN_A_RUN)
    daemon.start(
        '[tools.sessions]\nvisibility = "agent"\n[[agents.list]]\nid = "main"\n'
        f'runtime = {{ type = "exec", command = ["{sys.executable}", "{script}"], '
        f'env = {{ PYTHONPATH = "{Path(__file__).parents[2]}" }} }}\n'
    )
    async with agent(daemon) as client:
        await client.data("sessions_inbox")
        ended = await trio.to_thread.run_sync(daemon.reply, "agent:main:desk", "go")
        assert ended["reply"] == '{"own": "agent:main:desk", "sent": "accepted"}', ended
        inbox = await client.data("sessions_inbox", wait=30)
    assert [fields(message, "from", "text") for message in inbox["messages"]] == [
        {"from": "agent:main:desk", "text": "from a run"}
    ]


async def test_an_inbox_keeps_its_key_when_another_agent_becomes_the_default(daemon: Daemon) -> None:
    daemon.start()
    daemon.call("sessions.create", key="mcp:tester")
    daemon.call("chat.send", sessionKey="mcp:tester", message="kept")
    daemon.stop()
    # The built-in agent `main` is gone with this configuration.
    daemon.start('[[agents.list]]\nid = "helper"\nruntime = { type = "echo" }\n')
    assert daemon.call("chat.send", sessionKey="mcp:tester", message="and this")["reason"] == "inbox"
    async with agent(daemon) as client:
        inbox = await client.data("sessions_inbox")
    assert inbox["sessionKey"] == OWN
    assert [message["text"] for message in inbox["messages"]] == ["kept", "and this"]
    # A program that never had an inbox gets one under the current default agent.
    assert daemon.call("sessions.create", key="mcp:other")["key"] == "agent:helper:mcp:other"


async def test_sessions_of_other_programs_are_tools_for_those_who_see_all_and_for_nobody_else(daemon: Daemon) -> None:
    pi_file(daemon.folder, 1, "the heron nests")
    daemon.start('[tools.sessions]\nvisibility = "all"\n')
    daemon.wait_for(lambda: daemon.call("sessions_list", sources=["pi"])["count"], "the session of pi is not listed")
    async with agent(daemon) as client:
        [row] = (await client.data("sessions_list", sources=["pi"], cwd="/home"))["sessions"]
        assert fields(row, "key", "source", "title", "cwd", "readOnly") == {
            "key": key_of(1),
            "source": "pi",
            "title": "the heron nests",
            "cwd": "/home/me",
            "readOnly": True,
        }
        assert "user: the heron nests" in (await client.use("sessions_history", sessionKey=key_of(1))).text
        [match] = (await client.data("sessions_search", query="heron", sources=["pi"], cwd="/home/me"))["matches"]
        assert match["sessionKey"] == key_of(1)
        # A list says of the whole machine what a tree may not see.
        daemon.config.write_text('[tools.sessions]\nvisibility = "tree"\n')
        assert daemon.cli("config", "reload").returncode == 0
        assert (await client.data("sessions_list", sources=["pi"]))["count"] == 0
        hidden = await client.use("sessions_history", sessionKey=key_of(1))
        assert hidden.error and "no session" in hidden.text
