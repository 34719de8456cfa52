"""`sessiond prune`: list old archived transcripts; with --yes remove them."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Command, Option
from sessiond.cli.frame.daemon import ask_long
from sessiond.cli.frame.failures import USAGE, CommandFailed, note
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.output import as_json, lines
from sessiond.errors import pluralize


def run(args: Args) -> None:
    if args.older_than is None:
        raise CommandFailed("--older-than is missing", hint="as in: sessiond prune --older-than 90d", status=USAGE)
    params = {"olderThanMs": int(args.older_than * 1000), "confirm": args.yes}
    done = ask_long(args, "sessions.prune", params, "looking through the archive")
    if args.json:
        as_json(done)
        return
    lines(one_line(item if isinstance(item, str) else str(item.get("path", item))) for item in done["removed"])
    count = len(done["removed"])
    if not count:
        note("nothing is that old")
    elif args.yes:
        note(f"removed {pluralize(count, 'transcript')}")
    else:
        note(f"to be removed: {pluralize(count, 'transcript')}; do it with --yes")


COMMAND = Command(
    "prune",
    "Show which archived transcripts are older than an age, and remove them with --yes.",
    run=run,
    options=(
        Option("--older-than", "The age, as 90d or 12w.", kind="duration", metavar="AGE"),
        Option("--yes", "Remove them, for good.", kind="flag"),
        *CLIENT_OPTIONS,
    ),
    examples=("sessiond prune --older-than 90d", "sessiond prune --older-than 90d --yes"),
)
