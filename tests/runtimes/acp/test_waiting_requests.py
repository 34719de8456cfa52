"""A request of an agent that waits for a person is answered, whenever the agent takes it back."""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from sessiond.runtimes.acp.asking import read_permission
from sessiond.runtimes.acp.connection import AgentConnection
from sessiond.runtimes.acp.frames import AgentRequest
from sessiond.runtimes.acp.waiting_requests import TAKEN_BACK, WaitingRequests


class NobodyAnswers:
    async def ask(self, *_: Any, **__: Any) -> Any:
        await trio.sleep_forever()


async def test_a_request_that_is_taken_back_before_it_is_asked_is_answered() -> None:
    written: list[Any] = []
    sink: Any = NobodyAnswers()
    waiting = WaitingRequests(AgentConnection(lambda line: written.append(msgspec.json.decode(line))), sink, None)
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    request = AgentRequest("r", "session/request_permission", {"options": options})
    question = read_permission(request.params, {}, title="Run it", kind="execute")
    assert question is not None
    added = waiting.add(request, question)
    waiting.take_back("r")
    with trio.fail_after(5):
        await waiting.ask(added, lambda reply: None)
    assert [(one["id"], one["result"]) for one in written] == [("r", question.cancel(TAKEN_BACK).result)]
