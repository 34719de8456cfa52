"""`sessiond questions`: what agents ask, and the lines that answer."""

from __future__ import annotations

import sys

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Command, Option
from sessiond.cli.frame.daemon import ask, drop_absent
from sessiond.cli.frame.failures import note
from sessiond.cli.terminal.output import as_json, as_tsv, lines
from sessiond.cli.terminal.pager import show_paged
from sessiond.cli.terminal.question import answer_text, heading, question_lines
from sessiond.cli.terminal.screen import Screen, screen_of
from sessiond.cli.terminal.times import now_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TITLES = ("id", "status", "askedAt", "expiresAt", "sessionKey", "agentId", "title", "options", "answer")


def show(questions: list[dict[str, Any]], present_ms: int, on: Screen) -> list[str]:
    """Each question with the lines that answer it, an empty line between two."""
    shown: list[str] = []
    for question in questions:
        shown += ["", heading(question, present_ms, on), *question_lines(question, on)]
        if question.get("answer"):
            shown.append(f"  = {answer_text(question['answer'], question['options'])}")
    return shown[1:]


def run(args: Args) -> None:
    params = {"sessionKey": args.session, "agentId": args.agent, "open": None if args.all else True}
    found = ask(args, "questions.list", drop_absent(params))
    questions = found["questions"]
    if args.json:
        as_json(found)
        return
    if sys.stdout.isatty():
        show_paged(show(questions, now_ms(), screen_of()))
    else:
        lines(as_tsv(TITLES, [_cells(question) for question in questions]))
    if not questions:
        note("nobody has asked anything" if args.all else "nobody waits for an answer; what was asked: --all")


def _cells(question: dict[str, Any]) -> tuple[Any, ...]:
    """The ids of the options are apart by blanks; one that has a blank itself is in --json only as it is."""
    options = question["options"]
    answer = question.get("answer")
    said = answer_text(answer, options) if answer else None
    facts = [question.get(name) for name in TITLES[:7]]
    return (*facts, " ".join(option["id"] for option in options), said)


COMMAND = Command(
    "questions",
    "Show what agents ask and nobody has answered yet, oldest first, with the lines that answer.",
    run=run,
    description="Tab-separated values with a title line where this is no terminal.",
    options=(
        Option("--session", "Only those of this session.", metavar="KEY", complete="key"),
        Option("--agent", "Only those of this agent.", metavar="AGENT", complete="agent"),
        Option("--all", "Those that are over, too.", kind="flag"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        "sessiond questions",
        "sessiond questions --all --session main",
        "sessiond questions --json | jq -r '.questions[].title'",
    ),
)
