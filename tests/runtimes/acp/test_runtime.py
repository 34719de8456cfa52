"""The ACP runtime with real processes that speak ACP by hand (`support/acp_agent.py`), well and badly."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from support.acp_conversation import Conversation, acp_agent, frames_in, open_agents, read_frames
from support.patience import PATIENCE_S
from support.rows import check_each
from support.sampling import amount, spread

from sessiond.config.agents import AgentConfig, RuntimeConfig
from sessiond.errors import StorageError
from sessiond.runtimes.acp.agents import CannotAsk
from sessiond.runtimes.runtime import RunOutcome

# With the reason that is on record.
DENIED = "(permission denied: REASON) !"
TURNS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("hello there", ["hello there"], {"reply": "hello there"}),
    ("messages", ["(hm)+one two", "three", "four"], {"reply": "four"}),
    ("tool", ["call execute", "result execute: a b"], {"reply": ""}),
    ("tool c9 other failed", ["call Run it", "result Run it: a b !"], {"reply": ""}),
    ("order", ["call execute", "result execute: a b", "chose yes"], {"reply": "chose yes"}),
    ("silently", ["call execute", "result execute: ", "done"], {"reply": "done"}),
    (
        "permission execute",
        ["call execute+yes", "result execute: (the turn ended before this call had a result) !"],
        {"reply": "yes"},
    ),
    (
        "permission execute allow_always,reject_once",
        ["call execute+always", "result execute: (the turn ended before this call had a result) !"],
        {"reply": "always"},
    ),
    ("permission execute reject_once", ["call execute+cancelled", f"result execute: {DENIED}"], {"reply": "cancelled"}),
    ("permission read reject_always,allow_once", ["call read+never", f"result read: {DENIED}"], {"reply": "never"}),
    ("permission read allow_once", ["call read+cancelled", f"result read: {DENIED}"], {"reply": "cancelled"}),
    ("permission edit", ["call edit+no", f"result edit: {DENIED}"], {"reply": "no"}),
    ("unknown", ["done"], {"reply": "done"}),
    ("malformed", ["done"], {"reply": "done"}),
    (
        "open",
        [
            "call Left open+call own_name",
            'result own_name: {"x":1}',
            "result Left open: (the turn ended before this call had a result) !",
        ],
        {"reply": ""},
    ),
    ("stop max_tokens", ["stopped"], {"reply": "stopped", "stop_reason": "max_tokens"}),
    ("stop max_turn_requests", ["stopped"], {"stop_reason": "max_turn_requests"}),
    ("stop of_the_future", ["stopped"], {"stop_reason": "of_the_future", "error": None}),
    ("stop refusal", ["stopped"], {"error": "the agent refused to go on with this conversation (stop reason refusal)"}),
    ("stop cancelled", ["stopped"], {"aborted": True, "error": "the agent cancelled its turn"}),
    ("failed", ["so far"], {"error": "the agent ended the turn with an error: it failed"}),
    ("late", ["in time"], {"reply": "in time"}),
    ("requests", ["-32601,-32601,decline,-32601"], {"error": None}),
    ("blocks", ["text"], {"error": None}),
    ("environ", ["SESSIOND_RUN_ID SESSIOND_SOCKET SESSIOND_TOKEN_FILE"], {"error": None}),
]


async def test_what_an_agent_does_in_a_turn_becomes_messages(talk: Any) -> None:
    conversation = talk("noise", permissions="deny", permission_rules={"execute": "allow"})
    for text, shape, expected in TURNS:
        outcome = await conversation.say(text)
        reasons = [one["reason"] for one in conversation.answers()]
        assert conversation.shape() == [one.replace("REASON", "".join(reasons)) for one in shape], text
        assert expected.items() <= msgspec.structs.asdict(outcome).items(), (text, outcome)
        match text:
            case "messages":
                assert conversation.recorder.deltas == ["one ", "two", "three", "four"]
                assert [one["stopReason"] for one in conversation.recorder.messages] == ["stop"] * 3
            case "tool":
                first, result = conversation.recorder.messages
                call = {"type": "toolCall", "id": "c1", "name": "execute", "arguments": {"command": "ls"}}
                assert first["content"] == [call] and first["model"] == "m-1" and first["provider"] == "by-hand"
                assert result["details"] == {"title": "Run it", "kind": "execute"}
                assert [one[0] for one in conversation.recorder.tools] == ["start", "update", "end"]
            case "stop max_tokens":
                assert conversation.recorder.messages[0]["stopReason"] == "length"
            case "late":
                # The agent reads the next message after it has said that; otherwise nobody could tell.
                await conversation.say("hello", "another session")
            case "unknown":
                kinds = [kind for kind, _ in conversation.recorder.customs]
                assert kinds == ["acp/plan", "acp/available_commands_update", "acp/of_the_future"]
                assert conversation.recorder.customs[2][1]["anything"] == [1, 2]
            case "malformed":
                assert outcome.notes == ("9 updates of the agent could not be used",)
            case "permission edit":
                assert outcome.notes == ('permission denied for Run it (edit): permissions = "deny"',)
                (said,) = conversation.answers()
                assert {
                    "outcome": "policy",
                    "decision": "deny",
                    "optionId": "no",
                    "kind": "edit",
                }.items() <= said.items()
    # The list of commands is recorded again only if it has changed, also by another process.
    await conversation.say("unknown")
    assert [kind for kind, _ in conversation.recorder.customs] == ["acp/plan", "acp/of_the_future"]
    await conversation.say("die")
    await conversation.say("unknown")
    kinds = [kind for kind, _ in conversation.recorder.customs]
    assert kinds == ["sessiond/native", "acp/plan", "acp/of_the_future"]


async def test_usage_is_the_difference_to_the_turn_before(talk: Any) -> None:
    conversation = talk()
    costs = []
    for cost, currency in (("0.5", "USD"), ("0.75", "USD"), ("0.25", "USD"), ("9", "EUR"), ("0.5", "USD")):
        outcome = await conversation.say(f"usage {cost} {currency}")
        assert outcome.usage is not None and outcome.usage["totalTokens"] == 120
        costs.append(outcome.usage.get("cost"))
    assert costs == [{"total": 0.5}, {"total": 0.25}, {"total": 0.25}, None, {"total": 0.25}]
    assert conversation.native[-1]["costUsd"] == 0.5 and conversation.native[-1]["contextTokens"] == 1000
    # A restart knows what it had cost.
    later = await conversation.say("usage 0.6", "s2", native_session_id="gone", native_cost_usd=0.5)
    assert later.usage is not None and later.usage["cost"] == {"total": 0.6}


async def test_two_turns_share_a_process_and_sessions_have_their_own_tokens(talk: Any, tmp_path: Path) -> None:
    conversation = talk("image")
    token = tmp_path / "token"
    token.write_text("first")
    assert (await conversation.say("token", token_file=token)).reply == "token first of s1"
    (native,) = conversation.native
    (file,) = (tmp_path / "run" / "acp").glob("*/s1")
    assert file.read_text() == "" and file.stat().st_mode & 0o777 == 0o600
    pid = (await conversation.say("pid")).reply
    assert conversation.native == []
    token.write_text("second")
    assert (await conversation.say("token", "s2", token_file=token)).reply == "token second of s2"
    assert (await conversation.say("pid", "s2")).reply == pid
    assert conversation.native == [] and native["nativeId"] == f"native-{pid}-0"
    images = ({"type": "image", "data": "aGk=", "mimeType": "image/png"},)
    assert (await conversation.say("blocks", images=images)).reply == "text,image"
    outcome = await talk().say("blocks", images=images)
    assert (outcome.reply, outcome.notes) == (
        "text",
        ("the agent takes no images: 1 image of the message stayed files",),
    )


RESUMED = [
    ("resume",),
    ("load",),
    ("resume", "load", "refuses=session/resume"),
    ("load", "null"),
    ("resume", "null", "noise"),
]


@check_each("options", RESUMED)
async def test_a_new_process_resumes_and_repeats_nothing(
    options: tuple[str, ...], make_conversation: Any, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    async with open_agents() as agents:
        conversation = make_conversation(agents, acp_agent(*options))
        await conversation.say("remember this", workspace=tmp_path / "work")
        (native,) = conversation.native
    async with open_agents() as agents:
        conversation = make_conversation(agents, acp_agent(*options))
        known = native["nativeId"]
        outcome = await conversation.say("known", workspace=tmp_path / "work", native_session_id=known)
    assert outcome == RunOutcome(
        reply="remember this | known", stop_reason="end_turn", model="m-1" if "null" not in options else None
    )
    assert conversation.shape() == ["remember this | known"] and conversation.recorder.tools == []
    assert conversation.recorder.customs == []


async def test_an_id_with_spaces_is_resumed_whole(make_conversation: Any, tmp_path: Path) -> None:
    native_id = "my session 1"
    for known, counted in ((None, ""), (native_id, ""), (native_id, " 10 2 0 5")):
        async with open_agents() as agents:
            conversation = make_conversation(agents, acp_agent(f"one={native_id}", "load"))
            resumed = None if known is None else known + counted
            outcome = await conversation.say("hello", workspace=tmp_path, native_session_id=resumed)
            assert outcome.error is None and outcome.notes == ()
            assert conversation.native == ([] if known else [{"nativeId": native_id}])


MODES: list[tuple[dict[str, Any], list[str]]] = [
    ({"preset": "claude"}, ["default"]),
    ({"preset": "codex"}, ["read-only"]),
    # The owner has chosen the mode.
    ({"preset": "codex", "env": {"INITIAL_AGENT_MODE": "agent-full-access"}}, []),
    ({}, []),
]


@check_each(("fields", "modes"), MODES)
async def test_an_agent_that_decides_itself_is_told_to_ask(
    fields: Any, modes: list[str], make_conversation: Any, tmp_path: Path
) -> None:
    async with open_agents() as agents:
        conversation = make_conversation(agents, acp_agent("modes", "load", **fields))
        assert (await conversation.say("hello", workspace=tmp_path)).error is None
        assert modes_set(tmp_path) == modes
        # A session that is resumed is told so as well.
        (native,) = conversation.native
        await conversation.say("again", "s2", workspace=tmp_path, native_session_id=native["nativeId"])
        assert modes_set(tmp_path) == modes * 2


def modes_set(folder: Path) -> list[str]:
    return [one["params"]["modeId"] for one in frames_in(folder) if one.get("method") == "session/set_mode"]


def methods_in(folder: Path) -> list[str]:
    return [one["method"] for one in frames_in(folder) if "method" in one]


async def test_an_agent_that_cannot_be_told_to_ask_is_not_used(talk: Any) -> None:
    conversation = talk("modes", "refuses=session/set_mode", preset="claude")
    outcome = await conversation.say("hello")
    assert outcome.error == "the agent opened no session: no"


async def test_a_replay_behind_the_answer_is_no_part_of_the_next_turn(make_conversation: Any, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    async with open_agents() as agents:
        conversation = make_conversation(agents, acp_agent("load", "behind"))
        await conversation.say("first", workspace=tmp_path / "work")
        (native,) = conversation.native
        await conversation.say("second", workspace=tmp_path / "work")
    async with open_agents() as agents:
        conversation = make_conversation(agents, acp_agent("load", "behind"))
        await conversation.say("third", workspace=tmp_path / "work", native_session_id=native["nativeId"])
        assert conversation.shape() == ["third"]


async def test_whether_an_agent_knows_a_session(make_conversation: Any, make_spec: Any, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    for options in (("resume", "close"), ("load",)):
        async with open_agents() as agents:
            conversation = make_conversation(agents, acp_agent(*options))
            runtime = agents.runtime(conversation.agent)
            pid = (await conversation.say("pid", workspace=tmp_path / "work")).reply
            (native,) = conversation.native

            async def check(native_id: str) -> str | None:
                spec = make_spec("", session_id="s2", workspace=tmp_path / "work", native_session_id=native_id)
                with trio.fail_after(PATIENCE_S):
                    return await runtime.check_native(spec)  # noqa: B023 - called in this turn of the loop

            assert await check(native["nativeId"]) is None
            unknown = await check("gone")
            assert unknown is not None and unknown.startswith(
                "the agent cannot go on with its session 'gone': session/"
            )
            assert (await conversation.say("pid", workspace=tmp_path / "work")).reply == pid
        async with open_agents() as agents:
            runtime = agents.runtime(conversation.agent)
            assert await check(native["nativeId"]) is None
            assert await check("gone") is not None
    async with open_agents() as agents:
        runtime = agents.runtime(acp_agent("refuses=initialize"))
        with pytest.raises(CannotAsk, match="refused the connection: no"):
            await check("any")
        # One that wants a login is started again: somebody may have logged in.
        (tmp_path / "work" / "frames.jsonl").unlink()
        runtime = agents.runtime(acp_agent("refuses=session/resume", "resume", "auth"))
        for _ in range(2):
            with pytest.raises(CannotAsk, match="It wants a login"):
                await check("any")
        assert methods_in(tmp_path / "work") == ["initialize", "session/resume"] * 2


async def test_a_session_that_several_ask_for_at_once_is_looked_for_and_opened_in_turn(
    make_conversation: Any, make_spec: Any, tmp_path: Path
) -> None:
    agent = acp_agent("load", "close")
    async with open_agents() as agents:
        conversation = make_conversation(agents, agent)
        await conversation.say("first", workspace=tmp_path)
        (native,) = conversation.native
    fields = {"workspace": tmp_path, "native_session_id": native["nativeId"]}
    async with open_agents() as agents:
        conversation, found = make_conversation(agents, agent), list[str | None]()

        async def check() -> None:
            found.append(await agents.runtime(agent).check_native(make_spec("", session_id="s2", **fields)))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(check)
                outcome = await conversation.say("known", **fields)
        assert (found, outcome.reply) == ([None, None], "first | known")
        assert conversation.shape() == ["first | known"]
        assert (await conversation.say("known", **fields)).reply == "first | known | known"


async def test_a_session_that_was_opened_in_a_process_that_died_is_not_taken_for_open_in_the_next(talk: Any) -> None:
    conversation, sink = talk("resume"), talk().recorder

    async def outlive_the_process(custom_type: str, data: Any) -> None:
        os.kill(int(data["nativeId"].split("-")[1]), signal.SIGKILL)
        natives.append(data["nativeId"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start_another)

    async def start_another() -> None:
        while (await copy(conversation).say("hello", "s2")).reply != "hello":
            pass  # the death was not noticed yet

    natives: list[str] = []
    sink.custom = outlive_the_process
    with trio.fail_after(PATIENCE_S):
        runtime = conversation.agents.runtime(conversation.agent)
        outcome = await runtime.run(conversation._make_spec("hello", session_id="s1", run_id="1"), sink)
    assert outcome.error is not None and "killed by SIGKILL" in outcome.error
    later = await conversation.say("hello", native_session_id=natives[0])
    assert (later.reply, later.error) == ("hello", None)
    assert later.notes[0].startswith(f"the agent has lost its session '{natives[0]}'")


async def test_a_session_of_another_program_begins_with_a_copy(make_conversation: Any, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "native.json").write_text('{"original": ["typed by a person"]}')
    fields = {"workspace": tmp_path / "work", "fork_of": "original"}
    async with open_agents() as agents:
        conversation = make_conversation(agents, acp_agent("fork", "load", "modes", preset="claude"))
        assert (await conversation.say("known", **fields)).reply == "typed by a person | known"
        (native,) = conversation.native
        assert native["nativeId"].startswith("copy-") and modes_set(tmp_path / "work") == ["default"]
        # Later turns go on with the copy; where that is lost, with another one.
        outcome = await conversation.say("known", "s2", native_session_id=native["nativeId"], **fields)
        assert outcome.reply == "typed by a person | known | known" and conversation.native == []
        outcome = await conversation.say("known", "s3", native_session_id="gone", **fields)
        assert outcome.reply == "typed by a person | known"
        assert conversation.native[0]["lost"] == "gone" and "lost its session 'gone'" in outcome.notes[0]
        assert '"typed by a person"]' in (tmp_path / "work" / "native.json").read_text()
    async with open_agents() as agents:
        conversation = make_conversation(agents, acp_agent("load"))
        outcome = await conversation.say("hello", **fields)
        assert outcome.error is not None and "makes no copies of its sessions" in outcome.error
        assert conversation.native == []


LOST = [
    (("resume", "load"), "session/resume: no session gone; session/load: no session gone"),
    (("load",), "session/load: no session gone"),
    ((), "it cannot resume sessions"),
]


@check_each(("options", "reason"), LOST)
async def test_a_lost_session_is_recorded_and_said(
    options: Any, reason: str, make_conversation: Any, tmp_path: Path
) -> None:
    async with open_agents() as agents:
        conversation = make_conversation(agents, acp_agent(*options))
        outcome = await conversation.say("hello", native_session_id="gone")
        (native,) = conversation.native
        assert native | {"nativeId": "new"} == {"nativeId": "new", "lost": "gone", "reason": reason}
        assert outcome.reply == "hello"
        assert outcome.notes == (f"the agent has lost its session 'gone' and began a new one: {reason}",)
        # A session that has to be that one is an error, and nothing is begun.
        outcome = await conversation.say("hello", "s2", native_session_id="gone", native_required=True)
        assert outcome.error is not None and "'gone'" in outcome.error and reason in outcome.error
        assert conversation.recorder.customs == [] and outcome.reply is None


UNUSABLE: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (("version=2",), {}, "speaks version '2' of the Agent Client Protocol, and sessiond speaks 1"),
    (("refuses=initialize",), {}, "refused the connection: no"),
    (("silent",), {"start_seconds": 0.3}, "of its start; it may be a program that does not speak ACP"),
    (
        ("refuses=session/new", "auth"),
        {},
        "set `authenticate` in the runtime of agent 'main' to one of its methods: 'api-key'",
    ),
    (("mute",), {"start_seconds": 0.3}, "within 0.3 s"),
    (("version=null",), {}, "speaks no version that it names"),
    (("refuses=session/resume", "resume", "auth"), {}, "wants a login"),
]


@check_each(("options", "fields", "sentence"), spread(UNUSABLE, 4))
async def test_an_agent_that_cannot_be_used_says_why(
    options: Any, fields: Any, sentence: str, make_conversation: Any
) -> None:
    async with open_agents() as agents:
        conversation = make_conversation(agents, acp_agent(*options, **fields))
        outcome = await conversation.say("hello", native_session_id="n" if "resume" in options else None)
        assert outcome.error is not None and sentence in outcome.error, outcome
        # An agent that cannot start has lost nothing.
        assert conversation.native == []
        if "auth" in options:
            # The next message starts it again: somebody may have logged in.
            known = len(read_frames(conversation))
            again = await conversation.say("hello", native_session_id="n" if "resume" in options else None)
            assert again.error == outcome.error
            assert read_frames(conversation)[known]["method"] == "initialize"
            again = make_conversation(agents, acp_agent(*options, authenticate="api-key", **fields))
            assert (await again.say("hello")).reply == "hello"


async def test_an_agent_that_hangs_with_several_sessions_holds_none_of_their_runs_up(make_conversation: Any) -> None:
    errors: list[str | None] = []
    async with open_agents() as agents:
        agent = acp_agent("mute", start_seconds=0.3)

        async def say(number: int) -> None:
            errors.append((await make_conversation(agents, agent).say("hello", f"s{number}")).error)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(say, number)
    assert len(errors) == 3 and all(error is not None and "did not open a session within" in error for error in errors)


async def test_how_to_get_the_program_of_a_preset_is_said(make_conversation: Any, tmp_path: Path) -> None:
    async with open_agents() as agents:
        for runtime, remedy in (
            (RuntimeConfig(type="acp", preset="codex"), "it comes with: npm install -g @agentclientprotocol/codex-acp"),
            (
                RuntimeConfig(type="acp", preset="codex", command=("/no/such/codex-acp",)),
                "set PATH in the runtime's env)",
            ),
        ):
            runtime = msgspec.structs.replace(runtime, env={"PATH": str(tmp_path)})
            outcome = await make_conversation(agents, AgentConfig(id="main", runtime=runtime)).say("hello")
            assert outcome.error is not None and outcome.error.startswith("command not found: ")
            assert outcome.error.endswith(remedy), outcome


async def test_a_program_that_is_no_agent_is_quoted(make_conversation: Any, tmp_path: Path) -> None:
    plain = tmp_path / "opencode"
    plain.write_text("#!/bin/sh\necho no >&2\nexit 2\n")
    plain.chmod(0o755)
    async with open_agents() as agents:
        for command, sentence in (
            (("sh", "-c", "echo I am no agent"), "process ended (command exited): I am no agent"),
            (("sh", "-c", "echo 'no login' >&2; exit 4"), "process ended (command exited with status 4): no login"),
            (("no-such-program",), "command not found: no-such-program"),
            # It must not take our refusal of our own request for that of an agent.
            (("cat",), "the program does not seem to speak ACP: it repeats what it is sent"),
            ((str(plain),), "command exited with status 2): no; the command that speaks ACP is: opencode acp"),
        ):
            agent = AgentConfig(id="main", runtime=RuntimeConfig(type="acp", command=command))
            outcome = await make_conversation(agents, agent).say("hello")
            assert outcome.error is not None and sentence in outcome.error, outcome


async def test_an_agent_that_closed_its_input_is_ended_and_the_next_message_starts_another(talk: Any) -> None:
    conversation = talk("resume")
    assert (await conversation.say("shut")).reply == "last words"
    outcome = await conversation.say("never read")
    assert outcome.error == "the agent was ended: it closed its input"
    assert (await conversation.say("hello")).reply == "hello"


async def test_an_agent_with_one_session_mixes_up_no_two_of_ours(talk: Any) -> None:
    conversation = talk("one=one", "load")
    assert (await conversation.say("hello")).error is None
    other = await conversation.say("a secret", "s2")
    assert other.error is not None and "'one' is that of another session already (s1)" in other.error
    assert conversation.native == [] and conversation.shape() == []
    resumed = await conversation.say("a secret", "s2", native_session_id="gone")
    assert resumed.error == other.error
    assert (await conversation.say("hello")).reply == "hello"


DEATHS = [
    ("die", "command exited with status 3): Traceback: the last words"),
    ("half", 'command exited): {"jsonrpc": "2.0", "method": "session/up'),
]


async def test_a_death_ends_the_turn_and_the_next_message_resumes(talk: Any) -> None:
    conversation = talk("resume")
    await conversation.say("first")
    (native,) = conversation.native
    for word, sentence in DEATHS:
        outcome = await conversation.say(word, native_session_id=native["nativeId"])
        assert outcome.error is not None and outcome.error.endswith(sentence), outcome
        assert conversation.shape() == ["before the end"]
    outcome = await conversation.say("known", native_session_id=native["nativeId"])
    assert outcome.reply == "first | die | half | known"
    # An answer without a newline at the end of the stream is an answer.
    outcome = await conversation.say("nonewline")
    assert (outcome.reply, outcome.error) == ("the end", None)


CANCELS = [
    ("wait", " and over"),
    ("wait ends", " and over"),
    ("wait asks", "+call read+ yes+call read+ cancelled and over"),
    ("wait deaf", ""),
]


async def test_a_cancelled_turn_is_cancelled_in_the_agent(talk: Any) -> None:
    conversation = talk("resume", permissions="allow", grace_seconds=PATIENCE_S)
    pid = (await conversation.say("pid")).reply
    (native,) = conversation.native
    for text, last in CANCELS:
        if text == "wait deaf":
            conversation.agent = acp_agent("resume", permissions="allow", grace_seconds=0.1)
        conversation.recorder = type(conversation.recorder)()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when_begun, conversation, text, scope)
                await conversation.say(text, native_session_id=native["nativeId"])
        assert scope.cancelled_caught
        assert conversation.shape()[0] == "waiting" + last, text
        assert conversation.recorder.messages[0]["stopReason"] == "aborted"
    outcome = await conversation.say("known", native_session_id=native["nativeId"])
    assert outcome.reply is not None and outcome.reply.endswith("wait deaf | known")
    assert pid is not None


async def test_limits_of_frames_and_records(make_conversation: Any, tmp_path: Path) -> None:
    async with open_agents(max_record_bytes=20_000, max_frame_bytes=100_000) as agents:
        conversation = make_conversation(agents, acp_agent("resume"))
        outcome = await conversation.say("big 50000")
        (native,) = conversation.native
        pieces = conversation.shape()
        assert len(pieces) == 3 and "".join(pieces) == "w " * 25_000 and all(one.endswith(" ") for one in pieces)
        assert outcome.notes == ("2 messages over limits.maxRecordBytes had to be split",)
        outcome = await conversation.say("big 18000")
        assert outcome.notes == () and len(conversation.shape()) == 1
        outcome = await conversation.say("big 120000")
        assert outcome.error == "the agent was ended: it sent a frame over limits.maxFrameBytes (100000 bytes)"
        assert (await conversation.say("still there", native_session_id=native["nativeId"])).reply == "still there"
        assert conversation.native == []


async def test_a_transcript_that_refuses_a_message_ends_the_turn_in_the_agent_too(talk: Any, make_spec: Any) -> None:
    conversation = talk()
    sink = conversation._new_recorder()

    async def refuse(message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        raise StorageError("the disk is full")

    sink.message = refuse
    with trio.fail_after(PATIENCE_S):
        outcome = await conversation.agents.runtime(conversation.agent).run(
            make_spec("messages", session_id="s1"), sink
        )
    assert outcome.error == "the disk is full"
    assert (await conversation.say("again")).reply == "again"
    assert [frame["method"] for frame in read_frames(conversation)[-2:]] == ["session/cancel", "session/prompt"]


async def test_sessions_over_the_limit_rest_and_are_resumed(talk: Any) -> None:
    conversation = talk("resume", "close", max_sessions=2)
    natives = {}
    for session in ("s1", "s2", "s3", "s4"):
        await conversation.say(session, session)
        natives[session] = conversation.native[0]["nativeId"]
    # s1 and s2 were closed; s3 and s4 are open.
    for session in ("s3", "s4", "s1", "s2"):
        outcome = await conversation.say("known", session, native_session_id=natives[session])
        assert outcome.reply == f"{session} | known", session
        assert conversation.native == []
    log = read_frames(conversation)
    methods = [frame["method"].removeprefix("session/") for frame in log]
    opened = ["new", "prompt"] * 2 + ["close", "new", "prompt"] * 2 + ["prompt"] * 2
    assert methods == ["initialize", *opened, *["close", "resume", "prompt"] * 2]


async def test_a_process_ends_after_its_rest_and_when_the_configuration_changes(talk: Any) -> None:
    conversation = talk("resume", idle_seconds=0)
    first = (await conversation.say("pid")).reply
    await wait_until_gone(int(first or 0))
    conversation = talk("resume", idle_seconds=7200)
    kept = (await conversation.say("pid")).reply
    assert (await conversation.say("pid")).reply == kept
    conversation.agents.reconfigure([conversation.agent])
    assert (await conversation.say("pid")).reply == kept
    conversation.agents.reconfigure([])
    await wait_until_gone(int(kept or 0))
    last = (await conversation.say("pid")).reply
    os.kill(int(last or 0), signal.SIGKILL)
    await wait_until_gone(int(last or 0))
    assert (await conversation.say("pid")).reply not in (first, kept, last)


async def test_a_check_during_which_the_configuration_changes_leaves_no_process(
    make_conversation: Any, make_spec: Any, tmp_path: Path
) -> None:
    async with open_agents() as agents:
        runtime, found = agents.runtime(acp_agent("resume")), list[str | None]()

        async def check() -> None:
            found.append(await runtime.check_native(make_spec("", native_session_id="gone", workspace=tmp_path)))

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(check)
                while not working_in(tmp_path):  # noqa: ASYNC110
                    await trio.sleep(0.001)
                agents.reconfigure([])
            assert "no session gone" in str(found[0])
            while working_in(tmp_path):  # noqa: ASYNC110
                await trio.sleep(0.005)


def working_in(folder: Path) -> list[str]:
    """The processes whose working folder is that one."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            found += [link.parent.name] if os.readlink(link) == str(folder) else []
    return found


