"""Real agent programs over ACP as agents of the real daemon: Claude Code, Codex, Gemini CLI and opencode."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.real_daemon import Daemon

pytestmark = pytest.mark.agents
# A program starts in one to twelve seconds, and more slowly on a busy machine.
RUN_MS = 180_000


def order_to_run(program: str, file: str = "made-by-the-agent") -> str:
    """What makes a program ask whether it may make a file."""
    command = f"touch {file} && echo forty-two"
    if program != "codex":
        return f"please RUN {command}"
    # Codex runs commands that only read in its own sandbox without asking, and asks where one has to leave that.
    escalated = {"cmd": command, "sandbox_permissions": "require_escalated", "justification": "please"}
    return f"CALL exec_command {json.dumps(escalated)}"


# What the answers of the programs say of two turns of the model with 60 input, 40 cached and 7 output tokens each.
# Gemini CLI does not tell which of them were cached, opencode tells those of the last turn only.
USED = {"claude": (120, 14), "codex": (120, 14), "gemini": (200, 14), "opencode": (60, 7)}


@pytest.fixture(params=("claude", "codex", "gemini", "opencode"))
def program(request: pytest.FixtureRequest) -> Any:
    agents = sys.modules[request.getfixturevalue("model").__class__.__module__]
    return agents.PROGRAMS[request.param]


class AcpDesk:
    """A daemon whose agent `main` is one of the programs, which asks before it runs a command."""

    def __init__(self, daemon: Daemon, program: Any, speaker: Any, model: Any, home: Path) -> None:
        self.daemon, self.program, self.model, self.home = daemon, program, model, home
        self.workspace = home.parent / "workspace"
        self.workspace.mkdir()
        self._command, self._env = speaker

    def start(self, permissions: str) -> Daemon:
        # Requests contain the servers' tools at once, as the stub needs it, instead of a tool to search for them.
        env = {"HOME": str(self.home), "ENABLE_TOOL_SEARCH": "false", **self._env}
        env |= self.program.setup(self.home, self.model.port)
        extra = []
        match self.program.name:
            case "codex":
                config = self.home / ".codex" / "config.toml"
                config.write_text(f'model = "{self.program.model}"\n{config.read_text()}')
            case "gemini":
                extra = [f"--model={self.program.model}"]
            case "opencode":
                config = self.home / ".config" / "opencode" / "opencode.json"
                settings = {"model": self.program.model, "permission": {"bash": "ask"}}
                config.write_text(json.dumps(json.loads(config.read_text()) | settings))
        fields = {"preset": self.program.name, "command": [*self._command, *extra], "permissions": permissions}
        lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
        lines.append("env = { " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items()) + " }")
        return self.daemon.start(
            '[tools.sessions]\nvisibility = "agent"\n'
            f'[[agents.list]]\nid = "main"\nworkspace = {json.dumps(str(self.workspace))}\n'
            f'runtime = {{ type = "acp", {", ".join(lines)} }}\n'
        )

    def let_a_minute_pass(self) -> None:
        """Gemini CLI names its files by the minute, and empties that of a session which is loaded in the minute of its
        beginning.
        """
        if self.program.name == "gemini":
            threading.Event().wait(61 - time.time() % 60)

    def say(self, text: str) -> Any:
        return self.wait_for_end(self.daemon.call("chat.send", sessionKey="main", message=text)["runId"])

    def next_question(self) -> dict[str, Any]:
        """The question that is open, as soon as there is one."""

        def ask() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = self.daemon.call("questions.list", open=True)["questions"]
            return found

        self.daemon.wait_for(ask, "the program asks nothing")
        (question,) = ask()
        return question

    def wait_for_end(self, run_id: str) -> Any:
        with self.daemon.connect() as wire:
            wire.socket.settimeout(RUN_MS / 1000 + 10)
            return wire.call("agent.wait", runId=run_id, timeoutMs=RUN_MS)

    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.daemon.call(
            "sessions_history", sessionKey="main", includeTools=True, limit=200
        )["messages"]
        return messages

    def blocks(self, kind: str) -> list[dict[str, Any]]:
        found = [block for message in self.messages() for block in message["content"] if isinstance(block, dict)]
        return [block for block in found if block["type"] == kind]

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The data of this kind of record in the transcript."""
        lines = [json.loads(line) for path in self.transcripts() for line in path.read_text().splitlines()]
        return [line["data"] for line in lines if line.get("customType") == kind]

    def transcripts(self) -> list[Path]:
        return list((self.daemon.store / "agents" / "main" / "sessions").glob("*.jsonl"))

    def processes(self) -> set[int]:
        """The processes of the program that speak with the daemon."""
        word = self._command[-1].encode()
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
                if word in words and str(self.home).encode() in (path.parent / "environ").read_bytes():
                    found.add(int(path.parent.name))
            except OSError:
                continue
        return found


