"""`sessiond abort`: abort the runs of a session."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import ask, drop_absent
from sessiond.cli.terminal.output import as_json, lines


def run(args: Args) -> None:
    done = ask(args, "chat.abort", drop_absent({"sessionKey": args.key, "runId": args.run}))
    if args.json:
        as_json(done)
    elif done["aborted"]:
        lines([f"aborted {run_id}" for run_id in done["runIds"]])
    else:
        lines([f"nothing was running in {args.key}"])


COMMAND = Command(
    "abort",
    "Stop what runs in a session.",
    run=run,
    arguments=(Argument("key", "The session.", complete="key"),),
    options=(Option("--run", "Only this run.", metavar="ID"), *CLIENT_OPTIONS),
    examples=("sessiond abort main",),
)
