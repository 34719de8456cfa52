"""A turn answers every request of its agent once, whatever the agent sends, and keeps what it says in order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from sessiond.clock import Clock
from sessiond.config.agents import RuntimeConfig
from sessiond.errors import Conflict
from sessiond.model.question import MAX_OPTIONS, OPTION_KINDS, QuestionAnswer, QuestionDraft, is_option_id
from sessiond.runtimes.acp.connection import AgentConnection
from sessiond.runtimes.acp.frames import AgentFrame, AgentNotification, AgentRequest, AgentResponse
from sessiond.runtimes.acp.process import AgentProcess, ProcessRules
from sessiond.runtimes.acp.session import OpenSession
from sessiond.runtimes.acp.turn import PromptTurn, TurnRules
from sessiond.runtimes.launcher import ProgramCommand
from sessiond.runtimes.runtime import RunOutcome, RunSpec

SPEC = RunSpec(
    run_id="r", session_key="k", session_id="s", agent_id="main", message="hi", workspace=Path("/w"), socket=Path("/s")
)
RULES = TurnRules(RuntimeConfig(type="acp", permission_rules={"read": "allow", "edit": "deny"}), 1 << 16, Clock())


class ListSink:
    """`fates` is what becomes of the questions: the place of an option, an outcome, a refusal, or nothing for ever."""

    def __init__(self, fates: list[Any]) -> None:
        self.records: list[tuple[str, Any]] = []
        self.fates = fates
        self.asked: list[QuestionDraft] = []

    async def ask(self, draft: QuestionDraft, *, timeout_s: float | None = None) -> QuestionAnswer:
        self.asked.append(draft)
        match fate := self.fates.pop() if self.fates else None:
            case None:
                await trio.sleep_forever()
            case "refused":
                raise Conflict("too many are open")
            case "expired" | "withdrawn":
                return QuestionAnswer(question_id="0" * 16, outcome=fate, at=0)
        await trio.lowlevel.checkpoint()
        option = draft.options[fate % len(draft.options)].id
        return QuestionAnswer(question_id="0" * 16, outcome="answered", option_id=option, by="owner", at=0)

    async def message(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.records.append(("message", msgspec.json.encode(message)))

    async def custom(self, custom_type: str, data: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.records.append((custom_type, msgspec.json.encode(data)))

    def delta(self, text: str) -> None: ...

    def thought_delta(self, text: str) -> None: ...

    def tool(self, *_: Any, **__: Any) -> None: ...


async def run_turn(
    frames: list[AgentFrame], late: list[AgentFrame], fates: list[Any]
) -> tuple[RunOutcome, ListSink, list[dict[str, Any]]]:
    """The outcome of a turn in which the agent sends these frames, its answer, and some more; records; what it was
    sent.
    """
    written: list[dict[str, Any]] = []
    rules = ProcessRules(agent_id="main", start_s=1, idle_s=1, max_frame_bytes=1 << 20)
    process = AgentProcess(ProgramCommand(argv=("x",), env={}, cwd=Path("/w")), rules)
    process.connection = AgentConnection(lambda line: written.append(msgspec.json.decode(line)))
    sink: Any = ListSink(list(fates))
    outcomes: list[RunOutcome] = []

    async def run() -> None:
        outcomes.append(await PromptTurn(process, OpenSession("n", None), SPEC, sink, RULES).run())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        for frame in [*frames, AgentResponse(0, {"stopReason": "end_turn"}), *late]:
            await process.connection.handle(frame, 1)
    return outcomes[0], sink, written[1:]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["read", "edit", "allow_once"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["toolCallId", "title", "kind", "optionId", "rawInput", "content", "status"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
options = st.lists(
    st.fixed_dictionaries(
        {"optionId": st.sampled_from(["a", "b", "", "\n", "x" * 300]), "kind": st.sampled_from([*OPTION_KINDS, "new"])},
        optional={"name": values},
    ),
    max_size=20,
)
fields = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "boolean", "array"])},
    optional={"enum": st.lists(values, max_size=3), "oneOf": values, "title": values},
)
forms = st.fixed_dictionaries(
    {"properties": st.dictionaries(st.sampled_from(["a", "a_note", ""]), fields | values, max_size=3)},
    optional={"required": values, "title": values},
)
asked = st.fixed_dictionaries(
    {"sessionId": st.just("n")},
    optional={
        "toolCall": values,
        "options": options | values,
        "mode": st.just("form"),
        "requestedSchema": forms | values,
    },
)
methods = st.sampled_from(["session/request_permission", "elicitation/create", "fs/read_text_file"])
LATE_IDS = ("late", "later")
requests = st.builds(AgentRequest, st.integers(0, 5) | st.text(max_size=2), methods, asked)
late_requests = st.builds(AgentRequest, st.sampled_from(LATE_IDS), methods, asked)
updates = st.builds(
    lambda kind, more: AgentNotification(
        "session/update",
        {"sessionId": "n", "update": {"sessionUpdate": kind, **(more if isinstance(more, dict) else {"x": more})}},
    ),
    st.sampled_from(["tool_call", "tool_call_update", "agent_message_chunk", "plan"]),
    values,
)


taken_back = st.builds(
    lambda request_id: AgentNotification("$/cancel_request", {"requestId": request_id}), st.integers(0, 5) | values
)
fates = st.lists(st.sampled_from([0, 1, 15, "expired", "withdrawn", "refused", None]))


@given(st.lists(requests | updates | taken_back, max_size=8), st.lists(late_requests | updates, max_size=3), fates)
def test_every_request_is_answered_once_and_in_its_order(
    frames: list[AgentFrame], late: list[AgentFrame], fates: list[Any]
) -> None:
    outcome, sink, answers = trio.run(run_turn, frames, late, fates)
    assert outcome.error is None and outcome.stop_reason == "end_turn"
    records = trio.run(run_turn, frames, [], fates)[1].records
    assert [kind for kind, _ in sink.records] == [kind for kind, _ in records]  # what is late is dropped
    asked = [frame.id for frame in frames if is_question(frame)]
    results = [one["id"] for one in answers if "result" in one and one["id"] not in LATE_IDS]
    recorded = [kind for kind, _ in sink.records if kind == "sessiond/answer"]
    # What a person is asked is answered when the person has answered, or when the turn is over before.
    assert results == asked if len(recorded) == len(asked) else Counter(results) == Counter(asked)
    assert Counter(one["id"] for one in answers) == Counter(
        frame.id for frame in [*frames, *late] if isinstance(frame, AgentRequest)
    )
    # The turn may be over before a person is asked.
    assert 0 <= len(asked) - len(recorded) - len(sink.asked) <= sum(map(is_cancel, answers))
    for draft in sink.asked:
        assert draft.title and 0 < len(draft.options) <= MAX_OPTIONS
        ids = [option.id for option in draft.options]
        assert len(set(ids)) == len(ids) and all(map(is_option_id, ids)) and all(one.isprintable() for one in ids)


def is_cancel(answer: dict[str, Any]) -> bool:
    result = answer.get("result", {})
    return result.get("action") == "cancel" or result.get("outcome") == {"outcome": "cancelled"}


def is_question(frame: AgentFrame) -> bool:
    return isinstance(frame, AgentRequest) and not frame.method.startswith("fs/")
