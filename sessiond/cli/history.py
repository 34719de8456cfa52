"""`sessiond history`: the messages of a session; with -f also new ones as they come."""

from __future__ import annotations

import sys

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect, connect_quietly, drop_absent
from sessiond.cli.frame.failures import USAGE, CommandFailed, note
from sessiond.cli.frame.run_ends import SessionRunEnds, is_run_end
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.live import LiveLine
from sessiond.cli.terminal.message import ROLE_WIDTH, TOOL_ROLES, moment_of, paragraph
from sessiond.cli.terminal.output import as_json, json_line, lines
from sessiond.cli.terminal.pager import show_paged
from sessiond.cli.terminal.screen import Screen, pad, screen_of
from sessiond.cli.terminal.times import clock, moment_in, now_ms, size
from sessiond.errors import pluralize
from sessiond.ranges import HISTORY_LIMIT

RUN_ENDS = {
    "ok": "done, without a reply",
    "error": "failed",
    "interrupted": "was interrupted: the daemon stopped",
    "timeout": "met its time limit",
    "aborted": "was aborted",
}

MARKERS = {
    "compaction": "— what was said before was summed up —",
    "rewind": "— the conversation went back here —",
}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from sessiond.client.blocking import Client


def show(page: dict[str, Any], present_ms: int, on: Screen) -> list[str]:
    """The messages of a page, oldest first, and between them the ends of runs without a reply."""
    ends = list(page.get("runs") or ())
    markers = list(page.get("markers") or ())
    files = {one["seq"]: one["files"] for one in page.get("attachments") or ()}
    shown = []
    for message, place in zip(page["messages"], page["positions"], strict=True):
        while markers and markers[0]["seq"] <= place["seq"]:
            shown.append(_marker_line(markers.pop(0), present_ms, on))
        while ends and ends[0]["seq"] < place["seq"]:
            shown += _run_end_lines(ends.pop(0), present_ms, on)
        # A message without a timestamp is shown with that of its record.
        moment = moment_of(message)
        moment = moment_in(place.get("timestamp")) if moment is None else moment
        shown += paragraph(message, moment, present_ms, on, beside=_file_names(files.get(place["seq"]) or ()))
    shown += [_marker_line(marker, present_ms, on) for marker in markers]
    for run_end in ends:
        shown += _run_end_lines(run_end, present_ms, on)
    return shown


def _marker_line(marker: dict[str, Any], present_ms: int, on: Screen) -> str:
    text = f"{clock(moment_in(marker.get('timestamp')), present_ms)} {MARKERS.get(marker['kind'], marker['kind'])}"
    return on.paint(text, "dim")


def _file_names(files: Sequence[dict[str, Any]]) -> list[str]:
    return [f"[attached: {one_line(str(file['name']))} ({size(file['bytes'])})]" for file in files]


def _run_end_lines(run_end: dict[str, Any], present_ms: int, on: Screen) -> list[str]:
    """The end of a run without a reply, and what its agent had printed; empty for a run with a reply."""
    status, error = run_end["status"], run_end.get("error")
    if status == "ok" and run_end["replied"]:
        return []
    if status == "error" and error != "interrupted":
        text = f"{RUN_ENDS[status]}: {error}" if error else RUN_ENDS[status]
    else:
        text = RUN_ENDS["interrupted" if status == "error" else status]
    if run_end.get("printed"):
        text += f"; it had printed:\n{run_end['printed'].rstrip()}"
    return paragraph({"role": "run", "content": text}, moment_in(run_end.get("endedAt")), present_ms, on)


