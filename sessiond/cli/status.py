"""`sessiond status`: show whether the daemon runs, with its counters and warnings."""

from __future__ import annotations

import time

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, LOOK_AGAIN_S, connect, wait_for_daemon
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

    from sessiond.client import Client


def show(status: dict[str, Any], socket: str, present_ms: int, on: Screen) -> list[str]:
    """The status as names and values, without counters of problems that are zero."""
    agents, waiting = status["attachedAgents"], status.get("openQuestions")
    facts = {
        "sessiond": f"{status['version']}, running for {duration(status['uptimeMs'])} (pid {status['pid']})",
        "store": status["store"],
        "socket": socket,
        "sessions": f"{status['sessions']}, more are being listed" if _is_starting(status) else status["sessions"],
        "runs": f"{status['liveRuns']} live, {status['queuedRuns']} queued",
        "questions": f"{waiting} {'waits' if waiting == 1 else 'wait'} for an answer" if waiting else None,
        "agents": f"{', '.join(agents)} attached" if agents else None,
        "subscribers": status["subscribers"],
        "watcher": status.get("watcher"),
        "search index": _describe_search(status.get("search") or {}),
        "index saved": ago(status.get("lastSaveAt"), present_ms) or "not yet",
        "dead letters": status["deadLetters"] or None,
        "corrupt records": status["corruptRecords"] or None,
    }
    return pairs(facts, on)


def _describe_search(search: dict[str, Any]) -> str | None:
    """Why a search may take its time; None where it does not."""
    if search.get("state") == "building":
        return f"{100 * search['indexedBytes'] // max(1, search['totalBytes'])} % done"
    return "none, see sessiond doctor" if search.get("state") == "unsupported" else None


def run(args: Args) -> None:
    with connect(args) as client:
        status = _status_within(client, args.wait)
    if args.json:
        as_json(status)
        return
    lines(show(status, locate.socket_path(args.socket), now_ms(), screen_of()))
    if status.get("reloadProblem"):
        note(f"the configuration was not taken over, the old one holds: {status['reloadProblem']}")
    if status.get("openQuestions"):
        note("what is asked, and the lines that answer: sessiond questions")
    if status["deadLetters"] or status["corruptRecords"]:
        note("what they are: sessiond doctor")
    linger = advice()
    if linger:
        note(linger)


def _status_within(client: Client, wait_s: float | None) -> dict[str, Any]:
    """The status; with a time, that of a daemon which knows all sessions by then, or has got so far."""
    deadline = time.monotonic() + (wait_s or 0)
    if wait_s is not None:
        wait_for_daemon(client, wait_s)
    while True:
        status: dict[str, Any] = client.call("daemon.status", timeout_s=CALL_TIMEOUT_S)
        if not _is_starting(status) or time.monotonic() >= deadline:
            return status
        time.sleep(LOOK_AGAIN_S)  # noqa: TID251 - at a process border: nothing tells of the end of a start


def _is_starting(status: dict[str, Any]) -> bool:
    return bool(status.get("loading") or status.get("listing"))


COMMAND = Command(
    "status",
    "Show whether the daemon runs, its store, its queues and what went wrong.",
    run=run,
    options=(
        Option(
            "--wait",
            "Wait so long for a daemon that is being started, and until it knows all sessions.",
            kind="duration",
            metavar="SECONDS",
        ),
        *CLIENT_OPTIONS,
    ),
    examples=("sessiond status", "sessiond serve & sessiond status --wait 10", "sessiond status --json | jq .liveRuns"),
)
