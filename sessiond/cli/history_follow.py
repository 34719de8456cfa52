"""`sessiond history -f`: what is said, asked and answered in a session from a page on."""

from __future__ import annotations

import sys

from sessiond.cli.frame.failures import note
from sessiond.cli.frame.question_facts import facts_of_page
from sessiond.cli.frame.run_ends import SessionRunEnds, is_run_end
from sessiond.cli.frame.watched_questions import ANSWERED, ASKED, WatchedQuestions
from sessiond.cli.terminal.live import LiveLine
from sessiond.cli.terminal.message import ROLE_WIDTH, TOOL_ROLES, moment_of, paragraph
from sessiond.cli.terminal.output import json_line, lines
from sessiond.cli.terminal.question import QuestionFact, answer_text, question_lines, title_of
from sessiond.cli.terminal.screen import Screen, pad, screen_of
from sessiond.cli.terminal.times import clock, now_ms
from sessiond.cli.terminal.transcript import fact_lines, page_lines, run_end_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.cli.frame.command import Args
    from sessiond.client.blocking import Client
    from sessiond.client.wire import Event


def follow(client: Client, beside: Client, page: dict[str, Any], args: Args, *, since_ms: int) -> None:
    """Print the page, then new messages, questions and ends of runs as they come; with --json all of them as events."""
    key, cursor = page["sessionKey"], page["cursor"]
    if args.json:
        _print_as_events(page)
        ends = SessionRunEnds(beside, key, lambda *_: None, since_ms=since_ms, shown=())
        for event in client.subscribe(key, cursor, with_changes=True, on_connect=ends.on_connect):
            if event.name != "sessions.changed" or is_run_end(event):
                json_line({"event": event.name, **event.params})
        return
    screen = FollowedScreen(with_tools=args.tools)
    # Questions that are open come with the lines that answer them once the subscription stands.
    facts = facts_of_page(beside, page, is_newest=True) if page["messages"] else []
    screen.print_lines(page_lines(page, now_ms(), screen.on, [fact for fact in facts if not fact.is_open]))
    questions = WatchedQuestions(beside, key, lambda event: screen.show_question(event, questions.take(event)))
    ends = SessionRunEnds(
        beside, key, lambda _key, end: screen.show_end(end), since_ms=since_ms, shown=page.get("runs") or ()
    )

    def on_connect() -> None:
        ends.on_connect()
        questions.on_connect()

    for event in client.subscribe(key, cursor, with_changes=True, on_connect=on_connect):
        if event.name in (ASKED, ANSWERED):
            screen.show_question(event, questions.take(event))
        else:
            screen.show(event)
        ends.take(event)


class FollowedScreen:
    """Prints what happens in one session, for people."""

    def __init__(self, *, with_tools: bool) -> None:
        self.on = screen_of()
        self._live = LiveLine(self.on)
        self._with_tools = with_tools

    def show(self, event: Event) -> None:
        """Print an event; messages have events of their own, and changed settings are shown by `watch`."""
        is_end = is_run_end(event)
        if event.name == "sessions.changed" and not is_end:
            return
        if event.name == "session.delta":
            self._live.take(event, f"{clock(now_ms(), now_ms())} {pad('writing', ROLE_WIDTH)} ")
            return
        self._live.clear(forget=is_end or event.name == "session.message")
        if event.name == "session.message":
            message = event["message"]
            if self._with_tools or message.get("role") not in TOOL_ROLES:
                self.print_lines(paragraph(message, moment_of(message, event.params), now_ms(), self.on))
        elif event.name == "session.resync" and event.get("reason") != "lagged":
            note(f"the transcript was {event.get('reason')}; from its start:")
        sys.stdout.flush()

    def show_end(self, end: dict[str, Any]) -> None:
        """Print how a run ended that has no reply."""
        self.print_lines(run_end_lines(end, now_ms(), self.on))

    def show_question(self, event: Event, question: dict[str, Any] | None) -> None:
        """Print what was asked or answered; `question` is as `WatchedQuestions.take` has it."""
        self._live.clear()
        self.print_lines(_question_event_lines(event, question, self.on))

    def print_lines(self, texts: list[str]) -> None:
        """Print lines at once."""
        lines(texts)
        sys.stdout.flush()


def _print_as_events(page: dict[str, Any]) -> None:
    for message, place in zip(page["messages"], page["positions"], strict=True):
        where = {"sessionKey": page["sessionKey"], "sessionId": page["sessionId"], "messageId": place["id"]}
        seen = {name: place[name] for name in ("seq", "cursor", "timestamp") if name in place} | {"message": message}
        json_line({"event": "session.message", **where, **seen})
    sys.stdout.flush()


def _question_event_lines(event: Event, question: dict[str, Any] | None, on: Screen) -> list[str]:
    present_ms = now_ms()
    if event.name == ANSWERED:
        answer = event.get("answer") or {}
        text = answer_text(answer, question["options"] if question else None)
        return fact_lines(QuestionFact(answer.get("at") or present_ms, "answer", text), present_ms, on)
    if question is None:
        return []
    fact = QuestionFact(question.get("askedAt") or present_ms, "question", title_of(question))
    return [*fact_lines(fact, present_ms, on), *question_lines(question, on, with_title=False)]
