"""The questions there are, and which of them and of their options the words of a command line mean."""

from __future__ import annotations

from sessiond.cli.frame.daemon import CALL_TIMEOUT_S
from sessiond.cli.frame.failures import FAILED, NOT_FOUND, USAGE, CommandFailed
from sessiond.cli.frame.names import MAX_CANDIDATES
from sessiond.cli.terminal.question import ID_DIGITS, answer_line, answer_text, label_of, options_named, title_of
from sessiond.client.errors import RpcError
from sessiond.errors import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.cli.terminal.question import Question, QuestionOption
    from sessiond.client.blocking import Client

_SEE = 'the questions that wait: "sessiond questions"'


def count_questions(client: Client) -> dict[str, int]:
    """How many open questions each agent has; by "" those of other programs' sessions."""
    try:
        questions = client.call("questions.list", {"open": True}, timeout_s=CALL_TIMEOUT_S)["questions"]
    except (RpcError, CommandFailed):  # a caller that may not list sessions, or a daemon of an earlier release
        return {}
    counts: dict[str, int] = {}
    for question in questions:
        counts[question["agentId"]] = counts.get(question["agentId"], 0) + 1
    return counts


def find_question(questions: list[Question], text: str) -> Question:
    """The only question whose id begins with `text`; an open one before those that are over. CommandFailed."""
    begin = text.strip().lower().removesuffix("…")
    if len(begin) < ID_DIGITS:
        raise CommandFailed(
            f"{quote(text)} is too short: {ID_DIGITS} characters of a question's id at least",
            hint=_SEE,
            status=USAGE if not begin else NOT_FOUND,
        )
    found = [one for one in questions if one["id"].startswith(begin)]
    found = [one for one in found if one["status"] == "open"] or found
    if not found:
        raise CommandFailed(f"no question {quote(text)}", hint=_SEE, status=NOT_FOUND)
    if len(found) > 1:
        each = [f"{one['id']}  {title_of(one)}" for one in found[:MAX_CANDIDATES]]
        more = ["…"] if len(found) > MAX_CANDIDATES else []
        raise CommandFailed(
            f"{quote(text)} may be any of {len(found)} questions:", hint="\n  ".join([*each, *more]), status=NOT_FOUND
        )
    return found[0]


def is_whole_id(text: str) -> bool:
    """Whether the text is the id of a question, not only its beginning."""
    return len(text) == 16 and set(text) <= set("0123456789abcdef")


def find_option(question: Question, text: str) -> QuestionOption:
    """The only option that `text` means. CommandFailed with the lines that do answer."""
    options = question["options"]
    found = options_named(options, text)
    if len(found) == 1:
        return found[0]
    what = f"{quote(text)} may be any of {len(found)} options" if found else f"no option {quote(text)}"
    # Never on one line: a line that is copied whole must not have an agent's words in it.
    lines = [line for one in found or options for line in (f"- {label_of(one)}", f"    {answer_line(question, one)}")]
    raise CommandFailed(
        f"{what} of {quote(title_of(question))}; what answers:", hint="\n  ".join(lines), status=NOT_FOUND
    )


def describe_lost_race(question: Question, answer: dict[str, Any] | None) -> CommandFailed:
    """The failure for a question that is over, with who was first."""
    said = answer_text(answer, question.get("options")) if answer else str(question.get("status"))
    verb = "was answered already" if (answer or {}).get("outcome", "answered") == "answered" else "is over"
    return CommandFailed(f"the question {question['id'][:ID_DIGITS]} {verb}: {said}", status=FAILED)
