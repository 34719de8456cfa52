"""`sessiond import`: copy sessions of another program into this store."""

from __future__ import annotations

import os

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command
from sessiond.cli.frame.daemon import ask_long
from sessiond.cli.frame.failures import FAILED, CommandFailed, note
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.output import as_json, lines
from sessiond.errors import pluralize


def openclaw(args: Args) -> None:
    folder = os.path.abspath(os.path.expanduser(args.folder))
    if not os.path.isdir(folder):
        raise CommandFailed(f"{folder} is no folder", hint="OpenClaw keeps its own in ~/.openclaw", status=FAILED)
    done = ask_long(args, "sessions.import", {"path": folder}, "reading the sessions that are there")
    if args.json:
        as_json(done)
        return
    lines(one_line(item if isinstance(item, str) else str(item.get("key", item))) for item in done["imported"])
    count = len(done["imported"])
    note(
        f"imported {pluralize(count, 'session')}; the originals are as they were"
        if count
        else f"no sessions that are not here already in {folder}"
    )


COMMAND = Command(
    "import",
    "Copy the sessions of another program into this store.",
    examples=("sessiond import openclaw ~/.openclaw",),
    subcommands=(
        Command(
            "openclaw",
            "Copy the sessions of an OpenClaw state folder.",
            run=openclaw,
            arguments=(Argument("folder", "The state folder, as ~/.openclaw.", complete="file"),),
            options=CLIENT_OPTIONS,
            examples=("sessiond import openclaw ~/.openclaw",),
        ),
    ),
)
