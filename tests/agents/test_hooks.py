"""Real programs in a terminal, with our hooks in their settings: they ask, are answered from elsewhere, and hear."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.patience import PATIENCE_S
from support.real_daemon import Daemon

pytestmark = pytest.mark.agents


class Terminal:
    """A program in a terminal of its own: `type` is a person's typing, `screen` what the person sees."""

    def __init__(self, folder: Path) -> None:
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self._said = 0

    def start(self, words: list[str], environ: dict[str, str], cwd: Path) -> None:
        given = [f"{name}={value}" for name, value in {**environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}.items()]
        command = shlex.join(["env", "-i", *given, *words])
        # Without a status line, so that the screen is the program's only.
        self._run("new-session", "-d", "-x", "160", "-y", "50", "-c", str(cwd), f"{command}; sleep 3600")

    def type(self, key: str) -> None:
        self._run("send-keys", key)

    def say(self, text: str) -> None:
        """Type a text, and Enter once it is there: what comes in one go counts as pasted. Its number, which a shell
        takes for a comment, is on the screen once only.
        """
        self._said += 1
        self._run("send-keys", "-l", f"{text} #{self._said}")
        self.wait_for(f"#{self._said}")
        self._run("send-keys", "Enter")

    def press(self, key: str, *, until: Callable[[str], bool]) -> None:
        """A key, again and again until the screen shows what it does: programs ignore the keys of the first moment in
        which they ask something. Claude Code does so lest somebody agrees who was just typing.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not until(self.screen()):
            assert time.monotonic() < deadline, f"{key} does nothing:\n{self.screen()}"
            self.type(key)
            drawn_by = time.monotonic() + 2
            while not until(self.screen()) and time.monotonic() < drawn_by:
                time.sleep(0.05)  # noqa: TID251 - another process's screen announces nothing

    def accept(self, prompt: str) -> None:
        """Enter at a prompt once it is on the screen. Where none is, Enter does nothing."""
        self.wait_for(prompt)
        self.press("Enter", until=lambda screen: prompt not in screen)

    def screen(self) -> str:
        return self._run("capture-pane", "-p", "-J")

    def wait_for(self, text: str, *, limit_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + limit_s
        while text not in self.screen():
            assert time.monotonic() < deadline, f"{text!r} does not appear:\n{self.screen()}"
            time.sleep(0.05)  # noqa: TID251 - another process's screen announces nothing

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)

    def _run(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True)
        return done.stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


@pytest.fixture(params=("claude", "codex"))
def program(request: pytest.FixtureRequest) -> Any:
    agents = sys.modules[request.getfixturevalue("model").__class__.__module__]
    return agents.PROGRAMS[request.param]


class Desk:
    """The daemon, with the program in a terminal beside it."""

    def __init__(self, daemon: Daemon, program: Any, path: Path, *, terminal: Terminal, model: Any, home: Path) -> None:
        self.daemon, self.terminal, self.model = daemon, terminal, model
        self.workspace = home.parent / "workspace"
        self.workspace.mkdir()
        self._program, self._path, self._home = program, path, home
        # Without a search for tools the stub sees all of them.
        self._environ = {"HOME": str(home), "PATH": os.environ["PATH"], "ENABLE_TOOL_SEARCH": "false"}
        self._environ |= program.setup(home, model.port)
        daemon.environ["HOME"] = str(home)
        done = self.cli("hook", "install", program.name, "--write", "--socket", str(daemon.socket))
        assert done.returncode == 0, done.stderr
        daemon.start('[[agents.list]]\nid = "main"\nruntime = { type = "echo" }\n')

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """As from another shell."""
        command = [sys.executable, "-m", "sessiond", *words]
        options: dict[str, Any] = {"env": self.daemon.environ, "capture_output": True, "text": True}
        return subprocess.run(command, check=False, timeout=PATIENCE_S, **options)

    def start(self) -> None:
        """Start the program, past what it asks a person who uses it for the first time."""
        if self._program.name == "claude":
            trust = {str(self.workspace): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}}
            begun = {"hasCompletedOnboarding": True, "theme": "dark", "projects": trust}
            keys = {"customApiKeyResponses": {"approved": ["stub"], "rejected": []}}
            (self._home / ".claude.json").write_text(json.dumps({**begun, **keys}))
            self.terminal.start([str(self._path), "--model", self._program.model], self._environ, self.workspace)
            self.terminal.wait_for("? for shortcuts")
            return
        config = self._home / ".codex" / "config.toml"
        trust_lines = f'[projects.{json.dumps(str(self.workspace))}]\ntrust_level = "trusted"\n'
        config.write_text("check_for_update_on_startup = false\n" + config.read_text() + trust_lines)
        words = [str(self._path), "--model", self._program.model, "--ask-for-approval", "on-request"]
        self.terminal.start(words, self._environ, self.workspace)
        self.terminal.wait_for("Trust all and continue")
        self.terminal.press("Down", until=lambda screen: "› 2. Trust all and continue" in screen)
        self.terminal.accept("Trust all and continue")
        self.terminal.wait_for("? for shortcuts")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """As a script runs the program."""
        command = [str(self._path), "--model", self._program.model, *words]
        options: dict[str, Any] = {"env": self._environ, "capture_output": True, "text": True, "cwd": self.workspace}
        return subprocess.run(command, check=False, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, **options)

    def ask_for(self, file: str) -> None:
        """Let the model call the tool that makes a file, for which the program has to ask."""
        if self._program.name == "claude":
            self.terminal.say(f"please RUN touch {file}")
            return
        given = {"cmd": f"touch {file}", "sandbox_permissions": "require_escalated", "justification": "a file"}
        self.terminal.say(f"please CALL exec_command {json.dumps(given)}")

    def wait_for_question(self, file: str) -> dict[str, Any]:
        """The open question about a file."""

        def found() -> list[dict[str, Any]]:
            asked = self.daemon.call("questions.list", open=True)["questions"]
            return [question for question in asked if file in question["title"]]

        self.daemon.wait_for(found, f"it does not ask about {file}")
        return found()[0]

    def wait_for_request(self, text: str) -> None:
        """Return when a request to the model has a text in it."""
        self.daemon.wait_for(lambda: self.requests_with(text), f"the model does not hear {text!r}")

    def requests_with(self, *texts: str) -> list[str]:
        """The requests to the model that have all these texts in them; programs ask for titles and the like as well."""
        return [body for body in map(str, self.model.requests()) if all(text in body for text in texts)]

    def wait_for_state(self, key: str, state: str) -> None:
        def is_so() -> bool:
            return any(row["key"] == key and row["state"] == state for row in self.daemon.rows())

        self.daemon.wait_for(is_so, f"{key} is not {state}: {self.daemon.rows()}")


@pytest.fixture
def desk(request: pytest.FixtureRequest, daemon: Daemon, program: Any, program_path: Path) -> Desk:
    parts = {name: request.getfixturevalue(name) for name in ("terminal", "model", "home")}
    return Desk(daemon, program, program_path, **parts)


def test_a_program_in_a_terminal_asks_is_answered_from_elsewhere_and_hears(desk: Desk, program: Any) -> None:
    desk.start()
    desk.ask_for("birds.txt")
    question = desk.wait_for_question("birds.txt")
    key = question["sessionKey"]
    assert key.startswith(f"{program.name}:")
    desk.wait_for_state(key, "waiting")
    answered = desk.cli("call", "questions.answer", json.dumps({"id": question["id"], "optionId": "allow"}))
    assert answered.returncode == 0, answered.stderr
    desk.daemon.wait_for((desk.workspace / "birds.txt").exists, "the tool did not run")
    desk.wait_for_state(key, "done")
    desk.ask_for("wren.txt")
    question = desk.wait_for_question("wren.txt")
    refusal = {"id": question["id"], "optionId": "deny", "note": "wrens are asleep"}
    assert desk.cli("call", "questions.answer", json.dumps(refusal)).returncode == 0
    desk.wait_for_request("wrens are asleep")
    desk.wait_for_state(key, "done")
    assert not (desk.workspace / "wren.txt").exists()
    # A message waits for its next turn, and is not sent to a copy of the session.
    sent = desk.cli("send", key, "the heron is grey", "--no-wait")
    assert sent.returncode == 0, sent.stderr
    assert [row["key"] for row in desk.daemon.rows()] == [key]
    desk.terminal.say("good morning")
    desk.daemon.wait_for(lambda: desk.requests_with("good morning", "the heron is grey"), "it does not hear")
    desk.wait_for_state(key, "done")
    desk.terminal.say("good night")
    desk.daemon.wait_for(lambda: desk.requests_with("good night", "the heron is grey"), "it says nothing")
    last = desk.requests_with("good night", "the heron is grey")
    assert [body.count("the heron is grey") for body in last] == [1] * len(last), "handed over once"


def test_without_a_daemon_the_program_asks_itself(desk: Desk, program: Any) -> None:
    desk.daemon.kill()
    desk.start()
    before = time.monotonic()
    desk.ask_for("birds.txt")
    asks = "Do you want to proceed?" if program.name == "claude" else "Yes, proceed"
    desk.terminal.wait_for(asks)
    # Nothing is waited for: a model's turn and its hooks take a second or two.
    assert time.monotonic() - before < PATIENCE_S / 2
    desk.terminal.accept(asks)
    desk.daemon.wait_for((desk.workspace / "birds.txt").exists, "the tool did not run")


def test_what_is_decided_in_the_terminal_is_withdrawn(desk: Desk, program: Any) -> None:
    if program.name != "claude":
        pytest.skip("its own prompt does not show while a hook waits")
    desk.start()
    desk.ask_for("birds.txt; sleep 5")
    desk.wait_for_question("birds.txt")
    desk.terminal.accept("Do you want to proceed?")
    desk.daemon.wait_for((desk.workspace / "birds.txt").exists, "the tool did not run")
    desk.daemon.wait_for(lambda: not desk.daemon.call("questions.list", open=True)["questions"], "it is still asked")
    [question] = desk.daemon.call("questions.list")["questions"]
    assert question["status"] == "withdrawn"


def test_a_script_that_calls_the_program_waits_for_nobody(desk: Desk, program: Any) -> None:
    if program.name != "claude":
        pytest.skip("its scripts never ask")
    done = desk.run("-p", "please RUN touch birds.txt")
    assert done.returncode == 0, done.stderr
    assert not (desk.workspace / "birds.txt").exists()
    assert desk.daemon.call("questions.list")["questions"] == []


def test_what_an_agent_lets_a_person_choose_is_chosen_from_elsewhere(desk: Desk, program: Any) -> None:
    if program.name != "claude":
        pytest.skip("its agents ask in their own words")
    desk.start()
    birds = [{"label": "Heron", "description": "grey"}, {"label": "Wren", "description": "small"}]
    asked = {"question": "Which bird?", "header": "Bird", "options": birds, "multiSelect": False}
    desk.terminal.say(f"please CALL AskUserQuestion {json.dumps({'questions': [asked]})}")
    question = desk.wait_for_question("Which bird?")
    chosen = {"id": question["id"], "optionId": "2"}
    assert desk.cli("call", "questions.answer", json.dumps(chosen)).returncode == 0
    desk.wait_for_request('"Which bird?"="Wren"')


def test_a_daemon_that_dies_while_it_asks_leaves_the_program_its_own_prompt(desk: Desk, program: Any) -> None:
    desk.start()
    desk.ask_for("birds.txt")
    desk.wait_for_question("birds.txt")
    desk.daemon.kill()
    asks = "Do you want to proceed?" if program.name == "claude" else "Yes, proceed"
    desk.terminal.accept(asks)
    desk.daemon.wait_for((desk.workspace / "birds.txt").exists, "the tool did not run")
    desk.daemon.start()
    [question] = desk.daemon.call("questions.list")["questions"]
    assert question["status"] == "withdrawn"