def run(args: Args) -> int | None:
    began_ms = now_ms()
    if args.raw and args.follow:
        raise CommandFailed(
            "--raw has the lines of the file as they are now: it does not go with --follow", status=USAGE
        )
    with connect(args) as client:
        page = client.call(
            "sessions_history",
            drop_absent(
                {
                    "sessionKey": args.key,
                    "limit": 1 if args.limit == 0 else args.limit,
                    "includeTools": args.tools or None,
                    "cursor": args.before,
                    "includeRuns": None if args.raw else True,
                    "includeSystem": args.system or None,
                    "raw": args.raw or None,
                }
            ),
            timeout_s=CALL_TIMEOUT_S,
        )
        if args.limit == 0:  # as `tail -n 0`: no messages, and with -f only new ones
            page |= {"messages": [], "positions": [], "runs": [], "hasMore": False}
        if args.follow:
            with connect_quietly(args) as beside:
                _follow(client, beside, page, args, since_ms=began_ms)
            return None
    if args.json:
        as_json(page)
        return None
    if args.raw:
        for line in page["messages"]:
            json_line(line)
        if page.get("hasMore"):
            note(f"older ones: sessiond history {args.key} --raw --before {page['nextCursor']}")
        return None
    show_paged(show(page, now_ms(), screen_of()))
    if args.limit != 0:
        _notes(page, args.key)
    return None


def _follow(client: Client, beside: Client, page: dict[str, Any], args: Args, *, since_ms: int) -> None:
    """Print the page, then new messages and ends of runs as they come; with --json all of them as events."""
    on = screen_of()
    if args.json:
        for message, place in zip(page["messages"], page["positions"], strict=True):
            where = {"sessionKey": page["sessionKey"], "sessionId": page["sessionId"], "messageId": place["id"]}
            seen = {"seq": place["seq"], "cursor": place["cursor"], "message": message}
            json_line({"event": "session.message", **where, **seen})
    else:
        lines(show(page, now_ms(), on))
    sys.stdout.flush()
    live = LiveLine(on)

    def show_end(_key: str, end: dict[str, Any]) -> None:
        if not args.json:
            lines(_run_end_lines(end, now_ms(), on))
            sys.stdout.flush()

    runs = page.get("runs") or ()
    ends = SessionRunEnds(beside, page["sessionKey"], show_end, since_ms=since_ms, shown=runs)
    events = client.subscribe(page["sessionKey"], page["cursor"], with_changes=True, on_connect=ends.on_connect)
    for event in events:
        is_end = is_run_end(event)
        if event.name == "sessions.changed" and not is_end:
            continue  # messages have events of their own, and changed settings are shown by `watch`
        if event.name != "session.delta":
            live.clear(forget=is_end or event.name == "session.message")
        if args.json:
            json_line({"event": event.name, **event.params})
        elif event.name == "session.message":
            message = event["message"]
            if args.tools or message.get("role") not in TOOL_ROLES:
                lines(paragraph(message, moment_of(message), now_ms(), on))
        elif event.name == "session.delta":
            live.take(event, f"{clock(now_ms(), now_ms())} {pad('writing', ROLE_WIDTH)} ")
        elif event.name == "session.resync" and event.get("reason") != "lagged":
            note(f"the transcript was {event.get('reason')}; from its start:")
        ends.take(event)
        sys.stdout.flush()


def _notes(page: dict[str, Any], key: str) -> None:
    if not page["messages"]:
        note("no messages")
    if page.get("hasMore") and page.get("nextCursor"):
        note(f"older ones: sessiond history {key} --before {page['nextCursor']}")
    if page.get("skipped"):
        note(f"skipped {pluralize(page['skipped'], 'bad line')}; see: sessiond doctor")
    if page.get("contentRedacted"):
        note("secrets are masked for this caller")


COMMAND = Command(
    "history",
    "Show the messages of a session, oldest first.",
    run=run,
    arguments=(Argument("key", "A session key, `main`, a session id, or the beginning of one.", complete="key"),),
    options=(
        Option("--limit -n", f"The last N messages ({HISTORY_LIMIT.in_words}).", kind="int", metavar="N"),
        Option("--tools", "Tool results, too.", kind="flag"),
        Option("--system", "System prompts that stand among the messages, too.", kind="flag"),
        Option("--raw", "The lines of the file as they are, one JSON object a line.", kind="flag"),
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