async def test_a_run_that_waits_for_a_place_survives_a_change_of_the_configuration(talk: Any) -> None:
    conversation = talk("resume", max_sessions=1)
    later = copy(conversation)
    outcomes: list[RunOutcome] = []

    async def say_later() -> None:
        outcomes.append(await later.say("I waited", "s2"))

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            conversation.recorder = type(conversation.recorder)()
            nursery.start_soon(conversation.say, "wait")
            with trio.fail_after(PATIENCE_S), trio.CancelScope(shield=True):
                while not conversation.recorder.deltas:  # noqa: ASYNC110
                    await trio.sleep(0.005)
                async with trio.open_nursery() as waiting:
                    waiting.start_soon(say_later)
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    conversation.agents.reconfigure([])
                    scope.cancel()
    assert [(one.reply, one.error) for one in outcomes] == [("I waited", None)]


CHOICES: list[tuple[dict[str, str], str, str, tuple[str, ...]]] = [
    ({}, "-,-", "m-1", ()),
    ({"model": "m-2", "thinking": "high"}, "m-2,high", "m-2", ()),
    ({"model": "m-2", "thinking": "adaptive"}, "m-2,high", "m-2", ()),
    ({"model": "gone"}, "m-2,high", "m-2", ("the agent does not offer the model 'gone' and uses 'm-2'",)),
    ({"model": "gone"}, "m-2,high", "m-2", ()),
    ({"model": "m-1"}, "m-1,high", "m-1", ()),
]


