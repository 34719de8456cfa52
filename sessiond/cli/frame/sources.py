"""The options that choose sessions by program, machine and folder. Standard library only."""

from __future__ import annotations

import os

from sessiond.cli.frame.command import Option
from sessiond.cli.frame.failures import CommandFailed
from sessiond.ranges import SOURCE_WORDS

SOURCE = Option(
    "--source",
    "Only sessions of this program (sessiond: its own); may be repeated.",
    many=True,
    choices=SOURCE_WORDS,
)
MACHINE = Option("--machine", "Only those of this other machine.", metavar="NAME")
HERE = Option("--here", "Only sessions that work in this folder or below it.", kind="flag")


def here_if(here: bool) -> str | None:
    """The current folder if the option was given. CommandFailed if it was removed."""
    if not here:
        return None
    try:
        return os.getcwd()
    except OSError as error:
        raise CommandFailed(f"--here: the current folder cannot be read: {error.strerror}") from None