@pytest.fixture
def desk(daemon: Daemon, program: Any, speaker: Any, model: Any, home: Path) -> AcpDesk:
    return AcpDesk(daemon, program, speaker, model, home)


def test_a_program_runs_an_allowed_command_stays_warm_and_resumes_after_a_kill(desk: AcpDesk) -> None:
    daemon, name = desk.start("allow"), desk.program.name
    ended = desk.say(order_to_run(name))
    assert (ended["status"], ended.get("reply")) == ("ok", "The command printed: forty-two"), ended
    assert ended["stopReason"] == "end_turn"
    assert (desk.workspace / "made-by-the-agent").exists()
    assert [(one["outcome"], one["decision"]) for one in desk.records("sessiond/answer")] == [("policy", "allow")]
    assert "I shall run it." in desk.blocks("thinking")[0]["thinking"]
    (call,), (result,) = desk.blocks("toolCall"), [one for one in desk.messages() if one["role"] == "toolResult"]
    assert (result["toolCallId"], result["isError"]) == (call["id"], False)
    # Gemini CLI does not tell its client what a command printed.
    assert ("forty-two" in json.dumps(result["content"])) is (name != "gemini")
    (row,) = daemon.rows()
    assert (row["inputTokens"], row["outputTokens"]) == USED[name]
    assert (row.get("estimatedCostUsd", 0) > 0) is (name in ("claude", "opencode"))
    running = desk.processes()
    assert running
    assert desk.say("and again")["reply"] == "Answer 2 to: and again"
    assert desk.processes() == running
    before = desk.messages()
    daemon.kill()
    daemon.wait_for(lambda: not desk.processes(), "the program outlives the daemon")
    desk.let_a_minute_pass()
    daemon.start()
    assert desk.messages() == before
    assert desk.say("once more")["reply"] == "Answer 3 to: once more"
    after = desk.messages()
    assert after[: len(before)] == before
    said = [json.dumps(message["content"]) for message in after[len(before) :]]
    # Codex begins each turn with a warning about the model, which is the stub's.
    said = [text for text in said if "Model metadata" not in text]
    assert len(said) == 2 and "once more" in said[0] and "Answer 3 to: once more" in said[1]
    assert len({record["nativeId"] for record in desk.records("sessiond/native")}) == 1


def test_a_program_is_denied_a_command_obeys_an_abort_and_goes_on(desk: AcpDesk) -> None:
    daemon, name = desk.start("deny"), desk.program.name
    ended = desk.say(order_to_run(name))
    assert not (desk.workspace / "made-by-the-agent").exists()
    (answer,) = desk.records("sessiond/answer")
    assert (answer["outcome"], answer["decision"]) == ("policy", "deny") and answer["reason"]
    assert [one["isError"] for one in desk.messages() if one["role"] == "toolResult"] == [True]
    # Codex and Gemini CLI take a refusal as the end of the turn.
    assert ended["status"] in ("ok", "aborted"), ended
    sent = daemon.call("chat.send", sessionKey="main", message="HANG please")
    daemon.wait_for(lambda: "HANG" in str(desk.model.requests()), "the program sent no request")
    running = desk.processes()
    assert daemon.call("chat.abort", sessionKey="main") == {"aborted": True, "runIds": [sent["runId"]]}
    assert desk.wait_for_end(sent["runId"])["status"] == "aborted"
    assert desk.say("still there?")["reply"].endswith("still there?")
    assert desk.processes() == running


