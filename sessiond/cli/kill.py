"""`sessiond kill`: abort the runs of a session and of all sessions that it spawned."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command
from sessiond.cli.frame.daemon import ask
from sessiond.cli.terminal.output import as_json, lines


def run(args: Args) -> None:
    done = ask(args, "sessions.kill", {"key": args.key})
    if args.json:
        as_json(done)
    elif done["killed"]:
        lines([f"killed {run_id}" for run_id in done["runIds"]])
    else:
        lines([f"nothing was running in {args.key} or below it"])


COMMAND = Command(
    "kill",
    "Stop what runs in a session and in everything it spawned.",
    run=run,
    arguments=(Argument("key", "The session.", complete="key"),),
    options=CLIENT_OPTIONS,
    examples=("sessiond kill main",),
)
