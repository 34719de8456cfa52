"""`sessiond status`: show whether the daemon runs, with its counters and warnings."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect, wait_for_daemon
from sessiond.cli.frame.failures import note
from sessiond.cli.frame.linger import advice
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.screen import Screen, screen_of
from sessiond.cli.terminal.table import pairs
from sessiond.cli.terminal.times import ago, duration, now_ms
from sessiond.client import locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def show(status: dict[str, Any], socket: str, present_ms: int, on: Screen) -> list[str]:
    """The status as names and values, without counters of problems that are zero."""
    agents = status["attachedAgents"]
    facts = {
        "sessiond": f"{status['version']}, running for {duration(status['uptimeMs'])} (pid {status['pid']})",
        "store": status["store"],
        "socket": socket,
        "sessions": status["sessions"],
        "runs": f"{status['liveRuns']} live, {status['queuedRuns']} queued",
        "agents": f"{', '.join(agents)} attached" if agents else None,
        "subscribers": status["subscribers"],
        "watcher": status.get("watcher"),
        "index saved": ago(status.get("lastSaveAt"), present_ms) or "not yet",
        "dead letters": status["deadLetters"] or None,
        "corrupt records": status["corruptRecords"] or None,
    }
    return pairs(facts, on)


def run(args: Args) -> None:
    with connect(args) as client:
        if args.wait is not None:
            wait_for_daemon(client, args.wait)
        status = client.call("daemon.status", timeout_s=CALL_TIMEOUT_S)
    if args.json:
        as_json(status)
        return
    lines(show(status, locate.socket_path(args.socket), now_ms(), screen_of()))
    if status.get("reloadProblem"):
        note(f"the configuration was not taken over, the old one holds: {status['reloadProblem']}")
    if status["deadLetters"] or status["corruptRecords"]:
        note("what they are: sessiond doctor")
    linger = advice()
    if linger:
        note(linger)


COMMAND = Command(
    "status",
    "Show whether the daemon runs, its store, its queues and what went wrong.",
    run=run,
    options=(
        Option("--wait", "Wait so long for a daemon that is being started.", kind="duration", metavar="SECONDS"),
        *CLIENT_OPTIONS,
    ),
    examples=("sessiond status", "sessiond serve & sessiond status --wait 10", "sessiond status --json | jq .liveRuns"),
)
