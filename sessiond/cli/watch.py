"""`sessiond watch`: print events as they happen, one per line."""

from __future__ import annotations

import sys

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import connect, connect_quietly
from sessiond.cli.frame.run_ends import MissedRunEnds, is_run_end
from sessiond.cli.frame.watched_questions import ANSWERED, ASKED, WatchedQuestions
from sessiond.cli.patch import FIELDS, format_setting
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.live import LiveLine
from sessiond.cli.terminal.message import ROLE_STYLES, ROLE_WIDTH, TOOL_ROLES, moment_of, short, who_of
from sessiond.cli.terminal.output import json_line, lines
from sessiond.cli.terminal.question import ID_DIGITS, answer_text, question_lines, title_of
from sessiond.cli.terminal.screen import Screen, clip, clip_key, columns_of, pad, screen_of
from sessiond.cli.terminal.times import clock, duration, now_ms
from sessiond.client.wire import Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Columns for the key; the text needs the rest. A key with a shortened UUID takes 32.
KEY_WIDTH, WIDE_KEY_WIDTH, WIDE = 24, 32, 100
# Of a question's detail; `sessiond questions` shows more.
MOST_WATCHED_DETAIL_LINES = 5
_PHASES = {
    "start": ("run", "started", "blue"),
    "end": ("run", "ended", "green"),
    "error": ("run", "failed", "red"),
    "create": ("session", "created", "magenta"),
    "patch": ("session", "changed", "magenta"),
    "reset": ("session", "reset", "magenta"),
    "delete": ("session", "deleted", "magenta"),
    "archive": ("session", "archived", "magenta"),
}
_STATE_STYLES = {"waiting": "yellow", "running": "blue", "done": "green"}


def line(event: Event, present_ms: int, on: Screen, known: dict[str, dict[str, Any]] | None = None) -> str | None:
    """The event as `time session who what`; None for events that are only for programs (deltas, internal changes).

    `known` are the settings of each session as last shown; updated by this call. Questions have more than a line:
    `question_event_lines`.
    """
    key = one_line(str(event.get("sessionKey", "")))
    moment = present_ms
    match event.name:
        case "session.message":
            message = event["message"]
            who, text = who_of(message), short(message)
            style = ROLE_STYLES.get(str(message.get("role")), "magenta")
            moment = moment_of(message, event.params) or present_ms
        case "session.tool" if event.get("phase") in ("start", "end"):
            who, style = "tool", "yellow"
            text = one_line(f"{event.get('name', '?')} {event['phase']}")
        case "sessions.changed" if event.get("reason") in ("question", "answer"):
            return None  # it has an event of its own
        case "sessions.changed" if event.get("reason") == "hook":
            # A program in a terminal says what it does.
            state = (event.get("row") or {}).get("state")
            if state is None:
                return None
            who, text, style = "session", f"is {one_line(str(state))}", _STATE_STYLES.get(state, "magenta")
        case "sessions.changed" if event.get("phase") in _PHASES:
            who, what, style = _PHASES[event["phase"]]
            outcome = _outcome(event)
            if event["phase"] == "patch" and not outcome:
                outcome = _changed_settings(key, event.get("row"), {} if known is None else known)
                if not outcome:
                    return None
            text = f"{what}{outcome}"
        case "machine.changed":
            key, who, style = one_line(str(event.get("machine", ""))), "machine", "magenta"
            text = "is reached" if event.get("awaySince") is None else "is away"
        case "session.resync":
            who, text, style = "resync", one_line(f"read again ({event.get('reason')})"), "dim"
        case _:
            return None
    return _line(clock(moment, present_ms), key, who, text, style=style, on=on)


def _line(when: str, key: str, who: str, text: str, *, style: str, on: Screen) -> str:
    head = _head(when, key, who, on)
    if on.width is not None:
        text = clip(text, max(on.width - columns_of(head), 10))
    who_at = len(head) - ROLE_WIDTH - 1 if head.isascii() else head.rindex(clip(who, ROLE_WIDTH))
    return on.paint(head[: len(when)], "dim") + head[len(when) : who_at] + on.paint(head[who_at:], style) + text


def question_event_lines(event: Event, question: dict[str, Any] | None, present_ms: int, on: Screen) -> list[str]:
    """What was asked, with the lines that answer it, or how a question ended. `question`: as `WatchedQuestions.take`
    has it.
    """
    key = one_line(str(event.get("sessionKey", "")))
    if event.name == ANSWERED:
        answer = event.get("answer") or {}
        when = clock(answer.get("at") or present_ms, present_ms)
        text = f"{str(event.get('id'))[:ID_DIGITS]}  {answer_text(answer, (question or {}).get('options'))}"
        return [_line(when, key, "answer", text, style="yellow", on=on)]
    if question is None:
        return []
    when = clock(question.get("askedAt") or present_ms, present_ms)
    head = _line(when, key, "question", title_of(question), style="yellow", on=on)
    is_cut = not head.endswith(title_of(question))
    return [head, *question_lines(question, on, with_title=is_cut, most_detail_lines=MOST_WATCHED_DETAIL_LINES)]