async def test_the_model_and_the_thinking_of_a_run_are_chosen_where_the_agent_offers_them(talk: Any) -> None:
    conversation = talk()
    for fields, chosen, model, notes in CHOICES:
        outcome = await conversation.say("chosen", **fields)
        assert (outcome.reply, outcome.model, outcome.notes) == (chosen, model, notes), fields
        assert conversation.recorder.messages[0]["model"] == model
    refusing = talk("refuses=session/set_config_option")
    outcome = await refusing.say("chosen", model="m-2")
    assert (outcome.reply, outcome.model) == ("-,-", "m-1")
    assert outcome.notes == ("the agent does not offer the model 'm-2' and uses 'm-1'",)


async def test_others_in_a_process_that_is_ended_are_told_why(talk: Any) -> None:
    conversation = talk("resume", grace_seconds=0.1)
    for session in ("s1", "s2"):
        await conversation.say("hello", session)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            conversation.recorder = type(conversation.recorder)()
            nursery.start_soon(_cancel_when_begun, conversation, "wait deaf", scope)
            nursery.start_soon(conversation.say, "wait deaf")
            with trio.CancelScope(shield=True):
                other = await talk_beside(conversation)
    why = "the agent was ended: it did not end a turn within 0.1 s after it was cancelled"
    assert other.error == why


