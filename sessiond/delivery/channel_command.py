"""The command that delivers a text: its command line, with the placeholders filled in, and its run.

Source: runs.md, "Channels and delivery", "Notifications".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import trio

from sessiond.config.notify import WORDS
from sessiond.runtimes import process
from sessiond.runtimes.launcher import CannotStart, ProgramCommand
from sessiond.runtimes.runtime import Shortage

# The kernel refuses arguments of more than 128 KiB (MAX_ARG_STRLEN). Longer texts are cut instead of not delivered.
MAX_ARGUMENT_BYTES = 120 * 1024
_CUT = " [...]"
_PLACEHOLDER = re.compile(r"\{([a-zA-Z]+)\}")
# The variables that a program needs to find its tools, its language and the user's desktop.
_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_[A-Z]+|TZ|TMPDIR|XDG_[A-Z_]+"
    r"|DBUS_SESSION_BUS_ADDRESS|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY"
)


class CommandFailure(Exception):
    """The command was not started, or did not end well; the message is a sentence for a person."""


def command_for(
    template: tuple[str, ...], fields: Mapping[str, str], *, environ: Mapping[str, str], cwd: Path
) -> ProgramCommand:
    """The command with the placeholders of `fields` filled in. Other braces stay as they are."""
    env = {name: value for name, value in environ.items() if _INHERITED.fullmatch(name)}
    return ProgramCommand(argv=tuple(_fill(part, fields) for part in template), env=env, cwd=cwd)


async def run_command(command: ProgramCommand, what: str, limit_s: float) -> None:
    """Run the command; returns when it has ended with status 0. CommandFailure if it does not within `limit_s`."""
    ended: process.ProgramExit | None = None
    try:
        with trio.move_on_after(limit_s):
            ended = await process.run(command, _ignore_output)
    except (CannotStart, Shortage) as error:
        raise CommandFailure(str(error)) from None
    if ended is None:
        raise CommandFailure(f"{what} did not end within {limit_s:g} s")
    if (failure := ended.describe()) is not None:
        raise CommandFailure(f"{failure}: {ended.stderr}" if ended.stderr else failure)


async def _ignore_output(_data: bytes) -> None:
    await trio.lowlevel.checkpoint()


def _fill(part: str, fields: Mapping[str, str]) -> str:
    text = _PLACEHOLDER.sub(lambda found: fields.get(found[1], found[0]), part)
    first = _PLACEHOLDER.match(part)
    if first is not None and first[1] in WORDS and text.startswith("-"):
        text = f" {text}"
    # An argument cannot hold NUL characters or lone surrogates.
    return _cut(text.replace("\0", "\ufffd").encode("utf-8", "replace"))


def _cut(data: bytes) -> str:
    if len(data) <= MAX_ARGUMENT_BYTES:
        return data.decode("utf-8")
    return data[: MAX_ARGUMENT_BYTES - len(_CUT)].decode("utf-8", "ignore") + _CUT
