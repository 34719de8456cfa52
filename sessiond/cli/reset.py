"""`sessiond reset`: archive the transcript of a session and start a new one."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command
from sessiond.cli.frame.daemon import ask
from sessiond.cli.terminal.output import as_json, lines


def run(args: Args) -> None:
    done = ask(args, "sessions.reset", {"key": args.key})
    if args.json:
        as_json(done)
        return
    put_away = "; the old transcript is in the archive" if done["archived"] else ""
    lines([f"{done['key']} begins anew as {done['sessionId']}{put_away}"])


COMMAND = Command(
    "reset",
    "Put away what was said in a session and begin it anew.",
    run=run,
    arguments=(Argument("key", "The session.", complete="key"),),
    options=CLIENT_OPTIONS,
    examples=("sessiond reset main",),
)
