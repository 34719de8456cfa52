"""Find the installed agent programs, and the configuration lines for them: over ACP where the program has it.

Starts each once, to ask its version, and one that may speak ACP itself once more, to ask for its help.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from sessiond.config.settings import Config
from sessiond.runtimes.presets import PRESETS
from sessiond.runtimes.presets.acp import AcpForm, acp_form

# Roughly the PATH of a service of the user's systemd; a shell has more.
_SERVICE_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_VERSION = re.compile(r"\d+(?:\.\d+)+\S*")
# The slowest program takes two seconds on a busy machine.
_ANSWER_S = 20
_Asked = subprocess.Popen[bytes]


class DetectedProgram(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An installed agent program. `config` are the lines for the configuration file.

    `path` is None where only its adapter for ACP is installed. `hint` says how to get what speaks ACP, where there is
    such a thing and it is not installed.
    """

    preset: str
    path: str | None
    version: str | None
    runtime: Literal["exec", "acp"] = "exec"
    config: str
    hint: str | None = None


def detect(path: str, *, words: Mapping[str, Sequence[str]] | None = None) -> list[DetectedProgram]:
    """The agent programs found in `path` (a PATH), in the order of PRESETS.

    `words` are extra arguments of the programs as they are run without ACP, by preset.
    """
    found = []
    for name, preset in PRESETS.items():
        program = _find(preset.program, path)
        form = acp_form(name)
        # Both at once: the slowest program takes seconds for each.
        version = _ask(program, "--version", path)
        help_text = _ask(program if form is not None and form.help is not None else None, "--help", path)
        speaker = _find_speaker(form, program, path, help_text)
        if program is None and speaker is None:
            continue
        if form is not None and speaker is not None:
            config = _config("acp", name, form.program, speaker, path)
        else:
            config = _config("exec", name, preset.program, program or "", path, words=(words or {}).get(name, ()))
        version_text = _VERSION.search(_read(version)[0])
        found.append(
            DetectedProgram(
                preset=name,
                path=program,
                version=version_text[0] if version_text is not None else None,
                runtime="exec" if speaker is None else "acp",
                config=config,
                hint=_hint(name, form) if form is not None and speaker is None else None,
            )
        )
    return found


def _hint(name: str, form: AcpForm) -> str:
    if form.help is not None:
        return f"this release of {name} does not speak ACP, newer ones do: {form.remedy}, then run this again"
    return f"over ACP {name} stays warm between messages: {form.remedy}, then run this again"


def _find(program: str, path: str) -> str | None:
    found = shutil.which(program, path=path)
    return os.path.abspath(found) if found is not None else None


def _find_speaker(form: AcpForm | None, program: str | None, path: str, asked: _Asked | None) -> str | None:
    """The program that speaks ACP: an adapter, or the program itself where its help says so; None if there is none."""
    if form is None:
        return None
    if form.help is None:
        return _find(form.program, path)
    # The help of some programs is on standard error.
    return program if form.help.search("".join(_read(asked))) else None


def not_configured(found: Iterable[DetectedProgram], config: Config) -> list[DetectedProgram]:
    """The programs that are neither the id nor the preset of a configured agent."""
    ids = {agent.id for agent in config.agents.list}
    presets = {getattr(agent.runtime, "preset", None) for agent in config.agents.list}
    return [program for program in found if program.preset not in ids and program.preset not in presets]


def agent_lines(preset: str, taken: Collection[str]) -> str:
    """The configuration lines of a new agent with this preset; `taken` are the ids of the other agents."""
    ids = (preset, *(f"{preset}-{number}" for number in range(2, len(taken) + 3)))
    agent_id = next(one for one in ids if one not in taken)
    return f'[[agents.list]]\nid = "{agent_id}"\nruntime = {{ type = "exec", preset = "{preset}" }}\n'


def _ask(program: str | None, option: str, path: str) -> _Asked | None:
    """The program, started with this option; None if it cannot be started or there is none."""
    if program is None:
        return None
    try:
        return subprocess.Popen(
            [program, option],
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError:
        return None


def _read(asked: _Asked | None) -> tuple[str, str]:
    """What the program printed to standard output and error; nothing if it does not end."""
    if asked is None:
        return "", ""
    with asked:
        try:
            out, err = asked.communicate(timeout=_ANSWER_S)
        except subprocess.TimeoutExpired:
            asked.kill()
            return "", ""
    return out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def _config(
    kind: Literal["exec", "acp"], name: str, usual: str, program: str, path: str, *, words: Sequence[str] = ()
) -> str:
    """The configuration lines, with full paths of programs that are not in _SERVICE_PATH.

    `usual` is the name by which the preset starts its program, `program` where that is.
    """
    parts = [f"type = {_quote(kind)}", f"preset = {_quote(name)}"]
    is_found = os.path.dirname(program) in _SERVICE_PATH
    if words or not is_found:
        command = [usual if is_found else program, *words]
        parts.append(f"command = [{', '.join(map(_quote, command))}]")
    interpreter = _interpreter(program, path)
    if interpreter is not None and os.path.dirname(interpreter) not in _SERVICE_PATH:
        parts.append(f"env = {{ PATH = {_quote(':'.join((os.path.dirname(interpreter), *_SERVICE_PATH)))} }}")
    return f"[[agents.list]]\nid = {_quote(name)}\nruntime = {{ {', '.join(parts)} }}\n"


def _interpreter(program: str, path: str) -> str | None:
    word = interpreter_word(program)
    return shutil.which(word, path=path) if word is not None else None


def interpreter_word(program: str) -> str | None:
    """The NAME in the first line `#!/usr/bin/env NAME` of a script; None for any other file."""
    try:
        with Path(program).open("rb") as file:
            words = file.readline(256).decode("utf-8", "replace").split()
    except OSError:
        return None
    names = [word for word in words[1:] if not word.startswith("-")]
    return names[0] if words[:1] == ["#!/usr/bin/env"] and names else None


def _quote(text: str) -> str:
    # A JSON string is a TOML basic string. Text with quotation marks is easier to read as a literal string.
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return msgspec.json.encode(text).decode()
