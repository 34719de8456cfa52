"""Agents whose program is not there: told by `config check` and `doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.in_process import in_process_daemon

from sessiond.config.settings import parse
from sessiond.runtimes.presets.detect import interpreter_word
from sessiond.runtimes.presets.missing import missing_programs


def agents(*runtimes: dict[str, Any]) -> str:
    lines = []
    for number, runtime in enumerate(runtimes):
        env = runtime.get("env", {})
        fields = [f"{name} = {json.dumps(value)}" for name, value in runtime.items() if name != "env"]
        if env:
            fields.append("env = {" + ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items()) + "}")
        lines.append(f'[[agents.list]]\nid = "a{number}"\nruntime = {{ {", ".join(fields)} }}\n')
    return "".join(lines)


def told(path: str | None, *runtimes: dict[str, Any]) -> list[str]:
    found = list(missing_programs(parse(agents(*runtimes)).agents.list, path))
    assert all(hint for _, hint in found)
    return [what for what, _ in found]


def script(path: Path, first: str = "#!/bin/sh", mode: int = 0o755) -> Path:
    path.write_text(first + "\n")
    path.chmod(mode)
    return path


def test_programs_that_exist_are_not_reported(tmp_path: Path) -> None:
    program = script(tmp_path / "claude")
    runtimes: list[dict[str, Any]] = [
        {"type": "exec", "preset": "claude"},
        {"type": "exec", "preset": "codex", "command": [str(program), "--flag"]},
        {"type": "exec", "command": ["claude"]},
        {"type": "exec", "command": ["./tool-in-the-workspace"]},
        {"type": "exec", "command": ["{workspace}/tool"]},
        {"type": "echo"},
        {"type": "attached"},
    ]
    assert told(str(tmp_path), *runtimes) == []


def test_a_missing_program_is_reported_with_the_searched_path(tmp_path: Path) -> None:
    nowhere = str(tmp_path)
    plain = script(tmp_path / "plain", mode=0o644)
    assert told(nowhere, {"type": "exec", "preset": "claude"}) == [
        f"agent a0: its program claude is not there (looked for in {nowhere})"
    ]
    assert told("/usr/bin", {"type": "exec", "preset": "pi", "env": {"PATH": nowhere}}) == [
        f"agent a0: its program pi is not there (looked for in {nowhere})"
    ]
    assert told(None, {"type": "exec", "command": ["/no/such"]}) == ["agent a0: its program /no/such is not there"]
    assert told(None, {"type": "exec", "command": [str(plain)]}) == [
        f"agent a0: its program {plain} is not there, or may not be run"
    ]


def test_a_missing_adapter_is_reported_with_its_package(tmp_path: Path) -> None:
    script(tmp_path / "opencode")
    found = {
        preset: list(missing_programs(parse(agents({"type": "acp", "preset": preset})).agents.list, path=str(tmp_path)))
        for preset in ("claude", "codex", "opencode")
    }
    assert found == {
        preset: [
            (
                f"agent a0: its program {program} is not there (looked for in {tmp_path})",
                f"install it (npm install -g @agentclientprotocol/{program}), or give its whole path in"
                " runtime.command",
            )
        ]
        for preset, program in (("claude", "claude-agent-acp"), ("codex", "codex-acp"))
    } | {"opencode": []}


def test_a_script_without_its_interpreter_is_reported(tmp_path: Path) -> None:
    gemini = script(tmp_path / "gemini", "#!/usr/bin/env -S node-of-nowhere --flag")
    assert told(str(tmp_path), {"type": "exec", "preset": "gemini"}) == [
        f"agent a0: {gemini} needs node-of-nowhere, which is not there (looked for in {tmp_path})"
    ]
    script(tmp_path / "node-of-nowhere")
    assert told(str(tmp_path), {"type": "exec", "preset": "gemini"}) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.binary(max_size=50).map(lambda rest: b"#!/usr/bin/env " + rest))
def test_a_first_line_of_any_bytes_is_read(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "program"
    file.write_bytes(data)
    word = interpreter_word(str(file))
    assert word is None or word


async def test_doctor_reports_a_missing_program(tmp_path: Path) -> None:
    config = agents({"type": "exec", "command": ["/no/such/program"]})
    async with in_process_daemon(tmp_path, config) as there, there.connect() as owner:
        findings = (await owner.call("daemon.doctor"))["findings"]
    (found,) = [one for one in findings if "/no/such" in one["what"]]
    assert (found["level"], found["what"]) == ("warn", "agent a0: its program /no/such/program is not there")


@pytest.mark.parametrize("as_json", [False, True])
def test_config_check_reports_a_missing_program_and_the_configuration_is_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    from sessiond.cli import config as command
    from sessiond.cli.frame.command import Args

    file = tmp_path / "config.toml"
    file.write_text(agents({"type": "exec", "command": ["/no/such/program"]}))
    command.check(Args(config=str(file), json=as_json))
    said = capsys.readouterr().out
    assert "agent a0: its program /no/such/program is not there" in said
    assert json.loads(said)["ok"] if as_json else "is good" in said
