"""The recipes of docs/sandbox.md with the real programs, which use the login and the settings of the user's home,
cannot change them, and keep their own files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import trio
from support.real_daemon import Daemon

from sessiond.cli.terminal.toml import render
from sessiond.runtimes.sandbox import Bubblewrap

pytestmark = pytest.mark.agents
PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()
TITLES = {"claude": "Claude Code", "codex": "Codex", "gemini": "Gemini CLI", "opencode": "opencode", "pi": "pi"}
RUN_MS = 120_000


def recipe(name: str) -> tuple[str, dict[str, Any]]:
    """The shell commands and the agent in a program's section."""
    section = PAGE.partition(f"\n## {TITLES[name]}\n")[2].partition("\n## ")[0]
    blocks = dict(re.findall(r"```(sh|toml)\n(.*?)```", section, re.DOTALL))
    (agent,) = tomllib.loads(blocks["toml"])["agents"]["list"]
    return blocks["sh"], agent


def log_in(name: str, home: Path, port: int) -> dict[str, str]:
    """Write settings and a login into `home`, as a user has them; the variables that only the stub needs."""
    base = f"http://127.0.0.1:{port}"
    files: dict[str, Any]
    match name:
        case "claude":
            login = {"accessToken": "stub", "refreshToken": "stub", "expiresAt": 4e12, "scopes": ["user:inference"]}
            env = {"ANTHROPIC_BASE_URL": base, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
            files = {
                ".claude/.credentials.json": {"claudeAiOauth": login},
                ".claude/settings.json": {"env": {**env, "DISABLE_AUTOUPDATER": "1"}},
            }
        case "codex":
            (home / ".codex").mkdir()
            (home / ".codex" / "config.toml").write_text(
                'model_provider = "local"\n[model_providers.local]\nname = "local"\nwire_api = "responses"\n'
                f'base_url = "{base}/v1"\nrequires_openai_auth = true\n'
            )
            files = {".codex/auth.json": {"OPENAI_API_KEY": "stub"}}
        case "gemini":
            files = {
                ".gemini/settings.json": {"security": {"auth": {"selectedType": "gemini-api-key"}}},
                ".gemini/oauth_creds.json": {},
                ".gemini/google_accounts.json": {},
            }
        case "opencode":
            options = {"baseURL": f"{base}/v1"}
            settings = {"autoupdate": False, "share": "disabled", "provider": {"anthropic": {"options": options}}}
            files = {
                ".config/opencode/opencode.json": {**settings, "small_model": "anthropic/claude-sonnet-4-5"},
                ".local/share/opencode/auth.json": {"anthropic": {"type": "api", "key": "stub"}},
            }
        case _:
            files = {
                ".pi/agent/models.json": {"providers": {"anthropic": {"baseUrl": base}}},
                ".pi/agent/auth.json": {"anthropic": {"type": "api_key", "key": "stub"}},
                ".pi/agent/settings.json": {},
            }
    for path, content in files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(json.dumps(content))
    own = {"gemini": {"GEMINI_API_KEY": "stub", "GOOGLE_GEMINI_BASE_URL": base}, "pi": {"PI_OFFLINE": "1"}}
    own["opencode"] = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return own.get(name, {})


class SandboxedDaemon:
    """A daemon with the agent of the recipe, in a home with a login. Over ACP where there is a `speaker`."""

    def __init__(
        self, daemon: Daemon, program: Any, path: Path, model: Any, home: Path, *, speaker: Any = None
    ) -> None:
        self.daemon, self.home, self.model = daemon, home, model
        lines, agent = recipe(program.name)
        own = log_in(program.name, home, model.port)
        env = {"HOME": str(home), "PATH": os.environ["PATH"]}
        subprocess.run(["bash", "-euc", lines], env=env, check=True)
        self.id = agent["id"]
        runtime = agent["runtime"]
        # The path of the program, as `agents detect` prints it, and the tools that the user permits.
        extra = ("--allowedTools", "Bash") if program.name == "claude" else program.extra
        runtime["command"] = [str(path), *extra]
        runtime["env"] |= own
        if speaker is not None:
            command, variables = speaker
            options = [f"--model={program.model}"] if program.name == "gemini" else []
            runtime |= {"type": "acp", "command": [*command, *options], "permissions": "allow"}
            runtime["env"] |= variables
            shown = {_packages(Path(word)) for word in (*command, str(path)) if Path(word).is_absolute()}
            agent["sandbox"]["readOnly"] += [str(folder) for folder in shown]
            if program.name == "codex":
                runtime["env"]["INITIAL_AGENT_MODE"] = "agent-full-access"
                settings = home / ".codex" / "config.toml"
                settings.write_text(f'model = "{program.model}"\n{settings.read_text()}')
        agent["model"] = program.model
        daemon.environ["HOME"] = str(home)
        daemon.start("\n".join(render({"agents": {"list": [agent]}})) + "\n")
        self.read_only = [home / one.removeprefix("~/") for one in agent["sandbox"]["readOnly"]]
        self.own_home = home / agent["workspace"].removeprefix("~/") / "home"

    def say(self, text: str) -> Any:
        sent = self.daemon.call("chat.send", sessionKey=f"agent:{self.id}:main", message=text)
        with self.daemon.connect() as wire:
            wire.socket.settimeout(RUN_MS / 1000 + 10)
            return wire.call("agent.wait", runId=sent["runId"], timeoutMs=RUN_MS)


def _packages(path: Path) -> Path:
    """The folder `node_modules` that a file of a package is in."""
    return next(folder for folder in path.parents if folder.name == "node_modules")


@pytest.fixture
def box(daemon: Daemon, program: Any, program_path: Path, model: Any, home: Path) -> SandboxedDaemon:
    reason = trio.run(Bubblewrap(private=()).find_problem)
    if reason is not None:
        pytest.skip(reason)
    return SandboxedDaemon(daemon, program, program_path, model, home)


# Many times longer than the daemon keeps an idle thread.
SLOW_S = 60


@pytest.mark.parametrize("program", ["claude", "codex"], indirect=True)
def test_a_run_of_a_minute_ends_ok_on_an_otherwise_idle_daemon(box: SandboxedDaemon) -> None:
    ended = box.say(f"please answer SLOWLY {SLOW_S}")
    assert (ended["status"], ended.get("reply", "").rstrip()) == ("ok", f"Answer 1 to: please answer SLOWLY {SLOW_S}")
    assert ended["endedAt"] - ended["startedAt"] >= SLOW_S * 1000


def test_a_recipe_of_the_page_works(box: SandboxedDaemon) -> None:
    (box.home / "secret.txt").write_text("the heron is grey")
    before = {path: path.read_bytes() for path in box.read_only}
    shown = " ".join(str(path) for path in box.read_only)
    # In a script, because some programs ask for permission if a command names files outside of the workspace.
    (box.own_home.parent / "probe.sh").write_text(
        f"for f in {shown}; do echo x >> $f || echo kept; done; cat {box.home}/secret.txt; true\n"
    )
    ended = box.say("please RUN sh probe.sh")
    assert ended["status"] == "ok", ended
    assert ended["reply"].count("kept") == len(box.read_only), ended
    assert "heron" not in ended["reply"]
    assert {path: path.read_bytes() for path in box.read_only} == before
    # The program keeps its conversation in the home of this agent.
    again = box.say("and again")
    assert again["status"] == "ok" and again["reply"].rstrip() == "Answer 2 to: and again", again
    assert any(path.is_file() and not path.is_symlink() for path in box.own_home.rglob("*"))
    tried = box.daemon.cli("agents", "test", box.id, timeout=100)
    assert tried.returncode == 0 and "answered after" in tried.stdout, tried.stderr


@pytest.mark.parametrize("program", ["claude", "codex", "gemini", "opencode"], indirect=True)
def test_a_recipe_serves_over_acp_as_well(
    daemon: Daemon, program: Any, program_path: Path, speaker: Any, request: pytest.FixtureRequest
) -> None:
    reason = trio.run(Bubblewrap(private=()).find_problem)
    if reason is not None:
        pytest.skip(reason)
    model, home = (request.getfixturevalue(name) for name in ("model", "home"))
    box = SandboxedDaemon(daemon, program, program_path, model, home, speaker=speaker)
    (box.home / "secret.txt").write_text("the heron is grey")
    (box.own_home.parent / "probe.sh").write_text(f"cat {box.home}/secret.txt; echo forty-two\n")
    ended = box.say("please RUN sh probe.sh")
    assert ended["status"] == "ok", ended
    assert "forty-two" in ended["reply"] and "heron" not in ended["reply"]
    assert box.say("and again")["reply"].rstrip() == "Answer 2 to: and again"
