"""`sessiond inbox`: show the unread messages that are kept for a program, and mark them as read."""

from __future__ import annotations

import sys

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect, drop_absent
from sessiond.cli.frame.failures import note
from sessiond.cli.terminal.escape import escape, one_line
from sessiond.cli.terminal.output import as_json, as_tsv, lines
from sessiond.cli.terminal.pager import show_paged
from sessiond.cli.terminal.screen import Screen, clip_key, screen_of
from sessiond.cli.terminal.table import Column, render
from sessiond.cli.terminal.times import ago, clock, moment_in, now_ms
from sessiond.client.errors import RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client.blocking import Client

    Message = dict[str, Any]

TITLES = ("timestamp", "from", "text", "id")
OVERVIEW_TITLES = ("key", "unread", "more", "oldest")


def run(args: Args) -> None:
    with connect(args) as client:
        if args.key is None and not client.caller.get("sessionKey"):
            _show_overview(client, json=args.json)
            return
        asked = drop_absent({"sessionKey": args.key, "wait": args.wait})
        limit_s = CALL_TIMEOUT_S + (args.wait or 0)
        page = client.call("sessions_inbox", asked, timeout_s=limit_s)
        _show(page, args)
        # Marked as read only after they were written; if the reader of the output ends early, they stay unread.
        sys.stdout.flush()
        if page["messages"] and not args.peek:
            read = {"sessionKey": page["sessionKey"], "cursor": page["cursor"]}
            client.call("sessions_inbox", read, timeout_s=CALL_TIMEOUT_S)


def _show(page: dict[str, Any], args: Args) -> None:
    messages = page["messages"]
    if args.json:
        as_json(page)
        return
    if sys.stdout.isatty():
        show_paged(show(messages, now_ms(), screen_of()))
    else:
        rows = [(one.get("timestamp"), one.get("from"), one["text"], one.get("id")) for one in messages]
        lines(as_tsv(TITLES, rows))
    key = page["sessionKey"]
    if not messages:
        # What was handed over in a terminal is a part of the turn there.
        read = f"; what was read: sessiond history {key}" if key.startswith("agent:") else f" waits for {key}"
        note(f"nothing unread{read}")
    elif page["hasMore"]:
        note("there are more behind these, once these are read" if args.peek else "there are more: the same again")


def show(messages: list[Message], present_ms: int, on: Screen) -> list[str]:
    """The messages, oldest first: a line with time and sender, then the text."""
    shown = []
    for message in messages:
        when = clock(moment_in(message.get("timestamp")), present_ms)
        sender = one_line(str(message.get("from") or "you"))
        shown.append(f"{on.paint(when, 'dim')} {on.paint(f'from {sender}', 'cyan')}")
        shown += ["  " + line for line in escape(message["text"], lines=True).split("\n")]
    return shown


def _show_overview(client: Client, *, json: bool) -> None:
    """List the sessions whose messages are kept for a program or wait for a terminal, with their unread counts.

    Marks nothing as read.
    """
    inboxes = []
    for key in _keys_of_inboxes(client):
        page = client.call("sessions_inbox", sessionKey=key, timeout_s=CALL_TIMEOUT_S)
        messages = page["messages"]
        oldest = messages[0].get("timestamp") if messages else None
        counted = {"sessionKey": key, "unread": len(messages), "hasMore": page["hasMore"], "oldest": oldest}
        inboxes.append(drop_absent(counted))
    try:
        inboxes += client.call("hooks.list", timeout_s=CALL_TIMEOUT_S)["waiting"]
    except RpcError as error:
        if error.slug not in ("forbidden", "method_not_found"):  # it is for the owner only
            raise
    if json:
        as_json({"inboxes": inboxes})
        return
    if sys.stdout.isatty():
        show_paged(_table(inboxes, now_ms(), screen_of()))
    else:
        rows = [(one["sessionKey"], one["unread"], one["hasMore"], one.get("oldest")) for one in inboxes]
        lines(as_tsv(OVERVIEW_TITLES, [(key, count, int(more), oldest) for key, count, more, oldest in rows]))
    note("read one: sessiond inbox KEY" if inboxes else "no program has an inbox yet; a first one: sessiond setup")


def _keys_of_inboxes(client: Client) -> list[str]:
    keys: list[str] = []
    asked: dict[str, Any] = {"search": ":mcp:", "limit": 200}
    while True:
        found = client.call("sessions_list", asked, timeout_s=CALL_TIMEOUT_S)
        keys += [row["key"] for row in found["sessions"] if row["key"].split(":")[2:3] == ["mcp"]]
        if not found.get("nextCursor"):
            return keys
        asked["cursor"] = found["nextCursor"]


def _table(inboxes: list[dict[str, Any]], present_ms: int, on: Screen) -> list[str]:
    columns = (
        Column("KEY", lambda inbox: inbox["sessionKey"], least=16, keep=9, style="bold", fit=clip_key),
        Column("UNREAD", lambda inbox: f"{inbox['unread']}{'+' if inbox['hasMore'] else ''}", right=True, keep=8),
        Column("OLDEST", lambda inbox: ago(moment_in(inbox.get("oldest")), present_ms), keep=7),
    )
    return render(columns, inboxes, on)


COMMAND = Command(
    "inbox",
    "Show the unread messages to a program, and mark them as read.",
    run=run,
    description="A session like mcp:claude-code has no agent that answers: what is sent to it is kept until the"
    " program, or you with this, reads it. What waits for a session in a terminal comes with its next prompt, unless it"
    " is read here before. Tab-separated values with a title line where this is no terminal.",
    arguments=(
        Argument(
            "key",
            "The session (default: your own; as the owner a list of all that keep messages).",
            required=False,
            complete="inbox",
        ),
    ),
    options=(
        Option("--peek", "Show them and leave them unread.", kind="flag"),
        Option("--wait", "Wait at most this long for a first message.", kind="duration", metavar="SECONDS"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        "sessiond inbox",
        "sessiond inbox mcp:claude-code --peek",
        "sessiond inbox mcp:review --wait 10m --json | jq -r '.messages[].text'",
    ),
)
