"""`sessiond delete`: delete a session; its transcript is archived."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command
from sessiond.cli.frame.daemon import ask
from sessiond.cli.frame.failures import FAILED
from sessiond.cli.terminal.output import as_json, lines


def run(args: Args) -> int | None:
    done = ask(args, "sessions.delete", {"key": args.key})
    if args.json:
        as_json(done)
    elif done["deleted"]:
        put_away = "; its transcript is in the archive" if done["archived"] else ""
        lines([f"{done['key']} is deleted{put_away}"])
    else:
        lines([f"{done['key']} was not deleted"])
    return None if done["deleted"] else FAILED


COMMAND = Command(
    "delete",
    "Delete a session; its transcript goes to the archive, nothing is lost.",
    run=run,
    arguments=(Argument("key", "The session; the main session cannot be deleted.", complete="key"),),
    options=CLIENT_OPTIONS,
    examples=("sessiond delete agent:main:research",),
)
