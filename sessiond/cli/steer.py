"""`sessiond steer`: pass a message to a session during its run, or interrupt the run for it."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command
from sessiond.cli.frame.daemon import ask
from sessiond.cli.frame.failures import note
from sessiond.cli.frame.input import text_or_stdin
from sessiond.cli.terminal.output import as_json, lines


def run(args: Args) -> None:
    done = ask(args, "sessions.steer", {"key": args.key, "message": text_or_stdin(args.text)})
    if args.json:
        as_json(done)
        return
    lines([done["runId"]])
    for run_id in done["interrupted"]:
        note(f"interrupted {run_id}")


COMMAND = Command(
    "steer",
    "Interrupt what runs in a session with a new message, and print the new run's id.",
    run=run,
    arguments=(
        Argument("key", "The session.", complete="key"),
        Argument("text", "The message. `-` reads standard input.", many=True),
    ),
    options=CLIENT_OPTIONS,
    examples=('sessiond steer main "stop: only the first chapter"',),
)
