"""`sessiond create`: create a session before its first message."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import ask, drop_absent
from sessiond.cli.frame.failures import note
from sessiond.cli.terminal.output import as_json, lines


def run(args: Args) -> None:
    created = ask(
        args,
        "sessions.create",
        drop_absent(
            {
                "key": args.key,
                "agentId": args.agent,
                "label": args.label,
                "model": args.model,
                "parentSessionKey": args.parent,
                "message": args.message,
            }
        ),
    )
    if args.json:
        as_json(created)
        return
    lines([created["key"]])
    if not created["created"]:
        note("it was there already")
    if created.get("runId"):
        note(f"run {created['runId']}; follow it: sessiond history {created['key']} -f")


COMMAND = Command(
    "create",
    "Make a session and print its key; one that is there already is no error.",
    run=run,
    arguments=(Argument("key", "Its key (default: a new one).", required=False),),
    options=(
        Option("--agent", "Its agent (default: the default agent).", metavar="AGENT", complete="agent"),
        Option("--label", "A name for it.", metavar="NAME"),
        Option("--model", "Its model.", metavar="MODEL"),
        Option("--parent", "The session it belongs to.", metavar="KEY", complete="key"),
        Option("--message", "A first message for its agent.", metavar="TEXT"),
        *CLIENT_OPTIONS,
    ),
    examples=("sessiond create agent:main:research --label research", 'sessiond create --message "hello"'),
)
