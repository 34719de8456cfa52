from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessiond.config.settings import load
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