class GrowingMessages:
    """How much was shown of the newest answer in each session, to which its program may add more."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[object, int]] = {}  # sessionKey -> messageId, number of blocks

    def take_new(self, event: Event) -> Event | None:
        """The event with what was not shown yet of its message; None if everything was."""
        message = event.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        if event.name != "session.message" or not isinstance(content, list) or message.get("role") in TOOL_ROLES:
            return event
        key, message_id = str(event.get("sessionKey")), event.get("messageId")
        had_id, had = self._shown.get(key, (None, 0))
        self._shown[key] = (message_id, len(content))
        if message_id is None or message_id != had_id or len(content) < had:
            return event
        new = content[had:]
        return Event(event.name, {**event.params, "message": {**message, "content": new}}) if new else None


def _head(when: str, key: str, who: str, on: Screen) -> str:
    # Without a terminal the key is not shortened.
    room = WIDE_KEY_WIDTH if on.width is not None and on.width >= WIDE else KEY_WIDTH
    shown_key = pad(key if on.width is None else clip_key(key, room), room)
    return f"{when} {shown_key} {pad(clip(who, ROLE_WIDTH), ROLE_WIDTH)} "


def _outcome(event: Event) -> str:
    """What follows the phase: the status of a run unless ok, its duration, the reason of a change."""
    row = event.get("row") or {}
    parts = [str(event["reason"])] if event.get("reason") not in (None, "ok", event.get("phase")) else []
    if event["phase"] in ("end", "error"):
        if row.get("status") not in (None, "ok", "running", "queued", *parts):
            parts.insert(0, str(row["status"]))
        if isinstance(row.get("runtimeMs"), int):
            parts.append(duration(row["runtimeMs"]))
    return f" ({one_line(', '.join(parts))})" if parts else ""


def _changed_settings(key: str, row: object, known: dict[str, dict[str, Any]]) -> str:
    """The settings that differ from those last shown; most changes of a row are not of its settings."""
    given = row if isinstance(row, dict) else {}
    settings = {name: given[name] for name in FIELDS.values() if given.get(name) is not None}
    before = known.get(key, {})
    if settings:
        known[key] = settings
    else:
        known.pop(key, None)
    changes = [f"{name}: {format_setting(settings[name])}" for name in settings if settings[name] != before.get(name)]
    changes += [f"no {name}" for name in before if name not in settings]
    return f" ({one_line(', '.join(changes))})" if changes else ""


def run(args: Args) -> None:
    on = screen_of()
    live = LiveLine(on)
    known: dict[str, dict[str, Any]] = {}
    growing = GrowingMessages()

    def show(event: Event) -> None:
        if event.name in (ASKED, ANSWERED):
            live.clear()
            lines(question_event_lines(event, questions.take(event), now_ms(), on))
            sys.stdout.flush()
            return
        if event.name == "session.delta":
            live.take(event, _head(clock(now_ms(), now_ms()), one_line(str(event["sessionKey"])), "writing", on))
            return
        new = growing.take_new(event)
        shown = line(new, now_ms(), on, known) if new is not None else None
        if shown is not None:
            live.clear(forget=event.name == "session.message" or is_run_end(event))
            sys.stdout.write(shown + "\n")
            sys.stdout.flush()

    def show_end(key: str, end: dict[str, Any]) -> None:
        if not args.json:
            phase = "end" if end["status"] in ("ok", "aborted") else "error"
            show(Event("sessions.changed", {"sessionKey": key, "phase": phase, "reason": _reason(end)}))

    with connect(args) as client, connect_quietly(args) as beside:
        missed = MissedRunEnds(beside, args.key, show_end)
        questions = WatchedQuestions(beside, args.key, show)

        def on_connect() -> None:
            missed.on_connect()
            if not args.json:
                questions.on_connect()

        events = client.subscribe(args.key, args.after, with_changes=True, on_connect=on_connect)
        for event in events:
            is_new = missed.take(event)
            if args.json:
                json_line({"event": event.name, **event.params})
            elif is_new:
                show(event)


def _reason(end: dict[str, Any]) -> str:
    error = end.get("error")
    return str(end["status"]) if error in (None, end["status"]) else f"{end['status']}: {error}"


COMMAND = Command(
    "watch",
    "Follow everything that happens, in one session or in all of them.",
    run=run,
    description="A question of an agent is shown with the lines that answer it. Goes on by itself when the daemon "
    "restarts, and then shows what was missed first. On a terminal the last line shows what is being written. With "
    "--json every event is one line, deltas of running replies included; a message that its program writes in parts "
    "comes with each of them, whole, under the same messageId.",
    arguments=(Argument("key", "Only this session.", required=False, complete="key"),),
    options=(
        Option("--after", "Begin after this cursor of the session, not now.", metavar="CURSOR"),
        *CLIENT_OPTIONS,
    ),
    examples=("sessiond watch", "sessiond watch main", "sessiond watch --json | jq -c .event"),
)
