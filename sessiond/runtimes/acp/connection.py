"""One connection to an agent: requests in both directions and the turns that are going on. Knows no processes.

Whatever the agent sends is routed here: answers to whoever asked, updates and permission requests to the turn of their
session. What is for no turn is dropped: a replay, or what an agent says after its answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import trio

from sessiond.runtimes.acp import frames, permissions
from sessiond.runtimes.acp.frames import AgentFrame, AgentNotification, AgentRequest, AgentResponse
from sessiond.runtimes.presets.fields import text


class AgentGone(Exception):
    """The agent's process has ended. The message is for people."""


class AgentRefused(Exception):
    """The agent answered with an error. The message has no full stop at its end: it stands within our sentences."""

    def __init__(self, code: int, message: str) -> None:
        message = message.rstrip().removesuffix(".")
        super().__init__(message)
        self.code, self.message = code, message


class FrameTaker(Protocol):
    """A turn, which takes the frames of its session in their order."""

    async def offer(self, frame: AgentFrame, size: int) -> None:
        """Take one frame of so many bytes; waits while too many wait to be handled."""

    def lose_agent(self, reason: str) -> None:
        """The agent's process has ended."""


class _Waiting:
    """A request whose answer somebody waits for."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.answer: AgentResponse | None = None


class _SilenceLimit:
    """A time limit that begins anew whenever the agent says something of a session that has no turn."""

    def __init__(self, native_id: str, scope: trio.CancelScope, silence_s: float) -> None:
        self.native_id, self._scope, self._silence_s = native_id, scope, silence_s

    def begin_anew(self) -> None:
        self._scope.deadline = trio.current_time() + self._silence_s


class AgentConnection:
    """`write` takes whole lines and does not block. After `close` every request raises AgentGone."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._ids = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        # By native session id; and that by the id of the prompt, whose answer belongs behind the updates.
        self._turns: dict[str, FrameTaker] = {}
        self._prompts: dict[int, str] = {}
        # By the id of the agent's request, the turn that is to answer it.
        self._asked: dict[frames.RequestId, FrameTaker] = {}
        # Several waits may be for one session, as when two callers ask for it.
        self._silence_limits: set[_SilenceLimit] = set()
        self.gone: str | None = None

    async def request(
        self, method: str, params: dict[str, Any], timeout_s: float, *, replayed: str | None = None
    ) -> Any:
        """The result of a request. AgentRefused; AgentGone; trio.TooSlowError after `timeout_s`.

        `replayed` is the session whose history comes before the answer: then it is the silence that is limited.
        """
        if self.gone is not None:
            raise AgentGone(self.gone)
        request_id, waiting = next(self._ids), _Waiting()
        self._waiting[request_id] = waiting
        try:
            with trio.fail_after(timeout_s) as scope, self._limit_silence(replayed, scope, timeout_s):
                self._write(frames.encode_request(request_id, method, params))
                await waiting.answered.wait()
        finally:
            del self._waiting[request_id]
        if waiting.answer is None:
            raise AgentGone(self.gone)
        if waiting.answer.code is not None:
            raise AgentRefused(waiting.answer.code, waiting.answer.message)
        return waiting.answer.result

    async def wait_for_silence(self, native_id: str, silence_s: float, most_s: float) -> None:
        """Return when nothing has come for a session without a turn for so long, or after `most_s`."""
        with trio.move_on_after(most_s), trio.move_on_after(silence_s) as scope:
            with self._limit_silence(native_id, scope, silence_s):
                await trio.sleep_forever()

    def begin_prompt(self, native_id: str, blocks: list[dict[str, Any]], turn: FrameTaker) -> int:
        """Send a prompt, whose updates and answer go to the turn until `end_prompt`, and nothing behind the answer.

        The id of the prompt. AgentGone.
        """
        if self.gone is not None:
            raise AgentGone(self.gone)
        prompt_id = next(self._ids)
        self._turns[native_id], self._prompts[prompt_id] = turn, native_id
        self._write(frames.encode_request(prompt_id, "session/prompt", {"sessionId": native_id, "prompt": blocks}))
        return prompt_id

    def end_prompt(self, native_id: str, prompt_id: int) -> None:
        """What the agent still says of this turn is dropped."""
        if self._prompts.pop(prompt_id, None) is not None:
            turn = self._turns.pop(native_id)
            self._asked = {request_id: taker for request_id, taker in self._asked.items() if taker is not turn}

    def cancel_prompt(self, native_id: str) -> None:
        """Ask the agent to end the turn of a session."""
        self._write(frames.encode_notification("session/cancel", {"sessionId": native_id}))

    def answer(self, request: AgentRequest, result: Any) -> None:
        """Answer a request of the agent."""
        self._asked.pop(request.id, None)
        self._write(frames.encode_result(request.id, result))

    async def handle(self, frame: AgentFrame, size: int) -> None:
        """Route one frame of the agent, of so many bytes."""
        match frame:
            case AgentResponse():
                await self._handle_answer(frame, size)
            case AgentNotification(method="session/update"):
                await self._handle_update(frame, size)
            case AgentNotification(method="$/cancel_request"):
                await self._handle_taking_back(frame, size)
            case AgentNotification():
                pass  # one that we do not know
            case AgentRequest():
                await self._handle_request(frame, size)

    def close(self, reason: str) -> None:
        """The process has ended: tell whoever waits for it."""
        if self.gone is not None:
            return
        self.gone = reason
        for waiting in self._waiting.values():
            waiting.answered.set()
        for turn in self._turns.values():
            turn.lose_agent(reason)

    @contextmanager
    def _limit_silence(self, native_id: str | None, scope: trio.CancelScope, silence_s: float) -> Iterator[None]:
        """While the context lasts, the deadline of `scope` is `silence_s` behind the last update of this session."""
        if native_id is None:
            yield
            return
        limit = _SilenceLimit(native_id, scope, silence_s)
        self._silence_limits.add(limit)
        try:
            yield
        finally:
            self._silence_limits.remove(limit)

    async def _handle_answer(self, answer: AgentResponse, size: int) -> None:
        native_id = self._prompts.get(answer.id)
        if native_id is not None:
            turn = self._turns[native_id]
            # Who reads this answer reads no more: a request behind it would wait for ever.
            self.end_prompt(native_id, answer.id)
            await turn.offer(answer, size)
        elif (waiting := self._waiting.get(answer.id)) is not None and waiting.answer is None:
            waiting.answer = answer
            waiting.answered.set()

    async def _handle_update(self, update: AgentNotification, size: int) -> None:
        native_id = text(update.params, "sessionId")
        turn = self._turns.get(native_id)
        if turn is not None:
            await turn.offer(update, size)
            return
        for limit in self._silence_limits:
            if limit.native_id == native_id:
                limit.begin_anew()

    async def _handle_taking_back(self, notification: AgentNotification, size: int) -> None:
        request_id = notification.params.get("requestId")
        turn = self._asked.get(request_id) if isinstance(request_id, int | str) else None
        if turn is not None:
            await turn.offer(notification, size)

    async def _handle_request(self, request: AgentRequest, size: int) -> None:
        turn = self._turns.get(text(request.params, "sessionId"))
        match request.method:
            case "session/request_permission" | "elicitation/create" if turn is not None:
                self._asked[request.id] = turn
                await turn.offer(request, size)
            case "session/request_permission":
                self.answer(request, permissions.cancel("this session has no turn that goes on").result)
            case "elicitation/create":
                self.answer(request, {"action": "decline"})
            case method:
                said = f"{method[:100]} is not offered: the agent has to use its own tools"
                self._write(frames.encode_error(request.id, frames.METHOD_NOT_FOUND, said))