def test_a_program_asks_and_goes_on_when_it_is_answered_from_elsewhere(desk: AcpDesk) -> None:
    daemon, name = desk.start("ask"), desk.program.name
    run_id = daemon.call("chat.send", sessionKey="main", message=order_to_run(name))["runId"]
    question = desk.next_question()
    assert (question["sessionKey"], question["runId"]) == ("agent:main:main", run_id)
    assert question["kind"] == "execute" and question["toolCallId"]
    assert "touch made-by-the-agent" in f"{question['title']} {question.get('detail', '')}"
    daemon.wait_for(lambda: daemon.rows()[0]["state"] == "waiting", "the row does not say that it waits")
    assert daemon.rows()[0]["waiting"]["questions"] == 1
    assert not (desk.workspace / "made-by-the-agent").exists()
    daemon.call("questions.answer", id=question["id"], optionId=option_of(question, "allow_once"))
    ended = desk.wait_for_end(run_id)
    assert (ended["status"], ended.get("reply")) == ("ok", "The command printed: forty-two"), ended
    assert (desk.workspace / "made-by-the-agent").exists()
    # What was allowed once is asked again, and denied.
    run_id = daemon.call("chat.send", sessionKey="main", message=order_to_run(name, "another-one"))["runId"]
    question = desk.next_question()
    denial = option_of(question, "reject_once")
    daemon.call("questions.answer", id=question["id"], optionId=denial, note="not on a Sunday")
    ended = desk.wait_for_end(run_id)
    # Codex and Gemini CLI take a refusal as the end of the turn.
    assert ended["status"] in ("ok", "aborted"), ended
    assert not (desk.workspace / "another-one").exists()
    answers = [(one["outcome"], one["road"], one["by"], one.get("note")) for one in desk.records("sessiond/answer")]
    assert answers == [("answered", "socket", "owner", None), ("answered", "socket", "owner", "not on a Sunday")]
    assert len(desk.records("sessiond/question")) == 2
    assert "not on a Sunday" in str(desk.records("sessiond/run")[-1])
    # The session goes on; the model of opencode hears of the refusal with the next message only.
    assert desk.say("and again")["status"] == "ok"


CHOICE = {
    "question": "Which size?",
    "header": "Size",
    "options": [{"label": "small", "description": "fits"}, {"label": "large", "description": "does not"}],
    "multiSelect": False,
}


@pytest.mark.parametrize("program", ["claude"], indirect=True)
def test_what_claude_code_lets_a_person_choose_is_a_question(desk: AcpDesk) -> None:
    daemon = desk.start("allow")
    order = f"CALL AskUserQuestion {json.dumps({'questions': [CHOICE]})}"
    run_id = daemon.call("chat.send", sessionKey="main", message=order)["runId"]
    question = desk.next_question()
    assert [option["label"] for option in question["options"]] == ["small", "large", "Decline"]
    assert (question["title"], question["kind"]) == ("Which size?", "elicitation")
    assert "large: does not" in question["detail"]
    daemon.call("questions.answer", id=question["id"], optionId="large", note="as large as can be")
    # The form has a text for a note, so that the model hears of it.
    reply = desk.wait_for_end(run_id)["reply"]
    assert "large" in reply and "as large as can be" in reply


def option_of(question: dict[str, Any], kind: str) -> str:
    """The id of the first option of this kind."""
    option: str = next(option["id"] for option in question["options"] if option["kind"] == kind)
    return option


def test_a_program_has_the_session_tools_and_a_child_goes_on_with_its_session(desk: AcpDesk) -> None:
    daemon = desk.start("allow")
    reader = "agent:main:mcp:reader"
    daemon.call("sessions.create", key=reader)
    ended = desk.say(f"please TELL {reader} the heron is grey")
    assert ended["status"] == "ok", ended
    (message,) = daemon.call("sessions_history", sessionKey=reader)["messages"]
    assert message["content"] == "the heron is grey"
    assert message["provenance"]["sourceSessionKey"] == "agent:main:main"
    spawn = {"task": "what is grey?", "runtime": "acp", "agentId": "main"}
    gone = (
        "ses_00000000000000000000000000" if desk.program.name == "opencode" else "00000000-0000-4000-8000-000000000000"
    )
    before = len(daemon.rows())
    error = daemon.failure("sessions_spawn", **spawn, resumeSessionId=gone)
    assert (error["code"], error["data"]["code"], gone in error["message"]) == (
        -32002,
        "native_session_not_found",
        True,
    )
    assert len(daemon.rows()) == before
    desk.let_a_minute_pass()
    (row,) = [row for row in daemon.rows() if row["key"] == "main"]
    child = daemon.call("sessions_spawn", **spawn, resumeSessionId=row["nativeId"])
    reply = desk.wait_for_end(child["runId"])["reply"]
    assert reply.startswith("Answer 2 to:") and reply.rstrip().endswith("what is grey?")
