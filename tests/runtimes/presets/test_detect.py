from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessiond.config.settings import load
from sessiond.runtimes.presets.acp import acp_command
from sessiond.runtimes.presets.detect import DetectedProgram, detect


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "my bin"
    folder.mkdir()
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_nothing_installed_is_nothing_found(bin_folder) -> None:
    assert detect(str(bin_folder)) == []


def test_a_program_is_found_with_its_version_and_its_lines(bin_folder, tmp_path) -> None:
    script(bin_folder / "codex", "#!/bin/sh\necho 'codex-cli 0.169.0'\n")
    found = detect(str(bin_folder))
    assert found == [
        DetectedProgram(
            preset="codex",
            path=f"{bin_folder}/codex",
            version="0.169.0",
            config='[[agents.list]]\nid = "codex"\n'
            f'runtime = {{ type = "exec", preset = "codex", command = ["{bin_folder}/codex"] }}\n',
            hint="over ACP codex stays warm between messages: npm install -g @agentclientprotocol/codex-acp, then run"
            " this again",
        )
    ]
    (tmp_path / "config.toml").write_text(found[0].config)
    agent = load(tmp_path / "config.toml").agents.list[0]
    assert (agent.id, agent.runtime.preset, agent.runtime.command) == ("codex", "codex", (f"{bin_folder}/codex",))


@pytest.mark.parametrize(
    "words",
    [("--allowedTools", "mcp__sessiond__*"), ("-c", 'x={command="/a b/c"}'), ("it's", '"both" isn\'t', 'a\n"b', "\\")],
)
def test_words_of_a_program_follow_it_in_its_command(bin_folder, tmp_path, words: tuple[str, ...]) -> None:
    script(bin_folder / "codex", "#!/bin/sh\n")
    script(bin_folder / "claude", "#!/bin/sh\n")
    found = detect(str(bin_folder), words={"codex": words})
    (tmp_path / "config.toml").write_text("".join(one.config for one in found))
    commands = {agent.id: agent.runtime.command for agent in load(tmp_path / "config.toml").agents.list}
    assert commands == {"codex": (f"{bin_folder}/codex", *words), "claude": (f"{bin_folder}/claude",)}


def test_a_script_gets_the_folder_of_its_interpreter(bin_folder, tmp_path) -> None:
    script(bin_folder / "node", "#!/bin/sh\necho 'v1.2.3 of the interpreter'\n")
    script(bin_folder / "gemini", "#!/usr/bin/env -S node --flag\n")
    found = detect(f"{bin_folder}{os.pathsep}/usr/bin:/bin")
    gemini = next(one for one in found if one.preset == "gemini")
    (tmp_path / "config.toml").write_text(gemini.config)
    env = load(tmp_path / "config.toml").agents.list[0].runtime.env
    assert env["PATH"].split(":")[0] == str(bin_folder)


def test_a_program_that_does_not_answer_is_found_without_a_version(bin_folder) -> None:
    script(bin_folder / "claude", "#!/no/such/interpreter\n")
    script(bin_folder / "pi", "#!/bin/sh\nexit 3\n")
    assert [(one.preset, one.version) for one in detect(str(bin_folder))] == [("claude", None), ("pi", None)]


HELPS = '#!/bin/sh\necho "usage: $1 {help}" >&{stream}\n'


def test_acp_is_preferred_where_the_program_or_its_adapter_is_there(bin_folder, tmp_path) -> None:
    script(bin_folder / "claude", "#!/bin/sh\necho 2.1.0\n")
    script(bin_folder / "claude-agent-acp", "#!/usr/bin/env node\n")
    script(bin_folder / "node", "#!/bin/sh\n")
    script(bin_folder / "gemini", HELPS.format(help="  --acp  Starts the agent in ACP mode", stream=1))
    script(bin_folder / "opencode", HELPS.format(help="  opencode acp  start ACP server", stream=2))
    found = detect(str(bin_folder), words={"claude": ["--allowedTools", "x"]})
    assert [(one.preset, one.path, one.version, one.runtime, one.hint) for one in found] == [
        ("claude", f"{bin_folder}/claude", "2.1.0", "acp", None),
        ("gemini", f"{bin_folder}/gemini", None, "acp", None),
        ("opencode", f"{bin_folder}/opencode", None, "acp", None),
    ]
    (tmp_path / "config.toml").write_text("".join(one.config for one in found))
    runtimes = {agent.id: agent.runtime for agent in load(tmp_path / "config.toml").agents.list}
    # The words are of the program, and what it needs of sessiond is handed to it over ACP.
    assert {name: acp_command(runtime) for name, runtime in runtimes.items()} == {
        "claude": (f"{bin_folder}/claude-agent-acp",),
        "gemini": (f"{bin_folder}/gemini", "--acp"),
        "opencode": (f"{bin_folder}/opencode", "acp"),
    }
    assert runtimes["claude"].env["PATH"].split(":")[0] == str(bin_folder)


def test_an_adapter_without_its_program_is_found(bin_folder) -> None:
    script(bin_folder / "codex-acp", "#!/bin/sh\nexit 3\n")
    (found,) = detect(str(bin_folder))
    assert (found.preset, found.path, found.version, found.runtime, found.hint) == ("codex", None, None, "acp", None)
    assert f'command = ["{bin_folder}/codex-acp"]' in found.config


def test_a_release_without_acp_is_run_without_it_and_the_way_to_a_newer_one_is_told(bin_folder) -> None:
    script(bin_folder / "gemini", HELPS.format(help="--experimental-acp, --acpx, --no--acp", stream=1))
    script(bin_folder / "opencode", "#!/bin/sh\nexit 1\n")
    script(bin_folder / "pi", "#!/bin/sh\n")
    assert [(one.preset, one.runtime, one.hint) for one in detect(str(bin_folder))] == [
        (
            "gemini",
            "exec",
            "this release of gemini does not speak ACP, newer ones do: npm install -g @google/gemini-cli, then run"
            " this again",
        ),
        (
            "opencode",
            "exec",
            "this release of opencode does not speak ACP, newer ones do: npm install -g opencode-ai, then run this"
            " again",
        ),
        ("pi", "exec", None),
    ]
