"""`sessiond list`: list the sessions, those that wait for an answer first, then newest first."""

from __future__ import annotations

import sys
from contextlib import suppress

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect, drop_absent
from sessiond.cli.frame.failures import note
from sessiond.cli.frame.question_names import count_questions
from sessiond.cli.frame.sources import HERE, MACHINE, SOURCE, here_if
from sessiond.cli.terminal import output
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.pager import show_paged
from sessiond.cli.terminal.screen import Screen, TableKeys, clip, screen_of
from sessiond.cli.terminal.table import Column, render
from sessiond.cli.terminal.times import ago, clock, now_ms, quantity
from sessiond.client.errors import ClientError
from sessiond.errors import pluralize
from sessiond.ranges import LIST_LIMIT, LIST_MESSAGES, SESSION_KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client.blocking import Client

TITLES = (
    "key",
    "status",
    "updatedAt",
    "messages",
    "tokens",
    "costUsd",
    "model",
    "name",
    "sessionId",
    "title",
    "source",
    "cwd",
    "state",
    "questions",
    "machine",
    "awaySince",
)
STATUS_STYLES = {
    "waiting": "yellow",
    "running": "blue",
    "queued": "yellow",
    "ok": "green",
    "done": "green",
    "error": "red",
    "timeout": "red",
    "aborted": "red",
}


def show(rows: list[dict[str, Any]], present_ms: int, on: Screen) -> list[str]:
    """The rows as a table; what a row waits for and messages that it contains follow it."""
    keys = TableKeys(row["key"] for row in rows)
    columns = (
        Column("KEY", lambda row: row["key"], least=keys.least, keep=9, style="bold", fit=keys.clip),
        Column("STATUS", _shown_status, keep=7, style=lambda text: STATUS_STYLES.get(text.partition(" ")[0], "red")),
        Column("UPDATED", lambda row: ago(_updated_ms(row), present_ms), keep=8),
        Column("MSGS", _messages, right=True, keep=6),
        # Input and output tokens together, which the cost is for; not the size of the context.
        Column("TOKENS", lambda row: quantity(_tokens(row)), right=True, keep=3),
        Column("COST", lambda row: _cost(row.get("estimatedCostUsd")), right=True, keep=2),
        Column("MODEL", lambda row: row.get("model"), least=8, keep=1),
        Column("TITLE", _title, least=30, keep=7),
    )
    table = render(columns, rows, on)
    if not any(row.get("messages") or row.get("waiting") for row in rows):
        return table
    from sessiond.cli.terminal.message import moment_of, paragraph

    shown = table[:1]
    for row, line in zip(rows, table[1:], strict=True):
        shown.append(line)
        if row.get("waiting"):
            shown.append(_waiting_line(row["waiting"], present_ms, on))
        for message in row.get("messages") or ():
            shown += ["  " + text for text in paragraph(message, moment_of(message), present_ms, on)]
    return shown


def run(args: Args) -> None:
    params = {
        "kinds": list(args.kind) or None,
        "activeMinutes": args.active,
        "messageLimit": args.messages,
        "limit": LIST_LIMIT.most if args.all else args.limit,
        "search": args.search,
        "includeArchived": args.archived or None,
        "sources": list(args.source) or None,
        "machine": args.machine,
        "cwd": here_if(args.here),
    }
    with connect(args) as client:
        found = client.call("sessions_list", drop_absent(params), timeout_s=CALL_TIMEOUT_S)
        while args.all and found.get("nextCursor"):
            asked = drop_absent({**params, "cursor": found["nextCursor"]})
            more = client.call("sessions_list", asked, timeout_s=CALL_TIMEOUT_S)
            sessions = [*found["sessions"], *more["sessions"]]
            found = {**more, "sessions": sessions, "count": len(sessions)}
        # A session that waits may be on a later page.
        is_unknown = args.machine is not None and not found["sessions"] and not _is_machine(client, args.machine)
        elsewhere = sum(count_questions(client).values()) if found.get("hasMore") and not args.json else 0
    if args.json:
        as_json(found)
        return
    rows = waiting_first(found["sessions"])
    if sys.stdout.isatty() or args.messages:
        show_paged(show(rows, now_ms(), screen_of()))
    else:
        lines(as_tsv(rows))
    if not found["sessions"]:
        narrowed = any(params[name] for name in ("kinds", "activeMinutes", "search", "sources", "machine", "cwd"))
        if is_unknown:
            note(f"there is no machine {args.machine} in the configuration: sessiond link peer lists them")
        note("no session fits" if narrowed else 'no sessions yet; send a first message: sessiond send main "hello"')
    asked = sum((row.get("waiting") or {}).get("questions", 0) for row in rows)
    if asked:
        note("what they wait for, and the lines that answer: sessiond questions")
    if elsewhere > asked:
        note(f"{pluralize(elsewhere - asked, 'more question')} in sessions that are not shown: sessiond questions")
    for machine, since_ms in sorted(_away(rows).items()):
        note(f"{machine} is away since {clock(since_ms, now_ms())}: what is shown of it may be old")
    if found.get("hasMore"):
        note("there are more: --all, or --search")
    if found.get("partial"):
        note(f"{pluralize(found['partial'], 'session')} not read whole yet may be missing: try again in a moment")
    if found.get("visibility") not in (None, "all"):
        note(f"only what this caller may see is shown (visibility: {found['visibility']})")


