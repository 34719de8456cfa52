"""`sessiond search`: find messages by their text."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import ask_long, drop_absent
from sessiond.cli.frame.failures import note
from sessiond.cli.frame.sources import HERE, SOURCE, here_if
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.message import TOOL_ROLES
from sessiond.cli.terminal.output import as_json
from sessiond.cli.terminal.pager import show_paged
from sessiond.cli.terminal.screen import Screen, TableKeys, clip_around, screen_of
from sessiond.cli.terminal.table import Column, render
from sessiond.cli.terminal.times import clock, now_ms
from sessiond.errors import pluralize
from sessiond.ranges import SEARCH_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def show(matches: list[dict[str, Any]], words: str, present_ms: int, on: Screen) -> list[str]:
    """One line per match that shows the searched text, in colour if the terminal has colours."""
    wanted = one_line(words)
    keys = TableKeys(match["sessionKey"] for match in matches)
    table = render(
        (
            Column("TIME", lambda match: _format_when(match.get("timestamp"), present_ms), keep=2, style="dim"),
            Column("SESSION", lambda match: match["sessionKey"], least=keys.least, keep=3, fit=keys.clip),
            Column("ROLE", lambda match: match.get("role"), keep=1),
            Column(
                "TEXT",
                lambda match: match.get("snippet"),
                least=20,
                keep=4,
                fit=lambda text, width: clip_around(text, wanted, width),
            ),
        ),
        matches,
        on,
    )
    return [*table[:1], *(_mark_match(line, wanted, on) for line in table[1:])]


def run(args: Args) -> int | None:
    words = " ".join(args.text)
    params = {
        "query": words,
        "limit": args.limit,
        "sessionKey": args.session,
        "role": args.role,
        "since": _moment_ms(args.since),
        "until": _moment_ms(args.until),
        "sources": list(args.source) or None,
        "cwd": here_if(args.here),
    }
    found = ask_long(args, "sessions_search", drop_absent(params), "searching")
    if args.json:
        as_json(found)
        return None
    show_paged(show(found["matches"], words, now_ms(), screen_of()))
    if not found["matches"]:
        note("nothing found")
    if found.get("hasMore"):
        note("there are more: --limit")
    if found.get("partial"):
        note(f"{pluralize(found['partial'], 'session')} not read whole yet: search again in a moment")
    return None


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
        HERE,
        Option("--limit -n", f"At most N matches ({SEARCH_LIMIT.in_words}).", kind="count", metavar="N"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        "sessiond search timeout",
        "sessiond search --since 7d --role user 'release notes'",
        "sessiond search --here parser",
    ),
)
