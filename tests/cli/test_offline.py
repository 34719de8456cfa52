"""The commands that need no daemon."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sessiond import cli
from sessiond.cli.demo_daemon import prepare
from sessiond.cli.frame.linger import advice
from sessiond.config.settings import Config, load, parse

EXEC = 'runtime = { type = "exec", command = ["true"] }\n'


def test_a_valid_configuration_is_reported_as_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[[agents.list]]\nid = "main"\ndefault = true\nruntime = { type = "echo" }\n')
    assert cli.run(["config", "check", "--config", str(file)]) == 0
    assert capsys.readouterr().out == f"{file} is good: 1 agent\n"
    assert cli.run(["config", "check", "--config", str(file), "--json"]) == 0
    told = {"ok": True, "path": str(file), "exists": True, "agents": ["main"]}
    told |= {"machines": [], "warnings": []}
    assert json.loads(capsys.readouterr().out) == told
    link = '[link]\nname = "lap"\nserver = "nats://x"\n[[link.peers]]\nname = "mars"\nkey = "AAAABBBBCCCCDDDDEEEE"\n'
    file.write_text(link)
    assert cli.run(["config", "check", "--config", str(file)]) == 0
    assert capsys.readouterr().out == f"{file} is good: 1 agent and 1 other machine\n"
    file.write_text('[agents.defaults.sandbox]\nmode = "non-main"\n[[agents.list]]\nid = "main"\n' + EXEC)
    assert cli.run(["config", "check", "--config", str(file)]) == 0
    said = capsys.readouterr().out
    assert 'warning: agent main: with sandbox.mode = "non-main" its main session runs without a sandbox' in said
    assert "-> sandbox every session" in said


def test_an_invalid_configuration_gives_exit_code_78_with_file_line_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[session]\nmainKye = "x"\n')
    assert cli.run(["config", "check", "--config", str(file)]) == 78
    said = capsys.readouterr().err
    assert str(file) in said and "mainKye" in said and "mainKey" in said and "2" in said


def test_the_output_of_config_show_is_a_valid_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    for runtime in (
        'type = "exec", command = ["a b", "c"]',
        'type = "exec", preset = "pi"',
        'type = "acp", preset = "codex", permissionRules = { read = "allow" }',
        'type = "attached"',
        'type = "echo"',
    ):
        file.write_text(f'[[agents.list]]\nid = "bob"\nruntime = {{ {runtime} }}\n')
        assert cli.run(["config", "show", "--config", str(file)]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"# {file}\n")
        assert parse(shown) == load(file)
    assert cli.run(["config", "show", "--config", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == tomllib.loads(shown)


def test_the_configuration_of_the_demo_is_valid(tmp_path: Path) -> None:
    prepare(tmp_path)
    config: Config = load(tmp_path / "config.toml")
    assert [agent.id for agent in config.agents.list] == ["main", "reader"]


def test_detected_programs_are_printed_as_valid_configuration(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("claude", "pi"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\necho 1.2.3\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def detect(*words: str, path: str = "bin") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sessiond", "agents", "detect", *words]
        environ = {"PATH": str(tmp_path / path)}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True)

    printed = detect()
    assert f"# {tmp_path}/bin/claude 1.2.3\n" in printed.stdout
    assert [agent.id for agent in parse(printed.stdout).agents.list] == ["claude", "pi"]
    assert printed.stderr.startswith("  put these lines into the configuration")
    found = json.loads(detect("--json").stdout)
    assert [program["path"] for program in found["found"]] == [f"{tmp_path}/bin/claude", f"{tmp_path}/bin/pi"]
    nothing = detect(path="none")
    assert (nothing.stdout, nothing.stderr) == (
        "",
        "  none of these programs is installed: claude, codex, gemini, opencode, pi\n",
    )


def test_lingering_is_advised_if_systemd_would_end_the_daemon_at_logout(tmp_path: Path) -> None:
    code = "import sys; from sessiond.cli.frame.linger import advice; print(advice(*sys.argv[1:]))"

    def lingering_advice(booted: Path, **environment: str) -> str:
        command = [sys.executable, "-c", code, str(tmp_path / "linger"), str(booted)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    user = pwd.getpwuid(os.getuid()).pw_name
    assert lingering_advice(tmp_path, XDG_RUNTIME_DIR="/run/user/1").endswith(
        f"keep it with: loginctl enable-linger {user}"
    )
    assert lingering_advice(tmp_path / "none", XDG_RUNTIME_DIR="/run/user/1") == "None"
    assert lingering_advice(tmp_path) == "None"
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger" / user).touch()
    assert lingering_advice(tmp_path, XDG_RUNTIME_DIR="/run/user/1") == "None"
    assert advice(booted=str(tmp_path / "none")) is None


def test_list_imports_neither_click_nor_other_slow_modules() -> None:
    code = (
        "import sys; from sessiond import cli; cli.run(['list', '--socket', '/none'])\n"
        "slow = {'click', 'trio', 'msgspec', 'structlog', 'platformdirs', 'typing', 'dataclasses', 'inspect',\n"
        "        'shutil', 'pathlib', 'subprocess', 'logging', 'asyncio', 'argparse', 'datetime'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
