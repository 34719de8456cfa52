"""Find configured agents whose program is missing, before their first message fails. Starts nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from sessiond.config.settings import AgentConfig
from sessiond.runtimes.presets import PRESETS
from sessiond.runtimes.presets.acp import acp_command, acp_form
from sessiond.runtimes.presets.detect import interpreter_word

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def missing_programs(agents: Iterable[AgentConfig], path: str | None) -> Iterator[tuple[str, str]]:
    """`(problem, advice)` for each agent whose program is missing. `path` is the daemon's PATH.

    Not checked: programs in the workspace, which may be put there later, and names with a placeholder.
    """
    for agent in agents:
        word = _program_word(agent)
        if word is None or "{" in word or ("/" in word and not os.path.isabs(word)):
            continue
        within = agent.runtime.env.get("PATH") or path or DEFAULT_PATH
        found = shutil.which(word, path=within)
        if found is None:
            what = f"agent {agent.id}: its program {word} is not there"
            if "/" not in word:
                form = acp_form(agent.runtime.preset) if agent.runtime.type == "acp" else None
                install = f"install it ({form.remedy})" if form is not None and form.program == word else "install it"
                yield f"{what} (looked for in {within})", f"{install}, or give its whole path in runtime.command"
            else:
                is_file = Path(word).is_file()
                yield what + (", or may not be run" if is_file else ""), "install it, or mend runtime.command"
            continue
        interpreter = interpreter_word(found)
        if interpreter is not None and shutil.which(interpreter, path=within) is None:
            hint = f"put the folder of {interpreter} into the PATH of runtime.env (sessiond agents detect shows how)"
            yield f"agent {agent.id}: {found} needs {interpreter}, which is not there (looked for in {within})", hint


def _program_word(agent: AgentConfig) -> str | None:
    if agent.runtime.type == "acp":
        return acp_command(agent.runtime)[0]
    if agent.runtime.type != "exec":
        return None
    if agent.runtime.command:
        return agent.runtime.command[0]
    return PRESETS[agent.runtime.preset].program if agent.runtime.preset is not None else None
