"""Whether an installed agent program can begin with a copy of a conversation. Starts it once, to ask for its help."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import trio

from sessiond.config.settings import RuntimeConfig
from sessiond.runtimes.exec import program_environment
from sessiond.runtimes.presets import PRESETS

# The slowest program takes two seconds on a busy machine.
_HELP_S = 20


async def forks(runtime: RuntimeConfig, environ: Mapping[str, str], workspace: Path) -> bool:
    """Whether the program of a runtime with a preset can do so.

    True as well where the program cannot be asked: the run that starts it says what is wrong with it. So does an agent
    that speaks ACP, which says what it can do when it is started.
    """
    if runtime.type == "acp":
        return True
    preset = PRESETS[runtime.preset or ""]
    if preset.fork_help is None:
        return True
    words, expected = preset.fork_help
    program = runtime.command[0] if runtime.command else preset.program
    program = str(workspace / program) if "/" in program else program
    try:
        with trio.fail_after(_HELP_S):
            done = await trio.run_process(
                [program, *words],
                stdin=b"",
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=program_environment(environ, runtime.env),
            )
    except (OSError, ValueError, trio.TooSlowError):
        return True
    return expected.search(done.stdout.decode("utf-8", "replace")) is not None
