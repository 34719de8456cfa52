"""Messages to sessions of other programs: each is continued in one session of ours, which begins with a copy of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from support import acp_agent_path
from support.continued_sessions import ID, KEY, OURS, ClaudeHome
from support.foreign_daemon import READER, daemon
from support.in_process import Connection, InProcessDaemon
from support.patience import PATIENCE_S
from support.sampling import pick, spread

from sessiond.config.settings import parse
from sessiond.conversations.continuing import agents_for

ECHO = '[[agents.list]]\nid = "echo"\nruntime = { type = "echo" }\n'
ALL = '[tools.sessions]\nvisibility = "all"\n'


@pytest.fixture
def home(tmp_path: Path) -> Iterator[ClaudeHome]:
    made = ClaudeHome(tmp_path)
    source = made.write("remember plum")
    before = source.read_bytes()
    yield made
    assert source.read_bytes() == before


def resumed(home: ClaudeHome) -> list[list[str]]:
    """The arguments of each start that say what is resumed."""
    words = ("--resume=", "--fork-session")
    return [[word for word in call["argv"] if word.startswith(words)] for call in home.calls()]


def keys_of(parts: InProcessDaemon) -> set[str]:
    return set(parts.services.store.catalog.by_key)


def read(*path: str | Path) -> str:
    return Path(*path).read_text()


async def rows(owner: Connection) -> dict[str, Any]:
    return {row["key"]: row for row in (await owner.call("sessions_list"))["sessions"]}


async def say(owner: Connection, text: str, key: str = KEY) -> dict[str, Any]:
    """Send a message with sessions_send; its answer, which has the reply."""
    answer = await owner.call("sessions_send", sessionKey=key, message=text, timeoutSeconds=PATIENCE_S)
    assert answer["status"] in ("ok", "error"), answer
    return dict(answer)


async def test_what_nobody_read_in_the_terminal_comes_before_the_next_message_once(
    tmp_path: Path, home: ClaudeHome
) -> None:
    hook = {"sessionId": ID, "transcriptPath": str(home.sessions / f"{ID}.jsonl")}
    async with daemon(tmp_path, ECHO + home.agent() + ALL) as (parts, owner):
        await owner.call("hooks.report", event="SessionStart", **hook)
        async with parts.connect(READER) as other:
            sent = await other.call("sessions_send", sessionKey=KEY, message="the build is red")
        assert sent["reason"] == "inbox"
        await owner.call("chat.send", sessionKey=KEY, message="the heron is grey")
        await owner.call("hooks.report", event="SessionEnd", **hook)
        await say(owner, "which word?")
        prompt = home.calls()[0]["text"]
        assert prompt.count("the build is red") == prompt.count("the heron is grey") == 1
        places = [prompt.index(text) for text in ("not read there", "the build is red", "grey", "which word?")]
        assert places == sorted(places) and "does not speak for your user" in prompt
        history = await owner.call("sessions_history", sessionKey=OURS)
        assert [one["content"] for one in history["messages"] if one["role"] == "user"] == ["which word?"]
        assert (await owner.call("sessions_inbox", sessionKey=KEY))["messages"] == []
        await say(owner, "and now?")
        assert "the build is red" not in home.calls()[1]["text"]
        # Opened again, it gets what comes from now on, and what is sent to ours takes nothing of that.
        assert "context" not in await owner.call("hooks.report", event="SessionStart", **hook)
        await owner.call("chat.send", sessionKey=KEY, message="for the terminal")
        await say(owner, "and ours?", OURS)
        assert "for the terminal" not in home.calls()[2]["text"]
        assert "for the terminal" in (await owner.call("hooks.report", event="UserPromptSubmit", **hook))["context"]


async def test_a_message_continues_it_in_a_copy_in_its_folder_and_the_next_one_resumes_the_copy(
    tmp_path: Path, home: ClaudeHome
) -> None:
    async with daemon(tmp_path, ECHO + home.agent()) as (_, owner):
        sent = await owner.call("chat.send", sessionKey=KEY, message="which word?")
        assert (sent["status"], sent["sessionKey"]) == ("accepted", OURS)
        ended = await owner.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)
        assert (ended["status"], ended["reply"]) == ("ok", "knows: remember plum | which word?")
        first = (await rows(owner))[OURS]
        assert (first["continues"], first["cwd"], first["source"]) == (KEY, str(home.project), "sessiond")
        assert first["nativeId"] != ID
        answer = await say(owner, "and again?")
        assert (answer["sessionKey"], answer["reply"]) == (OURS, "knows: remember plum | which word? | and again?")
        assert resumed(home) == [[f"--resume={ID}", "--fork-session"], [f"--resume={first['nativeId']}"]]
        assert [call["cwd"] for call in home.calls()] == [str(home.project)] * 2
        read = await owner.call("sessions_history", sessionKey=OURS)
        assert [message["role"] for message in read["messages"]] == ["user", "assistant"] * 2
        # The original is still there to be read by its own key.
        original = await owner.call("sessions_history", sessionKey=KEY)
        assert (original["sessionKey"], len(original["messages"])) == (KEY, 1)


async def test_an_agent_that_speaks_acp_continues_it_in_a_copy(tmp_path: Path, home: ClaudeHome) -> None:
    (home.project / "native.json").write_text(json.dumps({ID: ["remember plum"]}))
    command = json.dumps([sys.executable, "-S", str(acp_agent_path.PATH), "fork", "load"])
    agent = f'[[agents.list]]\nid = "worker"\nruntime = {{ type = "acp", preset = "claude", command = {command} }}\n'
    async with daemon(tmp_path, ECHO + agent) as (_, owner):
        assert (await say(owner, "known"))["reply"] == "remember plum | known"
        answer = await say(owner, "known")
        assert (answer["sessionKey"], answer["reply"]) == (OURS, "remember plum | known | known")
        shown = await rows(owner)
        assert KEY in shown and shown[OURS]["nativeId"].startswith("copy-")
    # Gemini CLI makes copies only without ACP.
    both = [
        agent.replace("claude", "gemini").replace("worker", "speaking"),
        agent.replace("claude", "gemini").replace("acp", "exec", 1).replace("worker", "plain"),
    ]
    assert [one.id for one in agents_for(parse("".join(both)), "gemini")] == ["plain"]


async def test_the_copy_is_shown_once_as_the_session_that_made_it(tmp_path: Path, home: ClaudeHome) -> None:
    async with daemon(tmp_path, home.agent()) as (parts, owner):
        await say(owner, "which word?")
        copy = (await rows(owner))[OURS]["nativeId"]
        assert (home.sessions / f"{copy}.jsonl").exists()
        # What is written later into the same folder is seen later.
        home.write("another", native_id="later")
        with trio.fail_after(PATIENCE_S):
            while "claude:later" not in keys_of(parts):  # noqa: ASYNC110 - written by no part of the daemon
                await trio.sleep(0.005)
        assert set(await rows(owner)) == {OURS, KEY, "claude:later"}
        # The key of the copy is ours, and so is a message to it.
        answer = await say(owner, "by its key", f"claude:{copy}")
        assert answer["sessionKey"] == OURS
        assert len(keys_of(parts)) == 3


@pytest.mark.parametrize("spelling", spread([KEY.upper(), ID, f" {KEY} "], 1))
async def test_any_spelling_reaches_the_same_continuation(tmp_path: Path, home: ClaudeHome, spelling: str) -> None:
    async with daemon(tmp_path, home.agent()) as (_, owner):
        assert (await say(owner, "one", spelling))["sessionKey"] == OURS
        assert (await say(owner, "two"))["reply"] == "knows: remember plum | one | two"


async def test_first_messages_at_once_end_up_in_one_continuation(tmp_path: Path, home: ClaudeHome) -> None:
    async with daemon(tmp_path, home.agent()) as (parts, _):
        answers: list[dict[str, Any]] = []

        async def send(number: int) -> None:
            async with parts.connect() as owner:
                # Each begins while another is looking whether the program can fork.
                for _ in range(10 * number):
                    await trio.lowlevel.checkpoint()
                answers.append(await owner.call("chat.send", sessionKey=KEY, message=f"message {number}"))
                await owner.call("agent.wait", runId=answers[-1]["runId"], timeoutMs=PATIENCE_S * 1000)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(send, number)
        assert {answer["sessionKey"] for answer in answers} == {OURS}
        assert {key for key in keys_of(parts) if key.startswith("agent:")} == {OURS}
        # One copy is made, and the others go on with it.
        assert sum("--fork-session" in words for words in resumed(home)) == 1


async def test_after_a_restart_it_is_the_same_continuation(tmp_path: Path, home: ClaudeHome) -> None:
    async with daemon(tmp_path, home.agent()) as (_, owner):
        await say(owner, "one")
    async with daemon(tmp_path, home.agent()) as (parts, owner):
        assert keys_of(parts) == {KEY, OURS}
        assert (await say(owner, "two"))["reply"] == "knows: remember plum | one | two"


async def test_it_is_steered_as_well(tmp_path: Path, home: ClaudeHome) -> None:
    async with daemon(tmp_path, home.agent()) as (_, owner):
        steered = await owner.call("sessions.steer", key=KEY, message="go on")
        assert steered["runId"].startswith((await rows(owner))[OURS]["sessionId"])


async def test_many_messages_at_once_make_one_continuation(tmp_path: Path, home: ClaudeHome) -> None:
    async with daemon(tmp_path, home.agent()) as (parts, owner):
        asked = [await owner.send("chat.send", sessionKey=KEY, message=f"number {n}") for n in range(5)]
        received = [await owner.receive() for _ in asked]
        assert sorted(message["id"] for message in received) == asked
        answers = [message["result"] for message in received]
        assert {answer["sessionKey"] for answer in answers} == {OURS}
        for answer in answers:
            await owner.call("agent.wait", runId=answer["runId"], timeoutMs=PATIENCE_S * 1000)
        assert keys_of(parts) == {KEY, OURS}
        assert [words[1:] for words in resumed(home)] == [["--fork-session"], [], [], [], []]


class TestRefusals:
    """Nothing is created, and the program is not started."""

    async def refuse(self, tmp_path: Path, home: ClaudeHome, config: str, key: str = KEY) -> dict[str, Any]:
        async with daemon(tmp_path, config) as (parts, owner):
            before = keys_of(parts)
            errors = [
                await owner.failure(method, **{name: key, "message": "go on"})
                for method, name in (
                    ("chat.send", "sessionKey"),
                    ("sessions_send", "sessionKey"),
                    ("sessions.steer", "key"),
                )
            ]
            assert errors[0] == errors[1] == errors[2]
            assert keys_of(parts) == before
            assert not list((tmp_path / "store").glob("agents/*/sessions/*.jsonl"))
        assert home.calls() == []
        return errors[0]

    async def test_without_an_agent_the_error_has_the_lines_to_add(self, tmp_path: Path, home: ClaudeHome) -> None:
        taken = '[[agents.list]]\nid = "claude"\nruntime = { type = "echo" }\n'
        error = await self.refuse(tmp_path, home, taken)
        assert (error["code"], error["data"]["code"]) == (-32006, "no_agent_for_source")
        lines = error["data"]["config"]
        assert lines in error["message"]
        *_, added = parse(taken + lines).agents.list
        assert (added.id, added.runtime.type, added.runtime.preset) == ("claude-2", "exec", "claude")

    @pytest.mark.parametrize("cwd", ["", "relative", "/no such folder"])
    async def test_a_folder_that_is_missing_or_unknown(self, tmp_path: Path, home: ClaudeHome, cwd: str) -> None:
        home.write("x", native_id="lost", cwd=cwd)
        error = await self.refuse(tmp_path, home, home.agent(), "claude:lost")
        assert (error["code"], error["data"]["code"]) == (-32006, "cwd_missing")

    async def test_a_sandbox_that_does_not_show_the_folder(self, tmp_path: Path, home: ClaudeHome) -> None:
        error = await self.refuse(tmp_path, home, home.agent() + '[agents.list.sandbox]\nmode = "all"\n')
        assert (error["code"], error["data"]["code"]) == (-32003, "sandboxed")

    async def test_a_sandbox_that_does_not_show_the_transcript(self, tmp_path: Path, home: ClaudeHome) -> None:
        config = home.agent(workspace=str(home.project)) + '[agents.list.sandbox]\nmode = "all"\n'
        error = await self.refuse(tmp_path, home, config)
        assert (error["code"], error["data"]["code"]) == (-32006, "cannot_fork")

    async def test_a_sandbox_whose_home_does_not_outlive_a_run(self, tmp_path: Path, home: ClaudeHome) -> None:
        config = home.agent(workspace=str(tmp_path)).replace("env = { HOME", "env = { OTHER")
        error = await self.refuse(tmp_path, home, config + '[agents.list.sandbox]\nmode = "all"\n')
        assert (error["code"], error["data"]["code"]) == (-32006, "cannot_fork")

    async def test_the_send_policy_is_that_of_the_session_that_would_continue_it(
        self, tmp_path: Path, home: ClaudeHome
    ) -> None:
        rule = '[[session.sendPolicy.rules]]\nmatch = { keyPrefix = "claude:" }\naction = "deny"\n'
        error = await self.refuse(tmp_path, home, home.agent() + rule)
        assert (error["code"], error["data"]["code"]) == (-32003, "send_denied")

    async def test_a_model_that_is_not_allowed(self, tmp_path: Path, home: ClaudeHome) -> None:
        async with daemon(tmp_path, home.agent() + '[models]\nallow = ["a/*"]\n') as (parts, owner):
            error = await owner.failure("chat.send", sessionKey=KEY, message="go on", model="b/c")
            assert error["code"] == -32602
            assert keys_of(parts) == {KEY}


@pytest.mark.parametrize(("default", "chosen"), spread([("two", "two"), ("one", "one"), ("echo", "one")], 2))
async def test_the_default_agent_continues_it_if_it_runs_the_program_else_the_first(
    tmp_path: Path, home: ClaudeHome, default: str, chosen: str
) -> None:
    config = ECHO + home.agent("one") + home.agent("two")
    config = config.replace(f'id = "{default}"\n', f'id = "{default}"\ndefault = true\n')
    async with daemon(tmp_path, config) as (parts, owner):
        assert (await say(owner, "go on"))["sessionKey"] == f"agent:{chosen}:{KEY}"
        # Another default agent does not begin another continuation.
        parts.services.config = parse(ECHO + home.agent("two", default=chosen == "one") + home.agent("one"))
        assert (await say(owner, "go on"))["sessionKey"] == f"agent:{chosen}:{KEY}"


@pytest.mark.parametrize("method", pick(["sessions.reset", "sessions.delete"], __name__))
async def test_after_a_reset_or_a_deletion_the_next_message_begins_with_a_new_copy(
    tmp_path: Path, home: ClaudeHome, method: str
) -> None:
    async with daemon(tmp_path, home.agent()) as (_, owner):
        await say(owner, "one")
        first = (await rows(owner))[OURS]
        await owner.call(method, key=OURS)
        answer = await say(owner, "two")
        assert (answer["sessionKey"], answer["reply"]) == (OURS, "knows: remember plum | two")
        row = (await rows(owner))[OURS]
        assert (row["continues"], row["cwd"]) == (KEY, str(home.project))
        assert row["sessionId"] != first["sessionId"]
        assert row["nativeId"] != first["nativeId"]


async def test_an_idempotency_key_counts_in_the_continuation(tmp_path: Path, home: ClaudeHome) -> None:
    async with daemon(tmp_path, home.agent()) as (_, owner):
        sent = [
            await owner.call("chat.send", sessionKey=key, message="one", idempotencyKey="k") for key in (KEY, OURS, KEY)
        ]
        assert len({one["runId"] for one in sent}) == 1
        error = await owner.failure("chat.send", sessionKey=KEY, message="two", idempotencyKey="k")
        assert error["code"] == -32004


async def test_a_copy_whose_first_run_failed_is_resumed(tmp_path: Path, home: ClaudeHome) -> None:
    async with daemon(tmp_path, home.agent()) as (_, owner):
        assert (await say(owner, "FAIL"))["status"] == "error"
        copy = (await rows(owner))[OURS]["nativeId"]
        assert (await say(owner, "again"))["reply"] == "knows: remember plum | FAIL | again"
        assert resumed(home)[1] == [f"--resume={copy}"]


async def test_a_copy_that_the_program_lost_is_made_again(tmp_path: Path, home: ClaudeHome) -> None:
    async with daemon(tmp_path, home.agent()) as (_, owner):
        await say(owner, "one")
        (home.sessions / f"{(await rows(owner))[OURS]['nativeId']}.jsonl").unlink()
        assert (await say(owner, "two"))["reply"] == "knows: remember plum | two"
        assert (await say(owner, "three"))["reply"] == "knows: remember plum | two | three"


async def test_ids_that_differ_in_case_only_and_keys_that_are_taken_are_continued_apart(
    tmp_path: Path, home: ClaudeHome
) -> None:
    home.write("upper", native_id="ABC")
    home.write("lower", native_id="abc")
    async with daemon(tmp_path, home.agent()) as (_, owner):
        await owner.call("sessions.create", key=OURS)
        keys, replies = set(), []
        for key in ("claude:ABC", "claude:abc", KEY, "claude:ABC", "claude:abc", KEY):
            answer = await say(owner, "go", key)
            keys.add(answer["sessionKey"])
            replies.append(answer["reply"])
        assert len(keys) == 3
        assert OURS not in keys
        known = ("upper | go", "lower | go", "remember plum | go")
        assert replies == [f"knows: {text}" for text in (*known, *(f"{text} | go" for text in known))]


async def test_files_are_named_by_a_path_that_leads_to_them_from_the_folder_of_the_original(
    tmp_path: Path, home: ClaudeHome
) -> None:
    async with daemon(tmp_path, home.agent()) as (_, owner):
        file = {"name": "a.txt", "content": "text"}
        sent = await owner.call("chat.send", sessionKey=KEY, message="read it", attachments=[file])
        await owner.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)
    (call,) = home.calls()
    (folder,) = re.findall(r"in the folder (\S+)/\.", call["text"])
    assert read(folder, "a.txt") == "text"


CODEX = "codex:0e821bfa-2222-4222-8333-0123456789ab"


@pytest.fixture
def codex(tmp_path: Path, home: ClaudeHome) -> Path:
    """A session of Codex; the file of the program."""
    folder = home.path / ".codex" / "sessions" / "2026" / "01" / "02"
    folder.mkdir(parents=True)
    head = {"id": CODEX.partition(":")[2], "timestamp": "2026-01-02T03:04:05.000Z", "cwd": str(home.project)}
    line = {"timestamp": head["timestamp"], "type": "session_meta", "payload": head}
    (folder / f"rollout-2026-01-02T03-04-05-{head['id']}.jsonl").write_text(json.dumps(line) + "\n")
    return tmp_path / "codex"


def write_codex(program: Path, usage: str) -> None:
    program.write_text(f'#!/bin/sh\necho "$@" >> {program}.asked\necho "Usage: {usage}"\n')
    program.chmod(0o755)


async def test_a_codex_without_forks_is_found_out_before_anything_is_created(
    tmp_path: Path, home: ClaudeHome, codex: Path
) -> None:
    write_codex(codex, "codex exec [OPTIONS] [PROMPT]")
    config = home.agent().replace('"claude"', '"codex"').replace(str(home.program), str(codex))
    async with daemon(tmp_path, config) as (parts, owner):
        error = await owner.failure("chat.send", sessionKey=CODEX, message="go on")
        assert (error["code"], error["data"]["code"]) == (-32006, "cannot_fork")
        assert keys_of(parts) == {KEY, CODEX}
        assert read(f"{codex}.asked") == "exec fork --help\n"
        # A release that has it, and then goes wrong.
        write_codex(codex, "codex exec fork [OPTIONS] [SESSION_ID] [PROMPT]")
        answer = await say(owner, "go on", CODEX)
        assert answer["sessionKey"] == f"agent:worker:{CODEX}"


async def test_a_caller_who_sees_everything_continues_it_and_its_message_says_where_it_is_from(
    tmp_path: Path, home: ClaudeHome
) -> None:
    async with daemon(tmp_path, ECHO + home.agent() + ALL) as (parts, owner), parts.connect(READER) as reader:
        answer = await say(reader, "which word?")
        assert answer["sessionKey"] == OURS
        read = await owner.call("sessions_history", sessionKey=OURS)
        assert read["messages"][0]["provenance"]["kind"] == "inter_session"
