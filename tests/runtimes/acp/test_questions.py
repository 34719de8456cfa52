"""Questions of an agent to a person, with real processes that speak ACP by hand (`support/acp_agent.py`)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from support.acp_conversation import Conversation, read_frames
from support.patience import PATIENCE_S
from support.rows import check_each

from sessiond.model.question import MAX_DETAIL_BYTES, QuestionOption
from sessiond.runtimes.acp.asking import read_permission
from sessiond.runtimes.runtime import RunOutcome

YES = QuestionOption(id="yes", label="Say yes", kind="allow_once")
NO = QuestionOption(id="no", label="Say no", kind="reject_once")
FORM = {"properties": {"size": {"type": "string", "title": "Size", "enum": ["small", "large"]}}}


class Talking:
    """A turn that goes on: its sink, and in the end its outcome."""

    def __init__(self, conversation: Conversation) -> None:
        self.recorder = conversation.recorder
        self.outcomes: list[RunOutcome] = []
        self.scope = trio.CancelScope()

    @property
    def outcome(self) -> RunOutcome:
        (outcome,) = self.outcomes
        return outcome


@asynccontextmanager
async def begin_turn(conversation: Conversation, text: str, questions: int = 1) -> AsyncIterator[Talking]:
    """A turn in which so many questions have been asked; over when the context ends."""
    talking = Talking(conversation)

    async def say() -> None:
        with talking.scope:
            talking.outcomes.append(await conversation.say(text))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(say)
            while conversation.recorder is talking.recorder:
                await trio.lowlevel.checkpoint()
            talking.recorder = conversation.recorder
            await talking.recorder.wait_for_questions(questions)
            yield talking


def answers_sent(conversation: Conversation) -> list[dict[str, Any]]:
    """What the agent's requests were answered, in order."""
    return [frame["result"] for frame in read_frames(conversation) if "method" not in frame]


async def test_a_question_has_the_agents_own_words_and_its_answer_goes_to_the_agent(talk: Any) -> None:
    conversation = talk()  # `ask` is the default
    async with begin_turn(conversation, "ask") as talking:
        (question,) = talking.recorder.questions
        assert (question.draft.title, question.draft.detail) == ("Run c1", "do c1")
        assert question.draft.options == (YES, NO)
        assert (question.draft.kind, question.draft.tool_call_id) == ("execute", "c1")
        question.choose("yes")
    assert talking.outcome.reply == "yes (answered by owner)" and talking.outcome.notes == ()
    # It is the desk that records a question; only answers of the policy are recorded here.
    assert conversation.answers() == []
    async with begin_turn(conversation, "ask") as talking:
        talking.recorder.questions[0].choose("no", "not on\na Sunday")
    assert talking.outcome.reply == "no (not on\na Sunday)"
    assert talking.outcome.notes == ("permission denied for Run c1 (execute): not on\\u000aa Sunday",)
    result = conversation.shape()[-1]
    assert result == "result execute: (permission denied: not on\na Sunday) !"


async def test_several_questions_are_open_at_once_while_the_agent_goes_on(talk: Any) -> None:
    conversation = talk(permission_rules={"read": "allow"})
    async with begin_turn(conversation, "both", 2) as talking:
        await talking.recorder.wait_for_deltas(1)
        first, second = talking.recorder.questions
        second.choose("no", "first that")
        await talking.recorder.wait_for_deltas(2)
        first.choose("yes")
    assert "".join(talking.recorder.deltas) == "meanwhile. c2 no (first that). c1 yes (answered by owner). "
    # What a rule answers asks nobody.
    assert (await conversation.say("permission read")).reply == "yes"
    assert conversation.recorder.questions == [] and conversation.answers()[0]["outcome"] == "policy"


async def test_a_question_that_nobody_answers_in_time_is_a_denial(talk: Any) -> None:
    conversation = talk(permission_timeout_seconds=0.05)
    outcome = await conversation.say("ask")
    assert outcome.reply == "no (nobody answered the question in time)"
    outcome = await conversation.say("ask c2 allow_once")
    assert outcome.reply == "cancelled (nobody answered the question in time)"
    assert (
        await conversation.say(f"form {json.dumps(FORM)}")
    ).reply == "decline (nobody answered the question in time)"


async def test_a_cancelled_turn_withdraws_its_questions_and_answers_each_once(talk: Any) -> None:
    conversation = talk()
    async with begin_turn(conversation, "both", 2) as talking:
        talking.scope.cancel()
    assert [question.answer.outcome for question in talking.recorder.questions] == ["withdrawn", "withdrawn"]
    # The cancellation comes first, and the agent takes the answers for what they are.
    kinds = [frame.get("method", "answer") for frame in read_frames(conversation)]
    assert kinds[-3:] == ["session/cancel", "answer", "answer"]
    cancelled = {"outcome": {"outcome": "cancelled"}, "_meta": {"sessiond": {"reason": "the turn was cancelled"}}}
    assert answers_sent(conversation) == [cancelled] * 2


