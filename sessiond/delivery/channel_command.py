"""The command line that delivers a text to a channel, with its placeholders filled in. Starts nothing.

Source: runs.md, "Channels and delivery".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sessiond.runtimes.launcher import ProgramCommand

# The kernel refuses arguments of more than 128 KiB (MAX_ARG_STRLEN). Longer texts are cut instead of not delivered.
MAX_ARGUMENT_BYTES = 120 * 1024
_CUT = " [...]"
_PLACEHOLDER = re.compile(r"\{(title|text|to|sessionKey|deliveryId)\}")
# Placeholders whose text agents write: it must not be taken for an option when it begins an argument with `-`.
_WORDS = ("title", "text")
# The variables that a program needs to find its tools, its language and the user's desktop.
_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_[A-Z]+|TZ|TMPDIR|XDG_[A-Z_]+"
    r"|DBUS_SESSION_BUS_ADDRESS|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY"
)


def command_for(
    template: tuple[str, ...], fields: Mapping[str, str], *, environ: Mapping[str, str], cwd: Path
) -> ProgramCommand:
    """The command with the placeholders of `fields` filled in. Other braces stay as they are."""
    env = {name: value for name, value in environ.items() if _INHERITED.fullmatch(name)}
    return ProgramCommand(argv=tuple(_fill(part, fields) for part in template), env=env, cwd=cwd)


def _fill(part: str, fields: Mapping[str, str]) -> str:
    text = _PLACEHOLDER.sub(lambda found: fields[found[1]], part)
    first = _PLACEHOLDER.match(part)
    if first is not None and first[1] in _WORDS and text.startswith("-"):
        text = f" {text}"
    # An argument cannot hold NUL characters or lone surrogates.
    return _cut(text.replace("\0", "\ufffd").encode("utf-8", "replace"))


def _cut(data: bytes) -> str:
    if len(data) <= MAX_ARGUMENT_BYTES:
        return data.decode("utf-8")
    return data[: MAX_ARGUMENT_BYTES - len(_CUT)].decode("utf-8", "ignore") + _CUT