async def talk_beside(conversation: Conversation) -> RunOutcome:
    """A turn of s2 that the agent does not answer, because it waits in one of s1."""
    beside = copy(conversation)
    with trio.fail_after(PATIENCE_S):
        while not conversation.recorder.deltas:  # noqa: ASYNC110
            await trio.sleep(0.005)
    return await beside.say("never answered", "s2")


async def test_sessions_of_many_agents_are_not_mixed_up(make_conversation: Any, tmp_path: Path) -> None:
    agents_count, sessions_count = amount(8, 2), 8
    replies: dict[tuple[int, int], list[str | None]] = {}

    async def converse(conversation: Conversation, agent: int, session: int) -> None:
        token = tmp_path / f"token-{agent}-{session}"
        token.write_text(f"{agent}/{session}")
        name = f"s-{agent}-{session}"
        for text in (f"I am {name}", "token", "known"):
            outcome = await copy(conversation).say(text, name, workspace=tmp_path / str(agent), token_file=token)
            replies.setdefault((agent, session), []).append(outcome.reply)

    async with open_agents() as agents, trio.open_nursery() as nursery:
        for agent in range(agents_count):
            (tmp_path / str(agent)).mkdir()
            config = msgspec.structs.replace(acp_agent("resume"), id=f"agent{agent}")
            conversation = make_conversation(agents, config)
            for session in range(sessions_count):
                nursery.start_soon(converse, conversation, agent, session)
    for (agent, session), said in replies.items():
        name = f"s-{agent}-{session}"
        assert said == [f"I am {name}", f"token {agent}/{session} of {name}", f"I am {name} | token | known"]
    assert len(replies) == agents_count * sessions_count


