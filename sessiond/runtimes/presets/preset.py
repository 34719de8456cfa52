"""A preset: how a known agent program is started, and how its streaming JSON is parsed. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from sessiond.runtimes.output import LineParser
from sessiond.runtimes.runtime import RunSpec

# The id comes from the program's output and goes into its argv: it must not look like an option.
_NATIVE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One agent program. All of them read the message from stdin.

    `arguments(spec, resume, extra)` are the arguments: `resume` is the program's own id of the conversation to resume,
    if any, `extra` the arguments in the configuration. `session_lost` matches the error of a program that no longer
    knows the conversation. All can begin with a copy of a conversation (`session_to_fork`); if only newer
    releases can, `fork_help` are arguments that ask for help on it, and what the help has to say.
    """

    name: str
    program: str
    arguments: Callable[[RunSpec, str | None, Sequence[str]], list[str]]
    parser: Callable[[RunSpec], LineParser]
    session_lost: re.Pattern[str]
    fork_help: tuple[tuple[str, ...], re.Pattern[str]] | None = None

    def command(self, spec: RunSpec, configured: Sequence[str]) -> list[str]:
        """The whole command line.

        The first word of a configured `command` replaces the program (usually with its full path); the others are added
        to the preset's arguments.
        """
        program, *extra = configured or (self.program,)
        return [program, *self.arguments(spec, session_to_resume(spec), extra)]


def session_to_resume(spec: RunSpec) -> str | None:
    """The program's own id of the conversation to resume; None for a new one. Data of the parser may follow a space."""
    known = (spec.native_session_id or "").partition(" ")[0]
    return known if native_id(known) else None


def session_to_fork(spec: RunSpec) -> str | None:
    """The program's own id of the conversation with whose copy this one begins; None where it has begun already."""
    return spec.fork_of if session_to_resume(spec) is None and native_id(spec.fork_of) else None


def native_id(value: object) -> bool:
    """Whether this can be a program's own session id."""
    return isinstance(value, str) and _NATIVE_ID.fullmatch(value) is not None
