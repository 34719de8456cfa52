"""Find the installed agent programs, and the configuration lines for them. Starts each once, to ask its version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from sessiond.config.settings import Config
from sessiond.runtimes.presets import PRESETS

# Roughly the PATH of a service of the user's systemd; a shell has more.
_SERVICE_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_VERSION = re.compile(r"\d+(?:\.\d+)+\S*")
# The slowest program takes two seconds on a busy machine.
_VERSION_S = 20


class DetectedProgram(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An installed agent program. `config` are the lines for the configuration file."""

    preset: str
    path: str
    version: str | None
    config: str


def detect(path: str, *, words: Mapping[str, Sequence[str]] | None = None) -> list[DetectedProgram]:
    """The agent programs found in `path` (a PATH), in the order of PRESETS. `words` are extra arguments, by preset."""
    found = []
    for name, preset in PRESETS.items():
        program = shutil.which(preset.program, path=path)
        if program is not None:
            where = os.path.abspath(program)
            config = _config(name, where, path, (words or {}).get(name, ()))
            found.append(DetectedProgram(preset=name, path=where, version=_version(where, path), config=config))
    return found


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


def _version(program: str, path: str) -> str | None:
    try:
        done = subprocess.run(
            [program, "--version"],
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_VERSION_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = _VERSION.search(done.stdout.decode("utf-8", "replace"))
    return version[0] if version is not None else None


def _config(name: str, program: str, path: str, words: Sequence[str]) -> str:
    """The configuration lines, with full paths of programs that are not in _SERVICE_PATH."""
    parts = ['type = "exec"', f"preset = {_quote(name)}"]
    is_found = os.path.dirname(program) in _SERVICE_PATH
    if words or not is_found:
        command = [PRESETS[name].program if is_found else program, *words]
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