class CountingSink:
    """Counts what it gets and keeps nothing."""

    def __init__(self) -> None:
        self.text = self.messages = 0

    async def message(self, message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        self.messages += 1

    async def custom(self, custom_type: str, data: Any) -> None:
        await trio.lowlevel.checkpoint()

    def delta(self, text: str) -> None:
        self.text += len(text)

    def thought_delta(self, text: str) -> None:
        self.text += len(text)


async def test_a_hundred_megabytes_of_updates_need_no_memory(make_spec: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    megabytes = amount(100, 5)
    sink: Any = CountingSink()
    async with open_agents(max_record_bytes=65536) as agents:
        runtime = agents.runtime(acp_agent())
        await runtime.run(make_spec("hello", run_id="1"), sink)
        before = peak_bytes(reset=True)
        with trio.fail_after(PATIENCE_S):
            outcome = await runtime.run(make_spec(f"flood {megabytes}", run_id="2"), sink)
    assert outcome.error is None and sink.text > megabytes * 0.8e6 and sink.messages > megabytes * 0.8
    # A mebibyte may wait to be written; the rest is what the allocator keeps.
    assert peak_bytes() - before < 7e6


def peak_bytes(*, reset: bool = False) -> int:
    """The most memory that this process had since the last reset. Source: proc(5), clear_refs."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


async def _cancel_when_begun(conversation: Conversation, text: str, scope: trio.CancelScope) -> None:
    with trio.fail_after(PATIENCE_S):
        while not (conversation.recorder.deltas and (text != "wait asks" or conversation.answers())):  # noqa: ASYNC110
            await trio.sleep(0.005)
    scope.cancel()


async def wait_until_gone(pid: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while is_there(pid):  # noqa: ASYNC110
            await trio.sleep(0.005)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
