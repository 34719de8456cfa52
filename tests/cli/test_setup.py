"""`sessiond setup` in a temporary home, with stand-ins for agent programs that store settings as the real ones do."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.forked_daemon import fork_server
from support.sampling import WHOLE, spread

from sessiond.config.settings import load

# Adds the server to its settings as the real one does, and logs its calls.
PROGRAM = """#!{python} -IS
import json, pathlib, sys
home = pathlib.Path.home()
with open(home / "calls", "a") as file:
    file.write(json.dumps(["{name}", *sys.argv[1:]]) + "\\n")
if sys.argv[1:2] == ["--version"]:
    print("1.2.3")
elif (home / "broken").exists():
    sys.exit("no settings to be written")
elif sys.argv[1:3] == ["mcp", "add"]:
    path = home / "{settings}"
    path.parent.mkdir(exist_ok=True)
    path.write_text({text!r})
"""
SETTINGS = {
    "claude": (".claude.json", '{"mcpServers": {"sessiond": {"command": "sessiond"}}}'),
    "codex": (".codex/config.toml", '[mcp_servers.sessiond]\ncommand = "sessiond"\n'),
    "gemini": (".gemini/settings.json", '{"mcpServers": {"sessiond": {"command": "sessiond"}}}'),
}


class Home:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.config = folder / ".config" / "sessiond" / "config.toml"
        self.environ = {"HOME": str(folder), "PATH": f"{self.programs}:/usr/bin:/bin", "LANG": "C.UTF-8"}
        for name, (settings, text) in SETTINGS.items():
            program = self.programs / name
            program.write_text(PROGRAM.format(python=sys.executable, name=name, settings=settings, text=text))
            program.chmod(0o755)

    def setup(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        if not WHOLE and not more:
            return fork_server().run(["setup", *words], self.environ)
        command = [sys.executable, "-m", "sessiond", "setup", *words]
        options: dict[str, Any] = {"env": self.environ, "capture_output": True, "text": True}
        return subprocess.run(command, check=False, **{"stdin": subprocess.DEVNULL, **options, **more})

    def calls(self) -> list[list[str]]:
        lines = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [call for call in map(json.loads, lines) if call[1:] not in (["--version"], ["--help"])]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_setup_only_shows_the_plan_without_confirmation(home: Home) -> None:
    done = home.setup("--print")
    assert done.returncode == 0, done.stderr
    assert "To ~/.config/sessiond/config.toml:" in done.stdout
    assert f"{home.programs}/codex mcp add sessiond -- sessiond mcp" in done.stdout
    assert f"{home.programs}/codex mcp remove sessiond" in done.stdout.partition("To undo it:")[2]
    plan = json.loads(home.setup("--json").stdout)
    assert (plan["path"], len(plan["lines"]), len(plan["commands"])) == (str(home.config), 1, 3)
    assert not home.config.exists() and home.calls() == []


def test_setup_adds_agents_and_their_tools_and_is_idempotent(home: Home) -> None:
    done = home.setup("--yes")
    assert done.returncode == 0, done.stderr
    config = load(home.config)
    # The built-in agent stays the default, so that no message goes to a model without being asked for.
    assert [agent.id for agent in config.agents.list] == ["main", "claude", "codex", "gemini"]
    assert (config.default_agent(), config.agents.list[0].runtime.type) == ("main", "echo")
    assert (config.tools.sessions.visibility, config.tools.agent_to_agent.enabled) == ("all", True)
    # In a run there is nobody whom the program could ask for permission.
    commands = {agent.id: agent.runtime.command for agent in config.agents.list[1:]}
    assert commands == {
        "claude": (f"{home.programs}/claude", "--allowedTools", "mcp__sessiond__*"),
        "codex": (
            f"{home.programs}/codex",
            "-c",
            'mcp_servers.sessiond={command="sessiond", args=["mcp"], default_tools_approval_mode="approve", '
            'env_vars=["SESSIOND_SOCKET", "SESSIOND_TOKEN_FILE"]}',
        ),
        "gemini": (f"{home.programs}/gemini",),
    }
    assert config.agents.list[0].subagents.allow_agents == ("claude", "codex", "gemini")
    advice = [f"  {name} " for name in ("over ACP claude", "over ACP codex", "this release of gemini")]
    assert [line[: len(start)] for line, start in zip(done.stderr.splitlines(), advice, strict=False)] == advice
    assert done.stderr.splitlines()[len(advice) :] == [
        "  a daemon that runs takes the new lines with: sessiond config reload",
        '  then try: sessiond send --agent claude "hello"',
    ]
    assert [call[:3] for call in home.calls()] == [[name, "mcp", "add"] for name in SETTINGS]
    written, calls = home.config.read_text(), home.calls()
    assert written.count("# added by: sessiond setup") == written.count("# end of what sessiond setup added") == 1
    again = home.setup("--yes")
    assert (again.returncode, again.stdout) == (0, "")
    assert "everything is set up already" in again.stderr
    assert (home.config.read_text(), home.calls()) == (written, calls)


def test_programs_that_speak_acp_become_agents_of_that_type(home: Home) -> None:
    adapter = home.programs / "claude-agent-acp"
    adapter.write_text("#!/bin/sh\n")
    adapter.chmod(0o755)
    (home.programs / "codex").rename(home.programs / "codex-acp")
    done = home.setup("--yes")
    assert done.returncode == 0, done.stderr
    runtimes = {agent.id: agent.runtime for agent in load(home.config).agents.list}
    assert [(name, runtime.type, runtime.command) for name, runtime in runtimes.items()] == [
        ("main", "echo", ()),
        ("claude", "acp", (str(adapter),)),
        ("codex", "acp", (f"{home.programs}/codex-acp",)),
        ("gemini", "exec", (f"{home.programs}/gemini",)),
    ]
    assert done.stderr.splitlines()[-1] == "  what an agent asks permission for waits for you: sessiond questions"
    # An adapter is not asked to register the tool server: it gets it with each session.
    assert [call[:3] for call in home.calls()] == [["claude", "mcp", "add"], ["gemini", "mcp", "add"]]


def test_existing_configuration_is_kept_and_left_out_of_the_plan(home: Home) -> None:
    home.config.parent.mkdir(parents=True)
    own = '[tools.sessions]\nvisibility = "tree"\n[[agents.list]]\nid = "mine"\n'
    own += 'runtime = { type = "exec", preset = "codex" }'
    home.config.write_text(own)
    assert home.setup("--yes").returncode == 0
    assert home.config.read_text().startswith(own + "\n")
    config = load(home.config)
    assert [agent.id for agent in config.agents.list] == ["mine", "claude", "gemini"]
    assert (config.tools.sessions.visibility, config.tools.agent_to_agent.enabled) == ("tree", True)
    found = fork_server().run(["agents", "detect"], home.environ)
    assert (found.stdout, found.stderr) == ("", "  configured already: claude, codex, gemini\n")


def test_without_a_terminal_to_confirm_on_nothing_is_done(home: Home) -> None:
    done = home.setup()
    assert (done.returncode, home.config.exists(), home.calls()) == (2, False, [])
    assert "sessiond setup --yes" in done.stderr


@pytest.mark.parametrize(("answer", "status"), spread([("y", 0), ("n", 1), ("", 1)], 2))
def test_setup_asks_once(home: Home, answer: str, status: int) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode() + b"\n")
    done = home.setup(stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert (done.returncode, home.config.exists()) == (status, status == 0)
    assert done.stdout.count("Do this? [y/N]") == 1


def test_failing_programs_are_reported_and_the_configuration_is_still_written(home: Home) -> None:
    (home.folder / "broken").touch()
    done = home.setup("--yes")
    assert done.returncode == 1
    for text in ("\nno settings to be written\n", " does not have them, since this failed: "):
        assert done.stdout.count(text) == 3
    assert home.config.exists()


def test_without_any_agent_program_setup_says_what_to_do(home: Home) -> None:
    for program in home.programs.iterdir():
        program.unlink()
    done = home.setup()
    assert (done.returncode, done.stdout, home.config.exists()) == (0, "", False)
    assert "none of these programs is in your PATH: claude, codex, gemini, opencode, pi" in done.stderr
    assert "run this again" in done.stderr


def test_setup_refuses_to_run_on_an_invalid_configuration(home: Home) -> None:
    home.config.parent.mkdir(parents=True)
    home.config.write_text("[agnets]\n")
    done = home.setup("--yes")
    assert (done.returncode, home.config.read_text(), home.calls()) == (78, "[agnets]\n", [])


def test_a_configuration_file_that_is_a_symlink_stays_one(home: Home) -> None:
    dotfiles = home.folder / "dotfiles.toml"
    dotfiles.touch(mode=0o600)
    home.config.parent.mkdir(parents=True, mode=0o700)
    home.config.symlink_to(dotfiles)
    assert home.setup("--yes").returncode == 0
    assert home.config.is_symlink() and "claude" in dotfiles.read_text()
