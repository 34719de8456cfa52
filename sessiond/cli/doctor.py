"""`sessiond doctor`: find problems of the daemon, the store and their environment, and say what to do about them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Command, Option
from sessiond.cli.frame.daemon import connect
from sessiond.cli.frame.failures import FAILED, NOT_RUNNING, START_IT, CommandFailed
from sessiond.cli.frame.linger import advice
from sessiond.cli.frame.progress import show_progress
from sessiond.cli.terminal.escape import escape
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.screen import Screen, screen_of
from sessiond.client import locate
from sessiond.client.errors import ConnectionLost, DaemonNotRunning, RpcError
from sessiond.errors import pluralize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client.blocking import Client

    Finding = dict[str, Any]

MARKS = {"ok": ("ok", "green"), "warn": ("warning", "yellow"), "error": ("error", "red")}


def show(findings: list[Finding], on: Screen) -> list[str]:
    """A line per finding, followed by what to do about it."""
    shown = []
    for finding in findings:
        word, style = MARKS[finding["level"]]
        thing = f"{finding['thing']}: " if finding.get("thing") else ""
        shown.append(f"{on.paint(f'{word:7}', style)}  {escape(thing + str(finding['what']))}")
        if finding.get("hint"):
            shown.append(f"         {on.paint('→ ' + escape(str(finding['hint'])), 'dim')}")
    return shown


def run(args: Args) -> int | None:
    findings = _findings_offline(args) if args.offline else _findings_online(args)
    linger = advice()
    if linger:
        findings.append(_make_finding("warn", "systemd", *linger.split("; ", 1)))
    if args.json:
        as_json({"findings": findings})
    else:
        lines(show(findings, screen_of()))
    return FAILED if any(finding["level"] == "error" for finding in findings) else None


def _findings_online(args: Args) -> list[Finding]:
    with connect(args) as client:
        try:
            found = _findings_of_status(client)
            with show_progress("reading every transcript"):
                return found + _findings_of_daemon(client, args.fix)
        except (DaemonNotRunning, ConnectionLost) as error:
            raise CommandFailed(
                str(error),
                hint=f"look into the store without it: sessiond doctor --offline\n  or {START_IT}",
                status=NOT_RUNNING,
            ) from None


def _findings_of_status(client: Client) -> list[Finding]:
    status = client.call("daemon.status")
    where = f"(pid {status['pid']}) on {status['store']}"
    about = f"{status['version']} is running {where}, {pluralize(status['sessions'], 'session')}"
    found = [_make_finding("ok", "sessiond", about)]
    if status.get("reloadProblem"):
        what = f"the file was not taken over at the last reload: {status['reloadProblem']}"
        found.append(_make_finding("error", "configuration", what, "sessiond config check"))
    if status["deadLetters"]:
        what = f"given up after many attempts: {pluralize(status['deadLetters'], 'delivery', 'deliveries')}"
        found.append(_make_finding("warn", "deliveries", what, "they are in the store's outbox folder"))
    return found


def _findings_of_daemon(client: Client, fix: bool) -> list[Finding]:
    """The findings of the daemon: `daemon.doctor`, which reads the whole store and may take a while."""
    try:
        found: list[Finding] = client.call("daemon.doctor", {"fix": True} if fix else {})["findings"]
        return found
    except RpcError as error:
        if error.slug != "method_not_found":
            raise
        return [
            _make_finding("warn", "sessiond", "this daemon cannot look into its store", "sessiond doctor --offline")
        ]


def _findings_offline(args: Args) -> list[Finding]:
    """The findings from the files, without a daemon. Repairs need the lock of the store, which `report` takes."""
    doctor = import_module("sessiond.store.doctor")  # imported late, because it imports msgspec
    store = Path(locate.store_folder())
    with show_progress("reading every transcript"):
        report = doctor.report(store, fix=True) if args.fix else doctor.report(store)
    found: list[Finding] = report["findings"]
    return found


def _make_finding(level: str, thing: str, what: str, hint: str | None = None) -> Finding:
    return {"level": level, "thing": thing, "what": what, **({"hint": hint} if hint else {})}


COMMAND = Command(
    "doctor",
    "Look for what is wrong: bad records, undelivered messages, links, a store that does not fit.",
    run=run,
    description="Changes nothing without --fix, and makes a backup before it does. Exit 1 where an error was found.",
    options=(
        Option("--fix", "Repair what can be repaired, after a backup.", kind="flag"),
        Option("--offline", "Read the store's files; no daemon is needed.", kind="flag"),
        *CLIENT_OPTIONS,
    ),
    examples=("sessiond doctor", "sessiond doctor --offline --json"),
)
