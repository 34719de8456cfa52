"""`sessiond history`: the messages of a session; with -f also new ones as they come."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect, connect_quietly, drop_absent
from sessiond.cli.frame.failures import USAGE, CommandFailed, note
from sessiond.cli.frame.question_facts import facts_of_page
from sessiond.cli.history_follow import follow
from sessiond.cli.terminal.output import as_json, json_line
from sessiond.cli.terminal.pager import show_paged
from sessiond.cli.terminal.screen import screen_of
from sessiond.cli.terminal.times import now_ms
from sessiond.cli.terminal.transcript import page_lines
from sessiond.client.errors import RpcError
from sessiond.errors import pluralize
from sessiond.ranges import HISTORY_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client import Client


def run(args: Args) -> int | None:
    began_ms = now_ms()
    if args.raw and args.follow:
        raise CommandFailed(
            "--raw has the lines of the file as they are now: it does not go with --follow", status=USAGE
        )
    with connect(args) as client:
        page = _newest(client, args)
        if args.limit == 0:  # as `tail -n 0`: no messages, and with -f only new ones
            page |= {"messages": [], "positions": [], "runs": [], "hasMore": False}
        if args.follow:
            with connect_quietly(args) as beside:
                follow(client, beside, page, args, since_ms=began_ms)
            return None
        is_shown = not args.json and not args.raw and args.limit != 0
        facts = facts_of_page(client, page, is_newest=args.before is None) if is_shown else []
    if args.json:
        as_json(page)
        return None
    if args.raw:
        for line in page["messages"]:
            json_line(line)
        if page.get("hasMore"):
            note(f"older ones: sessiond history {args.key} --raw --before {page['nextCursor']}")
        _note_skipped(page)
        return None
    show_paged(page_lines(page, now_ms(), screen_of(), facts))
    if args.limit != 0:
        _notes(page, args.key)
    if any(fact.is_open for fact in facts):
        note(f"it waits for an answer: sessiond questions --session {page['sessionKey']}")
    return None


def _newest(client: Client, args: Args) -> dict[str, Any]:
    """The newest messages as one page, as many as were asked for. The daemon's pages have a limit of their own."""
    wanted = HISTORY_LIMIT.default if args.limit is None else max(args.limit, 1)
    pages = [_page_before(client, args, args.before, wanted)]
    left = wanted - len(pages[0]["messages"])
    while left > 0 and pages[-1].get("hasMore") and pages[-1].get("nextCursor"):
        try:
            pages.append(_page_before(client, args, pages[-1]["nextCursor"], left))
        except RpcError as error:  # the session was emptied meanwhile, or is another one
            note(f"older ones are not shown: {error}")
            break
        left -= len(pages[-1]["messages"])
        if not pages[-1]["messages"]:
            break
    return _join_pages(pages)


def _page_before(client: Client, args: Args, cursor: str | None, wanted: int) -> dict[str, Any]:
    params = {
        "sessionKey": args.key,
        "limit": min(wanted, HISTORY_LIMIT.most),
        "includeTools": args.tools or None,
        "cursor": cursor,
        "includeRuns": None if args.raw else True,
        "includeSystem": args.system or None,
        "raw": args.raw or None,
    }
    page: dict[str, Any] = client.call("sessions_history", drop_absent(params), timeout_s=CALL_TIMEOUT_S)
    return page


def _join_pages(pages: list[dict[str, Any]]) -> dict[str, Any]:
    """One page of some that follow each other, newest first."""
    newest, oldest = pages[0], pages[-1]
    page = {name: value for name, value in newest.items() if name != "nextCursor"}
    for name in ("hasMore", "nextCursor"):
        if name in oldest:
            page[name] = oldest[name]
    for name in ("bytes", "skipped"):
        page[name] = sum(one.get(name, 0) for one in pages)
    page["contentRedacted"] = any(one.get("contentRedacted") for one in pages)
    for name in ("messages", "positions", "runs", "attachments", "markers"):
        if any(name in one for one in pages):
            page[name] = [item for one in reversed(pages) for item in one.get(name, [])]
    return page


def _notes(page: dict[str, Any], key: str) -> None:
    if not page["messages"]:
        note("no messages")
    if page.get("hasMore") and page.get("nextCursor"):
        note(f"older ones: sessiond history {key} --before {page['nextCursor']}")
    _note_skipped(page)
    if page.get("contentRedacted"):
        note("secrets are masked for this caller")


def _note_skipped(page: dict[str, Any]) -> None:
    if page.get("skipped"):
        note(f"skipped {pluralize(page['skipped'], 'bad line')}; see: sessiond doctor")


COMMAND = Command(
    "history",
    "Show the messages of a session, oldest first.",
    run=run,
    arguments=(Argument("key", "A session key, `main`, a session id, or the beginning of one.", complete="key"),),
    options=(
        Option("--limit -n", f"The last N messages ({HISTORY_LIMIT.default}).", kind="int", metavar="N"),
        Option("--tools", "Tool results, too.", kind="flag"),
        Option("--system", "System prompts that stand among the messages, too.", kind="flag"),
        Option("--raw", "The lines of the file, one JSON object a line.", kind="flag"),
        Option("--before", "Only older ones than this cursor of an earlier page.", metavar="CURSOR"),
        Option("--follow -f", "Go on with what is said from now on; survives restarts of the daemon.", kind="flag"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        "sessiond history main",
        "sessiond history main -n 5 --tools -f",
        "sessiond history claude:1a2b3c4d",
        "sessiond history main --json | jq -r '.messages[].content'",
    ),
)
