"""`sessiond answer`: answer a question of an agent."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect, drop_absent
from sessiond.cli.frame.failures import note
from sessiond.cli.frame.question_names import describe_lost_race, find_option, find_question, is_whole_id
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.question import ID_DIGITS, label_of, shell_word, title_of
from sessiond.client.errors import RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client.blocking import Client


def run(args: Args) -> None:
    with connect(args) as client:
        question = _find(client, args.id, args.option)
        if question["status"] != "open":
            raise describe_lost_race(question, question.get("answer"))
        option = find_option(question, args.option)
        given = drop_absent({"id": question["id"], "optionId": option["id"], "note": args.note})
        try:
            done = client.call("questions.answer", given, timeout_s=CALL_TIMEOUT_S)
        except RpcError as error:
            if error.slug == "conflict" and isinstance(error.data.get("answer"), dict):
                raise describe_lost_race(question, error.data["answer"]) from None
            raise
    if args.json:
        as_json(done)
    else:
        told = f"{title_of(question)}: " if question.get("title") else ""
        lines([f"{question['id'][:ID_DIGITS]}  {told}{label_of(option)}"])
        if args.note and _may_drop_note(question):
            key = shell_word(one_line(str(question["sessionKey"])))
            note(f'the agent\'s program may not pass the note on; tell it with: sessiond send {key} "..."')


def _find(client: Client, text: str, option: str) -> dict[str, Any]:
    """The question; of one that is not listed, whose whole id is given, the daemon says itself what it is."""
    questions: list[dict[str, Any]] = client.call("questions.list", timeout_s=CALL_TIMEOUT_S)["questions"]
    if is_whole_id(text) and not any(one["id"] == text for one in questions):
        return {"id": text, "status": "open", "options": [{"id": option, "label": one_line(option)}]}
    return find_question(questions, text)


def _may_drop_note(question: dict[str, Any]) -> bool:
    """Whether a program that speaks ACP asks for permission: its answers have no words. Its forms may have a field."""
    return bool(question.get("toolCallId")) and question.get("kind") != "elicitation"


COMMAND = Command(
    "answer",
    "Answer a question of an agent; the first answer counts.",
    run=run,
    description="Exits with 1 where the question was answered already or is over, and says by whom.",
    arguments=(
        Argument("id", "The question's id, or its first 8 characters.", complete="question"),
        Argument(
            "option", "The id of an option or its label; or `allow` (`yes`) or `deny` (`no`): once.", complete="option"
        ),
    ),
    options=(
        Option("--note", "Words to go with the answer; hooks of Claude Code and forms pass them on.", metavar="TEXT"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        "sessiond answer 1a2b3c4d allow",
        "sessiond answer 1a2b3c4d 'Allow once' --note 'only in this folder'",
    ),
)