async def test_an_agent_takes_its_question_back_or_ends_its_turn_or_dies(talk: Any, workspace: Any) -> None:
    conversation = talk()
    outcome = await conversation.say("takeback")
    assert outcome.reply == "cancelled (the agent took its request back)"
    assert all(question.answer.outcome == "withdrawn" for question in conversation.recorder.questions)
    assert (await conversation.say("leave")).reply == "I do not wait"
    assert [question.answer.outcome for question in conversation.recorder.questions] == ["withdrawn"]
    assert (await conversation.say("hello")).reply == "hello"
    assert answers_sent(conversation)[-1]["_meta"]["sessiond"]["reason"] == "the turn is over"
    async with begin_turn(conversation, "fall") as talking:
        (question,) = talking.recorder.questions
        (workspace / "fall").touch()
    assert question.answer.outcome == "withdrawn"
    assert talking.outcome.error is not None and "process ended" in talking.outcome.error
    # An answer that comes too late reaches nobody, and the next process asks anew.
    question.choose("yes")
    async with begin_turn(conversation, "ask") as talking:
        talking.recorder.questions[0].choose("no")
    assert talking.outcome.reply == "no (answered by owner)"


FORMS: list[tuple[dict[str, Any], str, str]] = [
    (FORM, "large", '{"size": "large"} (the big one)'),
    (FORM, "decline", "decline (the big one)"),
    ({"properties": {"sure": {"type": "boolean"}}}, "true", '{"sure": true} (the big one)'),
    # As Claude Code and Codex have it: a choice, and a text beside it that nobody has to fill in.
    (
        {
            "properties": {
                "q0": {"type": "string", "oneOf": [{"const": "a", "title": "A", "description": "the first"}]},
                "q0_custom": {"type": "string", "title": "Other"},
            }
        },
        "a",
        '{"q0": "a", "q0_custom": "the big one"} (the big one)',
    ),
]


@check_each(("schema", "choice", "said"), FORMS)
async def test_a_form_with_one_choice_is_a_question(schema: Any, choice: str, said: str, talk: Any) -> None:
    conversation = talk(permissions="allow")
    async with begin_turn(conversation, f"form {json.dumps(schema)}") as talking:
        (question,) = talking.recorder.questions
        assert question.draft.title == "Which one?" and question.draft.options[-1].id == "decline"
        question.choose(choice, "the big one")
    assert talking.outcome.reply == said


async def test_other_forms_are_declined_with_the_reason_on_record(talk: Any) -> None:
    two = {"properties": {**FORM["properties"], "colour": {"type": "string", "enum": ["red"]}}}
    for fields, schema, reason in (
        ({}, {"properties": {"name": {"type": "string"}}}, "only a form with one choice can be shown"),
        ({}, two, "only a form with one choice can be shown"),
        ({}, {}, "only a form with one choice can be shown"),
        ({"permissions": "deny"}, FORM, 'permissions = "deny"'),
    ):
        conversation = talk(**fields)
        assert (await conversation.say(f"form {json.dumps(schema)}")).reply == f"decline ({reason})"
        (said,) = conversation.answers()
        assert said.items() >= {"outcome": "policy", "kind": "elicitation", "reason": reason}.items()
        (capabilities,) = [
            frame["params"]["clientCapabilities"]
            for frame in read_frames(conversation)[-4:]
            if frame.get("method") == "initialize"
        ] or [{}]
        assert fields or capabilities.get("elicitation", {"form": {}}) == {"form": {}}


async def test_what_cannot_be_asked_is_denied_and_says_why(talk: Any) -> None:
    conversation = talk()
    outcome = await conversation.say("permission edit neither")
    assert outcome.reply == "cancelled"
    assert outcome.notes == ("permission denied for Run it (edit): the agent offered nothing to choose from",)
    (said,) = conversation.answers()
    assert said["outcome"] == "policy" and said["decision"] == "cancelled"
    outcome = await conversation.say("ask too-many")
    assert outcome.reply == "no (too many questions are open)"


DESCRIBED: list[tuple[Any, str | None]] = [
    ({"rawInput": {"command": "ls", "description": "List"}}, "ls"),
    ({"rawInput": {"command": "ls", "unsandboxed": True}}, 'ls\n\n{\n  "unsandboxed": true\n}'),
    ({"rawInput": {"path": "/x"}}, '{\n  "path": "/x"\n}'),
    ({"rawInput": "as text"}, "as text"),
    ({"rawInput": "\u202ex" * 9000}, None),
    ({"content": [{"type": "content", "content": {"type": "text", "text": "because"}}]}, "because"),
    ({"content": [{"type": "diff", "path": "/x", "oldText": "a", "newText": "b\nc"}]}, "/x\n- a\n+ b\n+ c"),
    ({"locations": [{"path": "/x"}, 7]}, "/x"),
    ({"rawInput": {"command": 7}, "content": "no", "locations": {}}, '{\n  "command": 7\n}'),
    ({}, ""),
]


@check_each(("call", "detail"), DESCRIBED)
def test_a_question_says_what_the_call_would_do(call: Any, detail: str | None) -> None:
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    question = read_permission({"options": options}, call, title="Run it", kind="other")
    assert question is not None
    shown = question.draft.detail or ""
    assert "\u202e" not in shown and len(shown.encode()) <= MAX_DETAIL_BYTES
    assert shown == detail if detail is not None else shown.endswith("characters in all)")


def test_the_way_to_say_no_is_shown_beside_many_to_say_yes() -> None:
    kinds = ["allow_once"] * 20 + ["reject_once"]
    options = [{"optionId": str(number), "name": "Same", "kind": kind} for number, kind in enumerate(kinds)]
    question = read_permission({"options": options}, {}, title="\x1b\n", kind="other")
    assert question is not None and question.draft.title == "other"
    assert [option.kind for option in question.draft.options] == ["allow_once"] * 15 + ["reject_once"]
    assert question.draft.options[-1].id == "20"
