"""What was asked in a session and what was answered, as facts between its messages, by time."""

from __future__ import annotations

from sessiond.cli.frame.daemon import CALL_TIMEOUT_S
from sessiond.cli.frame.failures import CommandFailed
from sessiond.cli.terminal.message import moment_of
from sessiond.cli.terminal.question import QuestionFact, answer_text, take_facts, title_of
from sessiond.client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sessiond.client.blocking import Client


def question_facts(
    client: Client, key: str, session_id: str, mask: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> list[QuestionFact]:
    """The facts of a session, oldest first: of all open questions and the newest that are over. None if the caller may
    not list questions. `mask` hides the secrets in a question.

    `session_id`: that of the transcript, which is an older one of this key where it was put away.
    """
    try:
        found = client.call("questions.list", {"sessionKey": key}, timeout_s=CALL_TIMEOUT_S)["questions"]
    except (ClientError, CommandFailed):  # a caller without the scope, or a daemon of an earlier release
        return []
    found = [one for one in found if one.get("runId") is None or one["runId"].startswith(session_id + ".")]
    facts = [fact for each in found for fact in _facts_of(each if mask is None else mask(each))]
    return sorted(facts, key=lambda fact: fact.moment_ms)


def facts_of_page(client: Client, page: dict[str, Any], *, is_newest: bool) -> list[QuestionFact]:
    """What was asked and answered while the messages of a page were said."""
    moments = [moment_of(*one) for one in zip(page["messages"], page["positions"], strict=True)]
    first, last = (moments[0], moments[-1]) if moments else (None, None)
    facts = question_facts(client, page["sessionKey"], page["sessionId"])
    if page.get("hasMore") and first is not None:
        take_facts(facts, first - 1)
    return facts if is_newest or last is None else take_facts(facts, last)


def _facts_of(question: dict[str, Any]) -> list[QuestionFact]:
    answer, call_id = question.get("answer"), question.get("toolCallId")
    is_open = question["status"] == "open"
    text, asked = title_of(question), {name: value for name, value in question.items() if name != "answer"}
    facts = [QuestionFact(question["askedAt"], "question", text, is_open=is_open, call_id=call_id, facts=asked)]
    if answer:
        said, given = answer_text(answer, question["options"]), {"questionId": question["id"], **answer}
        moment = answer.get("at", question["askedAt"])
        facts.append(QuestionFact(moment, "answer", said, call_id=call_id, facts=given))
    return facts
