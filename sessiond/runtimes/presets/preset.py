"""What a preset is: how a known agent program is called, and how its streaming JSON is read. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from sessiond.runtimes.output import LineParser
from sessiond.runtimes.runtime import RunSpec

# It comes from the program's output and goes into its argv: nothing that an option could be mistaken for.
_NATIVE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One agent program. All of them read the message on stdin.

    `arguments(spec, resume, extra)` is what follows the program's name: `resume` is the program's own session id where
    there is a conversation to go on with, `extra` what the user adds. `gone` matches the error of a program that does
    not know that conversation any more.
    """

    name: str
    program: str
    arguments: Callable[[RunSpec, str | None, Sequence[str]], list[str]]
    parser: Callable[[RunSpec], LineParser]
    gone: re.Pattern[str]

    def command(self, spec: RunSpec, configured: Sequence[str]) -> list[str]:
        """The whole command line.

        The first word of a configured `command` stands for the program (its full path); the others are added to the
        preset's own arguments.
        """
        program, *extra = configured or (self.program,)
        return [program, *self.arguments(spec, session_to_resume(spec), extra)]


def session_to_resume(spec: RunSpec) -> str | None:
    """The program's own session id that the turn goes on with. What follows it after a space is the parser's."""
    known = (spec.native_session_id or "").partition(" ")[0]
    return known if native_id(known) else None


def native_id(value: object) -> bool:
    """Whether this can be a program's own session id."""
    return isinstance(value, str) and _NATIVE_ID.fullmatch(value) is not None
