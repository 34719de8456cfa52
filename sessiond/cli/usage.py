"""`sessiond usage`: tokens and cost, a bar a day, or by model, folder, agent or program."""

from __future__ import annotations

import csv
import sys

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import ask_long, drop_absent
from sessiond.cli.frame.failures import USAGE, CommandFailed, note
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.screen import screen_of
from sessiond.cli.terminal.table import Column, render
from sessiond.cli.terminal.times import now_ms, quantity
from sessiond.errors import pluralize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The list of the answer, the member that names a row, and what a row without a name is.
GROUPS = {
    "day": ("byDay", "day", ""),
    "model": ("byModel", "model", "unknown"),
    "project": ("byProject", "cwd", "(no folder known)"),
    "agent": ("byAgent", "agentId", "(other programs)"),
    "source": ("bySource", "source", ""),
    "session": ("bySession", "key", ""),
}
_SUMS = ("inputTokens", "outputTokens", "cacheRead", "cacheWrite", "totalTokens")
_BAR = 24
_DAY_MS = 86_400_000
_WHAT = f"{', '.join([*GROUPS][:-1])} or {[*GROUPS][-1]}"


def run(args: Args) -> int | None:
    if args.json and args.csv:
        raise CommandFailed("--json and --csv exclude each other", status=USAGE)
    since = None if args.since is None else _begin_of(int(args.since * 1000), now_ms())
    found = ask_long(args, "sessions.usage", drop_absent({"key": args.key, "since": since}), "counting")
    if args.json:
        as_json(found)
        return None
    if found.get("partial"):
        what = pluralize(found["partial"], "session is", "sessions are")
        note(f"{what} still being read, and not counted yet")
    name, member, nameless = GROUPS[args.by or "day"]
    rows = [{**row, "name": row[member] or nameless} for row in found[name]]
    if args.csv:
        _write_csv(args.by or "day", rows)
    elif rows:
        _show(args.by or "day", rows, found["totals"])
    else:
        note("no tokens are counted" + (" since then" if since is not None else " yet"))
    return None


def _begin_of(age_ms: int, now: int) -> int:
    """The moment from which on it is counted. Of whole days the first counts from its beginning: a bar is a day, and
    sums of days are known without reading a transcript.
    """
    begin = max(0, now - age_ms)
    return begin if age_ms < _DAY_MS else begin - begin % _DAY_MS


def _show(by: str, rows: list[dict[str, Any]], totals: dict[str, Any]) -> None:
    """A table with the total below; where it is no terminal, whole numbers and neither bars nor a total."""
    on = screen_of()
    is_terminal = sys.stdout.isatty()
    most = max(row["totalTokens"] for row in rows) or 1

    def count(title: str, member: str, keep: int) -> Column:
        return Column(title, lambda row: quantity(row[member]) if is_terminal else row[member], right=True, keep=keep)

    columns = [
        Column(by.upper(), lambda row: one_line(row["name"]), least=10, keep=9),
        count("INPUT", "inputTokens", 5),
        count("OUTPUT", "outputTokens", 6),
        count("CACHE READ", "cacheRead", 3),
        count("CACHE WRITE", "cacheWrite", 2),
        count("TOTAL", "totalTokens", 8),
        Column("COST", _cost, right=True, keep=7),
    ]
    if not is_terminal:
        lines(render(columns, rows, on))
        return
    bars = Column("", lambda row: _bar(row["totalTokens"] / most) if "isTotal" not in row else "", keep=1)
    lines(render([*columns, bars], [*rows, {**totals, "name": "total", "isTotal": True}], on))
    if any(row.get("costUsd") is None for row in rows):
        note("-: neither the transcripts nor models.pricing say what it cost")
    if any(_is_incomplete(row) for row in (*rows, totals)):
        note("+: and more, for tokens of which neither the transcripts nor models.pricing say what they cost")


def _bar(share: float) -> str:
    return "█" * max(round(min(share, 1.0) * _BAR), 1 if share else 0)


def _cost(row: dict[str, Any]) -> str:
    cost = row.get("costUsd")
    if cost is None:
        return "-"
    more = "+" if _is_incomplete(row) else ""
    return f"<$0.01{more}" if 0 < cost < 0.005 else f"${cost:,.2f}{more}"


def _is_incomplete(row: dict[str, Any]) -> bool:
    """Whether the cost of the row is that of a part of its tokens."""
    return row.get("costUsd") is not None and bool(row.get("unpricedTokens"))


def _write_csv(by: str, rows: list[dict[str, Any]]) -> None:
    """Numbers as they are, and an empty cost where it is not known."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow((by, *_SUMS, "costUsd", "unpricedTokens"))
    for row in rows:
        # A cell that begins so is a formula in a spreadsheet.
        name = one_line(row["name"])
        name = f"'{name}" if name[:1] in ("=", "+", "-", "@") else name
        numbers = (row[member] for member in _SUMS)
        table.writerow((name, *numbers, row.get("costUsd", ""), row.get("unpricedTokens", 0)))


COMMAND = Command(
    "usage",
    "Tokens and cost, by day or otherwise.",
    run=run,
    description="Of all sessions, archived ones and those of other programs too; a copied message counts once.",
    arguments=(Argument("key", "Only this session.", required=False, complete="key"),),
    options=(
        Option("--by", f"What a row is: {_WHAT} (default: day, in UTC).", choices=tuple(GROUPS), metavar="WHAT"),
        Option(
            "--since",
            "Only what was used within this time, such as 7d; the first day counts from its beginning, in UTC.",
            kind="duration",
            metavar="AGE",
        ),
        Option("--csv", "The rows as CSV, for other programs.", kind="flag"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        "sessiond usage",
        "sessiond usage --by model --since 30d",
        "sessiond usage --by project --csv > usage.csv",
    ),
)
