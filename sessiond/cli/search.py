"""`sessiond search`: find messages by their text."""

from __future__ import annotations

import sys

from sessiond.cli.frame.command import SOCKET, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import connect, drop_absent
from sessiond.cli.frame.failures import note
from sessiond.cli.frame.progress import ProgressLine
from sessiond.cli.frame.sources import HERE, MACHINE, SOURCE, here_if
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.message import TOOL_ROLES
from sessiond.cli.terminal.output import json_line, lines
from sessiond.cli.terminal.pager import show_paged
from sessiond.cli.terminal.screen import Screen, TableKeys, clip_around, screen_of
from sessiond.cli.terminal.table import Column, render
from sessiond.cli.terminal.times import clock, now_ms, size
from sessiond.errors import pluralize
from sessiond.ranges import SEARCH_LIMIT

JSON_LINES = Option("--json", "Print each match as a line of JSON, as it is found.", kind="flag")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class MatchTable:
    """The lines of matches, one each, that show the searched text; in colour if the terminal has colours.

    Its titles come with the first matches.
    """

    def __init__(self, words: str, present_ms: int, on: Screen) -> None:
        self._wanted, self._present_ms, self._on = one_line(words), present_ms, on
        self._widths: dict[str, int] = {}
        self._names: set[str] = set()

    def lines(self, matches: list[dict[str, Any]]) -> list[str]:
        """The lines of further matches."""
        self._names |= {_name_of(match) for match in matches}
        keys, wanted, present_ms = TableKeys(self._names), self._wanted, self._present_ms
        columns = (
            Column("TIME", lambda match: _format_when(match.get("timestamp"), present_ms), keep=2, style="dim"),
            Column("SESSION", _name_of, least=keys.least, keep=3, fit=keys.clip),
            Column("ROLE", lambda match: match.get("role"), keep=1),
            Column(
                "TEXT",
                lambda match: match.get("snippet"),
                least=20,
                keep=4,
                fit=lambda text, width: clip_around(text, wanted, width),
            ),
        )
        titles = 0 if self._widths else 1
        table = render(columns, matches, self._on, self._widths)
        return [*table[:titles], *(_mark_match(line, wanted, self._on) for line in table[titles:])]


def run(args: Args) -> int | None:
    words = " ".join(args.text)
    params = drop_absent(
        {
            "sessionKey": args.session,
            "role": args.role,
            "since": _moment_ms(args.since),
            "until": _moment_ms(args.until),
            "sources": list(args.source) or None,
            "machine": args.machine,
            "cwd": here_if(args.here),
            "includeArchived": args.archived or None,
        }
    )
    table = MatchTable(words, now_ms(), screen_of())
    found = 0
    last: dict[str, Any] = {}
    with connect(args) as client, ProgressLine() as progress:
        for page in client.search(words, args.limit, **params):
            progress.clear()
            is_first, is_last = not last, "progress" not in page
            found, last = found + len(page["matches"]), page
            if args.json:
                for match in page["matches"]:
                    json_line(match)
            elif is_first and is_last:
                show_paged(table.lines(page["matches"]))
            else:
                lines(table.lines(page["matches"]))
                sys.stdout.flush()
            if not is_last:
                progress.show(_progress_of(page["progress"]))
    if not found and not args.json:
        note("nothing found")
    if last.get("hasMore"):
        note("there are more: --limit")
    if last.get("partial"):
        note(f"{pluralize(last['partial'], 'session')} not read whole yet: search again in a moment")
    return None


def _name_of(match: dict[str, Any]) -> str:
    """The name by which the session of a match is read: its key, the id of an archived one."""
    name: str = match.get("sessionId") or match["sessionKey"]
    return name


def _progress_of(progress: dict[str, Any]) -> str:
    return f"searching … {size(progress['lookedAt'])} of {size(progress['total'])}"


def _moment_ms(age_s: float | None) -> int | None:
    return None if age_s is None else now_ms() - int(age_s * 1000)


def _format_when(timestamp: Any, present_ms: int) -> str:
    return clock(timestamp, present_ms) if isinstance(timestamp, int) else str(timestamp or "")


def _mark_match(line: str, words: str, on: Screen) -> str:
    at = line.lower().rfind(words.lower()) if on.colour and words else -1
    if at < 0 or len(line.lower()) != len(line):  # some letters have a longer lower case
        return line
    return line[:at] + on.paint(line[at : at + len(words)], "match") + line[at + len(words) :]


COMMAND = Command(
    "search",
    "Find where something was said, newest first.",
    run=run,
    arguments=(Argument("text", "What to look for.", many=True),),
    options=(
        Option("--session", "Only in this session.", metavar="KEY", complete="key"),
        Option("--role", "Only said by one of this role.", choices=("user", "assistant", *TOOL_ROLES)),
        Option("--since", "Only what is younger than this, as 12h or 30d.", kind="duration", metavar="AGE"),
        Option("--until", "Only what is older than this, as 12h or 30d.", kind="duration", metavar="AGE"),
        SOURCE,
        MACHINE,
        HERE,
        Option("--archived", "Archived sessions too; they are shown by their ids.", kind="flag"),
        Option("--limit -n", f"At most N matches ({SEARCH_LIMIT.default} unless given).", kind="count", metavar="N"),
        JSON_LINES,
        SOCKET,
    ),
    examples=(
        "sessiond search timeout",
        "sessiond search --since 7d --role user 'release notes'",
        "sessiond search --here parser",
    ),
)