def _is_machine(client: Client, name: str) -> bool:
    """Whether it is one of the configuration, as far as the caller may know."""
    with suppress(ClientError):
        agents = client.call("agents_list", timeout_s=CALL_TIMEOUT_S)["agents"]
        return any(agent["id"] == name and agent.get("machine") for agent in agents)
    return True


def _away(rows: list[dict[str, Any]]) -> dict[str, int]:
    """The machines of the rows that are not reached, and since when."""
    return {one_line(str(row["machine"])): row["awaySince"] for row in rows if row.get("awaySince") is not None}


def _tokens(row: dict[str, Any]) -> int | None:
    given = [row.get(name) for name in ("inputTokens", "outputTokens")]
    return sum(number or 0 for number in given) if any(number is not None for number in given) else None


def as_tsv(rows: list[dict[str, Any]]) -> list[str]:
    """The rows for programs: a title line, then one line per row with all columns; times in milliseconds."""
    table: list[tuple[Any, ...]] = []
    for row in rows:
        name = row.get("label") or row.get("displayName")
        facts = (row["key"], _status(row), _updated_ms(row), _messages(row), _tokens(row))
        waiting = row.get("waiting") or {}
        more = (row.get("title"), row.get("source"), row.get("cwd"), row.get("state"), waiting.get("questions"))
        elsewhere = row.get("machine"), row.get("awaySince")
        table.append(
            (
                *facts,
                _exact_cost(row.get("estimatedCostUsd")),
                row.get("model"),
                name,
                row.get("sessionId"),
                *more,
                *elsewhere,
            )
        )
    return output.as_tsv(TITLES, table)


def _updated_ms(row: dict[str, Any]) -> int | None:
    """The time of its newest message; of a session of another program without messages, when that was begun."""
    updated_ms: int | None = row.get("updatedAt")
    return updated_ms or row.get("createdAt", updated_ms)


def _messages(row: dict[str, Any]) -> int | None:
    """How many messages it has; not known of a session of another program that has not been read whole yet."""
    return row.get("messageCount", None if row.get("partial") else 0)


def _title(row: dict[str, Any]) -> str | None:
    # A session that another one began, as sub-agents are, has its task in place of a title.
    return row.get("label") or row.get("title") or row.get("displayName") or row.get("task")


def _status(row: dict[str, Any]) -> str:
    queued = row.get("queuedRuns") or 0
    return f"{row.get('status') or ''}{f' +{queued}' if queued else ''}".strip()


def waiting_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that wait for a person, the longest first, then the others as they are."""
    waiting = [row for row in rows if _waits(row)]
    waiting.sort(key=lambda row: (row.get("waiting") or {}).get("since") or row.get("updatedAt", 0))
    return [*waiting, *(row for row in rows if not _waits(row))]


def _waits(row: dict[str, Any]) -> bool:
    return row.get("state") == "waiting" or bool(row.get("waiting"))


def _shown_status(row: dict[str, Any]) -> str:
    """The status of its last run; where it waits or another program runs it, its state."""
    if _waits(row):
        return "waiting"
    state = row.get("state")
    return _status(row) or (str(state) if state not in (None, "idle") else "")


def _waiting_line(waiting: dict[str, Any], present_ms: int, on: Screen) -> str:
    """The oldest question, how long it waits, and how many there are besides."""
    more = f" (and {waiting['questions'] - 1} more)" if waiting.get("questions", 1) > 1 else ""
    text = f"  ? {ago(waiting.get('since'), present_ms)}: {one_line(str(waiting.get('title') or 'a question'))}"
    room = None if on.width is None else max(on.width - len(more), 10)
    return on.paint((text if room is None else clip(text, room)) + more, "yellow")


def _cost(dollars: float | None) -> str:
    return "" if dollars is None else f"${dollars:.2f}"


def _exact_cost(dollars: float | None) -> str | None:
    """The cost to a millionth of a dollar: sums of floats have more digits than meaning."""
    return None if dollars is None else f"{dollars:.6f}".rstrip("0").rstrip(".")


COMMAND = Command(
    "list",
    "Show the sessions, newest first; those that wait for your answer before all others.",
    run=run,
    description="A table on a terminal; tab-separated values with a title line elsewhere.",
    options=(
        Option(
            "--kind",
            "Only this kind; may be repeated.",
            many=True,
            choices=SESSION_KINDS,
        ),
        SOURCE,
        MACHINE,
        HERE,
        Option("--active", "Only those with a message in the last MINUTES.", kind="count", metavar="MINUTES"),
        Option("--messages", f"The last N messages of each (at most {LIST_MESSAGES.most}).", kind="int", metavar="N"),
        Option("--limit -n", f"At most N sessions ({LIST_LIMIT.in_words}).", kind="count", metavar="N"),
        Option("--all", "All of them, however many.", kind="flag"),
        Option("--search", "Only those whose key, label, title or id has TEXT.", metavar="TEXT"),
        Option("--archived", "Those put away by a reset or a delete, too.", kind="flag"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        "sessiond list",
        "sessiond list --here --source claude",
        "sessiond list --kind main --active 60 --messages 1",
        "sessiond list --json | jq '.sessions[].key'",
    ),
)
