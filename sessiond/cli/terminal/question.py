"""A question as text: what is asked, and the very command lines that answer it. Knows no daemon.

Titles, details, labels and ids of options are an agent's. On a terminal all of it stands behind a mark, also where it
is broken into lines, so that nothing of it can look like a line of ours; and a command line, which is there to be
pasted into a shell, has quoted words only.
"""

from __future__ import annotations

import json

from sessiond.cli.terminal.escape import escape, one_line
from sessiond.cli.terminal.screen import Screen, clip_key, fold
from sessiond.cli.terminal.times import ago_in_words, clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Question = dict[str, Any]
    QuestionOption = dict[str, Any]

# So many characters of a question's id are shown, and do.
ID_DIGITS = 8
# Lines of a detail that are shown where questions are listed; --json has all of it.
MOST_DETAIL_LINES = 40
_KIND_WORDS = {
    "allow_once": "allow once",
    "allow_always": "allow always",
    "reject_once": "reject once",
    "reject_always": "reject always",
}
# What may be said of every question, whatever the agent calls its options.
_WORDS_OF_KINDS = {"allow": "allow_once", "yes": "allow_once", "deny": "reject_once", "no": "reject_once"}
_OUTCOMES = {"expired": "expired", "withdrawn": "withdrawn", "policy": "settled by the configuration"}


class QuestionFact:
    """`who`: `question` or `answer`; `text` is escaped; `moment_ms` since 1970. `is_open`: it waits for its answer.

    `call_id` is the tool call that it is about, if it is about one; `facts` are those of the daemon.
    """

    def __init__(
        self,
        moment_ms: int,
        who: str,
        text: str,
        *,
        is_open: bool = False,
        call_id: str | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.moment_ms, self.who, self.text, self.is_open, self.call_id = moment_ms, who, text, is_open, call_id
        self.facts = facts or {}


def take_facts(facts: list[QuestionFact], until_ms: int | None) -> list[QuestionFact]:
    """The facts before a moment (None: all), which are removed from the list."""
    count = next(
        (at for at, fact in enumerate(facts) if until_ms is not None and fact.moment_ms > until_ms), len(facts)
    )
    taken, facts[:count] = facts[:count], []
    return taken


def options_named(options: list[QuestionOption], text: str) -> list[QuestionOption]:
    """The options whose id is `text`, or whose label it is, as it is shown and in whatever case; else for `allow` and
    `deny` those that do that once.

    An agent may call what allows "deny": such a word means all of them.
    """
    word = one_line(text).casefold()
    named = [one for one in options if one["id"] == text or one_line(str(one.get("label"))).casefold() == word]
    kind = _WORDS_OF_KINDS.get(word)
    if kind is None or (named and all(one.get("kind") == kind for one in named)):
        return named
    return [one for one in options if one in named or one.get("kind") == kind]


def answer_line(question: Question, option: QuestionOption) -> str:
    """The command line that gives this answer and no other."""
    for name in (option["id"], option.get("label")):
        if (
            not isinstance(name, str)
            or not name.isprintable()
            or " ".join(name.split()) != name
            or name[:1] in ("", "-")
        ):
            continue  # it cannot be typed
        if options_named(question["options"], name) == [option]:
            return f"sessiond answer {question['id'][:ID_DIGITS]} {shell_word(name)}"
    # Or its id and its label name another option too.
    params = json.dumps({"id": question["id"], "optionId": option["id"]}).replace("\x7f", "\\u007f")
    return f"sessiond call questions.answer {shell_word(params)}"


def question_lines(
    question: Question, on: Screen, *, with_title: bool = True, most_detail_lines: int = MOST_DETAIL_LINES
) -> list[str]:
    """What is asked: the title, the detail, and each option with the line that answers so."""
    shown = _mark_lines("? ", title_of(question), on, "bold") if with_title else []
    details = escape(str(question.get("detail") or ""), lines=True).strip("\n").split("\n")
    for line in details[:most_detail_lines] if details != [""] else ():
        shown += _mark_lines("│ ", line, on, None)
    if len(details) > most_detail_lines:
        rest = len(details) - most_detail_lines
        shown += _mark_lines("│ ", f"… {rest} more: sessiond questions --json", on, "dim")
    for option in question["options"]:
        shown += _mark_lines("- ", label_of(option), on, "cyan")
        if question.get("status", "open") == "open":
            shown.append(f"      {answer_line(question, option)}")
    return shown


def title_of(question: Question) -> str:
    """The title on one line; escaped. Without the scope `read` or `answer` there is none."""
    return one_line(str(question.get("title") or "(not for this caller)"))


def label_of(option: QuestionOption) -> str:
    """The agent's own words for an option and, where they differ, what kind of answer it is; escaped."""
    label, kind = one_line(str(option.get("label") or option["id"])), _KIND_WORDS.get(str(option.get("kind")))
    return label if kind is None or kind == label.casefold() else f"{label} ({kind})"


def answer_text(answer: dict[str, Any], options: list[QuestionOption] | None = None) -> str:
    """`Allow once, by the owner (cli): note`, or what else closed the question; escaped."""
    outcome = str(answer.get("outcome"))
    option = next((one for one in options or () if one["id"] == answer.get("optionId")), None)
    given = label_of(option) if option is not None else one_line(str(answer.get("optionId") or ""))
    if outcome != "answered":
        given = ": ".join(part for part in (_OUTCOMES.get(outcome, one_line(outcome)), given) if part)
    by = answer.get("by")
    who = f", by {'the owner' if by == 'owner' else one_line(str(by))}" if by and outcome == "answered" else ""
    road = f" ({one_line(str(answer['road']))})" if who and answer.get("road") else ""
    words = [one_line(str(answer[name])) for name in ("note", "reason") if answer.get(name)]
    return f"{given}{who}{road}{': ' if words else ''}{'; '.join(words)}"


def heading(question: Question, present_ms: int, on: Screen) -> str:
    """Which question it is: its id, its session, since when and until when it waits, or what became of it."""
    facts = [f"asked {ago_in_words(question.get('askedAt'), present_ms)}"]
    if question.get("status", "open") != "open":
        facts.append(str(question["status"]))
    elif question.get("expiresAt") is not None:
        facts.append(f"until {clock(question['expiresAt'], present_ms)}")
    told, key = "  ".join(facts), one_line(str(question["sessionKey"]))
    room = None if on.width is None else max(on.width - ID_DIGITS - len(told) - 4, 16)
    return f"{on.paint(question['id'][:ID_DIGITS], 'yellow')}  {key if room is None else clip_key(key, room)}  {told}"


def _mark_lines(mark: str, text: str, on: Screen, style: str | None) -> list[str]:
    """The text behind the mark, on as many lines as it takes."""
    room = None if on.width is None else max(on.width - 4, 10)
    first, *rest = fold(text, room)
    return [f"  {mark}{on.paint(first, style)}", *(f"  {'│ '}{on.paint(line, style)}" for line in rest)]


def shell_word(text: str) -> str:
    """`text` as one word of a POSIX shell."""
    if text and all((char.isascii() and char.isalnum()) or char in "_.:/@+,-" for char in text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"
