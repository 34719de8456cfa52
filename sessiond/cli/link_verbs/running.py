"""`sessiond link run` and `status`."""

from __future__ import annotations

from sessiond.cli.frame.command import JSON, SOCKET, Args, Command, Option
from sessiond.cli.frame.failures import FAILED, CommandFailed
from sessiond.cli.link_verbs.places import CONFIG, STORE, load_module, path_of, socket_of, store_of
from sessiond.cli.terminal.escape import escape
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.times import ago_in_words, now_ms
from sessiond.errors import pluralize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LEVELS = ("debug", "info", "warning", "error")


def run(args: Args) -> int:
    program = load_module("program")
    status: int = program.run(
        store_of(args), path_of(args), socket_of(args), log_level=args.log_level or "info", json_log=args.json
    )
    return status


def show_status(args: Args) -> int | None:
    """What the link has written last; FAILED where it does not run, or the server is away."""
    store, status = store_of(args), load_module("status")
    found = status.read_status(store)
    if found is None:
        raise CommandFailed(f"no link has run on the store {store} yet", hint="sessiond link run", status=FAILED)
    link, age_s = found
    is_running = status.is_held(store)
    if args.json:
        as_json({"running": is_running, "ageSeconds": round(age_s), **_fields(link)})
    else:
        present_ms = now_ms()
        when = ago_in_words(present_ms - round(age_s * 1000), present_ms)
        now = "" if is_running else f"no link runs; this was so {when}: "
        # Ids of commands and reasons are the words of other machines.
        lines(map(escape, [now + link.in_a_line, *_details(link)]))
    return None if is_running and link.is_connected and link.daemon else FAILED


def _fields(link: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(link)
    return found


def _details(link: Any) -> list[str]:
    found = [f"trouble      {link.trouble}"] if link.trouble else []
    for name, is_there in sorted(link.machines.items()):
        counts = link.commands.get(name, {})
        asked = ", ".join(f"{count} {state}" for state, count in counts.items())
        found.append(f"{name:12} {'there' if is_there else 'away'}" + (f"; commands from it: {asked}" if asked else ""))
    if link.waiting_there:
        found.append(f"{'unanswered':12} {pluralize(link.waiting_there, 'command')} to others")
    found += [f"{'dropped':12} {pluralize(count, 'message')}: {reason}" for count, reason in link.dropped_in_words]
    found += [f"{'limit':12} {name}: {limit}" for name, limit in link.limits.items()]
    found += [f"{'given up':12} {letter}" for letter in link.dead_letters]
    return found


RUN = Command(
    "run",
    "Link this machine with the others until it is told to stop, logging to stderr.",
    run=run,
    description="Without the server or the daemon it says so and goes on. SIGTERM ends it, SIGHUP reads the"
    " configuration again.",
    options=(
        STORE,
        CONFIG,
        SOCKET,
        Option("--log-level", "What to log (info).", choices=LEVELS),
        Option("--json", "Log one JSON object a line.", kind="flag"),
    ),
    examples=("sessiond link run",),
)
STATUS = Command(
    "status",
    "Show who is there, what waits, what was dropped or given up, and which limits are reached.",
    run=show_status,
    description="Exit status 1 if no link runs here, or it has no server or no daemon.",
    options=(STORE, JSON),
    examples=("sessiond link status",),
)
