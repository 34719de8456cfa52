"""A request of an agent that waits for a person is answered, whenever the agent takes it back."""

from __future__ import annotations

from typing import Any

import msgspec
import trio
import trio.testing

from sessiond.model.question import QuestionDraft
from sessiond.runtimes.acp.asking import PermissionQuestion, read_permission
from sessiond.runtimes.acp.connection import AgentConnection
from sessiond.runtimes.acp.frames import AgentRequest
from sessiond.runtimes.acp.waiting_requests import TAKEN_BACK, WaitingRequests


class NobodyAnswers:
    async def ask(self, *_: Any, **__: Any) -> Any:
        await trio.sleep_forever()


class AskedTitles:
    def __init__(self) -> None:
        self.titles: list[str] = []

    async def ask(self, draft: QuestionDraft, **_: Any) -> Any:
        self.titles.append(draft.title)
        await trio.sleep_forever()


def permission(title: str) -> tuple[AgentRequest, PermissionQuestion]:
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    request = AgentRequest(title, "session/request_permission", {"options": options})
    question = read_permission(request.params, {}, title=title, kind="execute")
    assert question is not None
    return request, question


async def test_requests_are_asked_in_the_order_in_which_the_agent_made_them() -> None:
    sink: Any = AskedTitles()
    waiting = WaitingRequests(AgentConnection(lambda _: None), sink, None)
    titles = [f"Run {number}" for number in range(20)]
    async with trio.open_nursery() as nursery:
        for added in [waiting.add(*permission(title)) for title in titles]:
            if added.request.id == titles[7]:
                waiting.take_back(added.request.id)
            nursery.start_soon(waiting.ask, added, lambda reply: None)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sink.titles == [title for title in titles if title != titles[7]]


async def test_a_request_that_is_taken_back_before_it_is_asked_is_answered() -> None:
    written: list[Any] = []
    sink: Any = NobodyAnswers()
    waiting = WaitingRequests(AgentConnection(lambda line: written.append(msgspec.json.decode(line))), sink, None)
    request, question = permission("r")
    added = waiting.add(request, question)
    waiting.take_back("r")
    with trio.fail_after(5):
        await waiting.ask(added, lambda reply: None)
    assert [(one["id"], one["result"]) for one in written] == [("r", question.cancel(TAKEN_BACK).result)]
