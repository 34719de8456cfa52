"""The requests of a turn that wait for a person. Each gets one answer: that of the person, or why there is none.

Knows the connection and the sink. Does not know what is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from sessiond.errors import SessiondError
from sessiond.runtimes.acp.asking import AgentQuestion, AgentReply
from sessiond.runtimes.acp.connection import AgentConnection
from sessiond.runtimes.acp.frames import AgentRequest, RequestId
from sessiond.runtimes.runtime import RunSink

TAKEN_BACK = "the agent took its request back"


class WaitingRequest:
    """A request for which a person is asked, once `begun` of the one `before` it is set."""

    def __init__(self, request: AgentRequest, question: AgentQuestion, before: trio.Event | None) -> None:
        self.request, self.question, self.before = request, question, before
        self.scope = trio.CancelScope()
        self.begun = trio.Event()


class WaitingRequests:
    """`timeout_s` is how long a question may be open, None: as long as the turn."""

    def __init__(self, connection: AgentConnection, sink: RunSink, timeout_s: float | None) -> None:
        self._connection, self._sink, self._timeout_s = connection, sink, timeout_s
        self._waiting: list[WaitingRequest] = []

    def add(self, request: AgentRequest, question: AgentQuestion) -> WaitingRequest:
        """From now on the agent can take it back, also before it is asked."""
        before = self._waiting[-1].begun if self._waiting else None
        waiting = WaitingRequest(request, question, before)
        self._waiting.append(waiting)
        return waiting

    async def ask(self, waiting: WaitingRequest, note_reply: Callable[[AgentReply], None]) -> None:
        """Ask a person and answer the request. Cancelled: the question is withdrawn, and `cancel_all` answers.

        The tasks of several begin in any order; they ask in the order in which the agent did.
        """
        question = waiting.question
        reply = question.cancel(TAKEN_BACK)
        if waiting.before is not None:
            await waiting.before.wait()
        waiting.begun.set()
        with waiting.scope:
            await trio.lowlevel.checkpoint_if_cancelled()
            try:
                reply = question.reply(await self._sink.ask(question.draft, timeout_s=self._timeout_s))
            except SessiondError as error:
                reply = question.refuse(error.message)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._answer(waiting, reply)
        note_reply(reply)

    def take_back(self, request_id: RequestId) -> None:
        """The agent wants no answer to a request any more."""
        for waiting in self._waiting:
            if waiting.request.id == request_id:
                waiting.scope.cancel()

    def cancel_all(self, reason: str) -> None:
        """Answer what still waits. Called when no `ask` goes on any more."""
        for waiting in list(self._waiting):
            self._answer(waiting, waiting.question.cancel(reason))

    def _answer(self, waiting: WaitingRequest, reply: AgentReply) -> None:
        with suppress(ValueError):
            self._waiting.remove(waiting)
            self._connection.answer(waiting.request, reply.result)
