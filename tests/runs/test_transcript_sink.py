"""What a run reports while it goes on: file contents in a tool call are neither recorded nor shown to listeners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config
from support.patience import PATIENCE_S
from support.rows import check_each
from support.sampling import spread

from sessiond.clock import Clock
from sessiond.model.caller import Caller
from sessiond.runs.run import Run
from sessiond.runs.run_end import MAX_USAGE_BYTES, end_of_turn
from sessiond.runs.text_so_far import MAX_CHARS, TextSoFar, end_of_text
from sessiond.runs.transcript_sink import ReplySoFar, TranscriptSink
from sessiond.runtimes.runtime import RunOutcome
from sessiond.tasks import LONG_BYTES

SECRET = "c2VjcmV0LWZpbGU="
FILE = {"name": "key.txt", "content": SECRET, "encoding": "base64"}
CALL = {"task": "read it", "attachments": [FILE]}
KEY = "agent:alice:main"

# How different programs report a call of the tool in lines that are not messages.
SHAPES: dict[str, Any] = {
    "name and args": {"name": "mcp__sessiond__sessions_spawn", "args": CALL},
    "name and input": {"type": "tool_use", "name": "sessions_spawn", "input": CALL},
    "arguments as text": {"function": {"name": "sessions_spawn", "arguments": msgspec.json.encode(CALL).decode()}},
    "opencode": {"part": {"tool": "sessiond_sessions_spawn", "state": {"status": "completed", "input": CALL}}},
    "codex": {"item": {"type": "mcp_tool_call", "server": "sessiond", "tool": "sessions_spawn", "arguments": CALL}},
    "pi": {"type": "tool_execution_start", "toolName": "sessions_spawn", "args": CALL},
    "in a list": [{"calls": [{"tool_name": "sessions-spawn", "parameters": CALL}]}],
}


@check_each("shape", spread(list(SHAPES), 4))
@check_each("raw", [False, True])
async def test_a_custom_record_contains_no_file_content(tmp_path: Path, shape: str, *, raw: bool) -> None:
    data = msgspec.Raw(msgspec.json.encode(SHAPES[shape])) if raw else SHAPES[shape]
    async with in_process_daemon(tmp_path) as parts, parts.connect() as owner:
        sent = await owner.call("chat.send", sessionKey="main", message="hello")
        await owner.call("agent.wait", runId=sent["runId"])
        run = parts.services.supervisor.registry.get(sent["runId"])
        services = parts.services
        sink = TranscriptSink(services.store, services.bus, run, Clock(), services.supervisor.questions)
        await sink.custom("agent/event", data)
        written = (parts.services.store.path / run.session.path).read_text()
    assert SECRET not in written and "__REDACTED__" in written and "key.txt" in written


@check_each("name", ["sessions_spawn", "mcp__sessiond__sessions_spawn", "Sessions-Spawn"])
async def test_a_live_tool_event_shows_no_file_content(tmp_path: Path, name: str) -> None:
    async def act(program: Program, params: dict[str, Any]) -> Any:
        fields = {"runId": params["runId"], "type": "tool", "toolCallId": "t", "name": name}
        await program.notify("run.event", **fields, phase="start", args=CALL)
        await program.notify("run.event", **fields, phase="update", args=msgspec.json.encode(CALL).decode())
        await program.notify(
            "run.event", **{**fields, "name": "else"}, phase="end", result={"calls": [SHAPES["opencode"]]}
        )
        return {"reply": "done"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as parts,
        agent(parts, "alice", act),
        parts.connect() as owner,
    ):
        await owner.call("sessions.create", key=KEY)
        await owner.call("sessions.messages.subscribe", key=KEY)
        await owner.call("chat.send", sessionKey=KEY, message="go")
        shown = [await owner.event("session.tool") for _ in range(3)]
    assert [SECRET in str(event) for event in shown] == [False] * 3
    assert ["__REDACTED__" in str(event) for event in shown] == [True] * 3
    assert shown[0]["args"]["task"] == "read it"


async def test_a_live_tool_event_over_256_kib_says_its_size_alone(tmp_path: Path) -> None:
    long = ["x" * 1000] * 300

    async def act(program: Program, params: dict[str, Any]) -> Any:
        fields = {"runId": params["runId"], "type": "tool", "toolCallId": "t", "name": "read", "phase": "end"}
        await program.notify("run.event", **fields, result=long[:250])
        await program.notify("run.event", **fields, result=long)
        return {"reply": "done"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as parts,
        agent(parts, "alice", act),
        parts.connect() as owner,
    ):
        await owner.call("sessions.create", key=KEY)
        await owner.call("sessions.messages.subscribe", key=KEY)
        await owner.call("chat.send", sessionKey=KEY, message="go")
        whole, omitted = [await owner.event("session.tool") for _ in range(2)]
    assert whole["result"] == long[:250] and "omitted" not in whole
    assert 300_000 < omitted["omitted"]["bytes"] < 310_000 and "result" not in omitted
    assert (omitted["toolCallId"], omitted["name"], omitted["phase"]) == ("t", "read", "end")


LONG = {"role": "assistant", "content": [{"type": "text", "text": "x" * (LONG_BYTES + 1)}], "timestamp": 1}


@check_each("text", ["short", "x" * (LONG_BYTES + 1)])
async def test_a_message_that_was_received_is_written_though_its_run_is_cancelled(tmp_path: Path, text: str) -> None:
    async with in_process_daemon(tmp_path) as parts, parts.connect() as owner:
        sink, run = await made_sink(parts, owner)
        with trio.CancelScope() as scope:
            scope.cancel()
            await sink.message({"role": "assistant", "content": text})
        await parts.services.store.committer.wait_written(run.session)
        written = (parts.services.store.path / run.session.path).read_text()
    assert f'"content":"{text}"' in written


async def test_what_is_appended_while_a_long_message_is_made_comes_behind_it(tmp_path: Path) -> None:
    async with in_process_daemon(tmp_path) as parts, parts.connect() as owner, trio.open_nursery() as nursery:
        sink, run = await made_sink(parts, owner)
        nursery.start_soon(sink.message, LONG)
        await trio.testing.wait_all_tasks_blocked()
        await owner.call("chat.inject", sessionKey="main", messages=[{"role": "user", "content": "behind"}])
        written = (parts.services.store.path / run.session.path).read_text()
    assert 0 < written.find("xxxx") < written.find("behind")


async def made_sink(parts: InProcessDaemon, owner: Connection) -> tuple[TranscriptSink, Run]:
    """The sink of a run that has ended, in the session `main`."""
    sent = await owner.call("chat.send", sessionKey="main", message="hello")
    await owner.call("agent.wait", runId=sent["runId"])
    services = parts.services
    run = services.supervisor.registry.get(sent["runId"])
    return TranscriptSink(services.store, services.bus, run, Clock(), services.supervisor.questions), run


@check_each(("members", "is_kept"), [(1, True), (2000, False)])
async def test_a_usage_of_a_run_is_kept_up_to_a_size_and_else_its_end_says_so(*, members: int, is_kept: bool) -> None:
    usage = {f"member{number}": number for number in range(members)}
    end = end_of_turn(RunOutcome(reply="x", usage=usage, notes=("first",)), ReplySoFar())
    assert end.usage == (usage if is_kept else None)
    assert end.notes == (
        ("first",) if is_kept else ("first", f"its usage was left out: more than {MAX_USAGE_BYTES} bytes")
    )


@given(st.lists(st.text(" \nab-", max_size=12), max_size=20), st.integers(1, 30))
def test_the_kept_end_of_printed_text_is_bounded_and_begins_at_a_word(parts: list[str], limit: int) -> None:
    kept = text = ""
    for part in parts:
        kept, text = end_of_text(kept + part, limit), text + part
    assert len(kept) <= limit and text.endswith(kept)
    if len(text) <= limit:
        assert kept == text
    before = text[: len(text) - len(kept)][-1:]
    assert not before or not kept.strip() or before.isspace() or not any(char.isspace() for char in kept[:-1])


@given(st.lists(st.integers(0, MAX_CHARS), max_size=8))
def test_the_text_so_far_is_whole_up_to_a_limit_and_its_end_behind_that(sizes: list[int]) -> None:
    so_far, text = TextSoFar(), ""
    for number, size in enumerate(sizes):
        piece = f"{number} " * (size // 2)
        so_far.add(piece)
        text += piece
        kept = so_far.end()
        assert text.endswith(kept) and min(len(text), MAX_CHARS - 2) <= len(kept) <= 2 * MAX_CHARS
        assert text.endswith(so_far.end(100)) and len(so_far.end(100)) <= 100
    so_far.clear()
    assert so_far.end() == ""


def test_the_kept_end_never_holds_part_of_a_private_key_without_its_first_line() -> None:
    body = "\n".join(["A" * 64] * 20)
    open_key = f"text -----BEGIN PRIVATE KEY-----\n{body}"
    kept = ""
    for at in range(0, len(open_key), 50):
        kept = end_of_text(kept + open_key[at : at + 50], 500)
    assert kept.startswith("-----BEGIN PRIVATE KEY-----\n") and len(kept) <= 500
    kept = end_of_text(kept + "\n-----END PRIVATE KEY-----\nand more words " + "x" * 470, 500)
    assert kept.strip("x") == "" or "AAAA" not in kept


async def test_what_an_aborted_run_printed_is_in_its_end_and_masked_for_token_callers(tmp_path: Path) -> None:
    printed = trio.Event()

    async def act(program: Program, params: dict[str, Any]) -> Any:
        run_id = params["runId"]
        message = {"role": "assistant", "content": [{"type": "text", "text": "a message"}]}
        await program.notify("run.event", runId=run_id, type="delta", text="a message")
        await program.notify("run.event", runId=run_id, type="message", message=message)
        await program.notify(
            "run.event", runId=run_id, type="delta", text="my key is sk-ant-api03-aaaaaaaaaaaaaaaaaaaaaaaa "
        )
        await program.notify("run.event", runId=run_id, type="delta", text="and then")
        printed.set()
        await trio.sleep_forever()

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as parts,
        agent(parts, "alice", act),
        parts.connect() as owner,
    ):
        sent = await owner.call("chat.send", sessionKey=KEY, message="hello")
        await printed.wait()
        run = parts.services.supervisor.registry.get(sent["runId"])
        with trio.fail_after(PATIENCE_S):
            while not run.text_so_far.end().endswith("and then"):
                await trio.lowlevel.checkpoint()
        await owner.call("chat.abort", sessionKey=KEY)
        page = await owner.call("sessions_history", sessionKey=KEY, includeRuns=True)
        reader = Caller(kind="token", session_key=KEY, agent_id="alice", scopes=frozenset({"read"}))
        async with parts.connect(reader) as other:
            masked = await other.call("sessions_history", sessionKey=KEY, includeRuns=True)
    (end,) = page["runs"]
    # Text that became a message is not repeated in `printed`.
    assert (end["status"], end["printed"]) == ("aborted", "my key is sk-ant-api03-aaaaaaaaaaaaaaaaaaaaaaaa and then")
    assert "sk-ant-api03-aaaa" not in masked["runs"][0]["printed"] and "and then" in masked["runs"][0]["printed"]
