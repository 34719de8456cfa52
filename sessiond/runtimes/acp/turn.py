"""One turn of an agent: a prompt, what comes of it, and its end. Source: runs.md, "acp".

Knows the connection and the sink. Does not know processes or how sessions are opened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import trio

from sessiond.clock import Clock
from sessiond.config.agents import RuntimeConfig
from sessiond.errors import SessiondError, pluralize, shorten
from sessiond.model.record import ANSWER, NATIVE
from sessiond.runtimes.acp import permissions
from sessiond.runtimes.acp.connection import AgentGone, AgentRefused
from sessiond.runtimes.acp.frames import AgentFrame, AgentNotification, AgentRequest, AgentResponse
from sessiond.runtimes.acp.process import AgentProcess
from sessiond.runtimes.acp.session import OpenSession
from sessiond.runtimes.acp.updates import UpdateReader, cost_since, turn_usage
from sessiond.runtimes.output import CustomOutput, Delta, Event, MessageOutput, ThoughtDelta, Tool
from sessiond.runtimes.presets.fields import array, table, text
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec
from sessiond.runtimes.turn_summary import TurnSummary

# What may wait until it is written to the transcript; then the agent has to wait.
_MAX_WAITING_BYTES = 1024 * 1024
# A run has at most this many notes on permissions that were denied.
_MAX_DENIALS = 10
_MAX_TITLE_CHARS = 500


class TurnQueue:
    """The frames of one turn in their order. Takes more than _MAX_WAITING_BYTES one frame at a time."""

    def __init__(self) -> None:
        self._items: deque[tuple[AgentFrame | AgentGone, int]] = deque()
        self._bytes = 0
        self._changed = trio.Event()
        self._closed = False

    async def offer(self, frame: AgentFrame, size: int) -> None:
        """Put a frame at the end; waits for room. Dropped once the queue is closed."""
        while self._bytes > _MAX_WAITING_BYTES and not self._closed:
            await self._changed.wait()
        if not self._closed:
            self._items.append((frame, size))
            self._bytes += size
            self._notify()

    def lose_agent(self, reason: str) -> None:
        """Put the end of the agent behind what came before it."""
        self._items.append((AgentGone(reason), 0))
        self._notify()

    async def get(self) -> AgentFrame | AgentGone:
        """The next frame, or the end of the agent."""
        # Also where there is one: the loop has other work, and a turn that is cancelled takes no more.
        await trio.lowlevel.checkpoint()
        while not self._items:
            await self._changed.wait()
        frame, size = self._items.popleft()
        self._bytes -= size
        self._notify()
        return frame

    def close(self) -> None:
        """Nobody reads it any more."""
        self._closed = True
        self._items.clear()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class TurnRules(msgspec.Struct, frozen=True):
    """What a turn needs of the configuration."""

    runtime: RuntimeConfig
    max_record_bytes: int
    clock: Clock


class PromptTurn:
    """One prompt of one run in an open session."""

    def __init__(
        self, process: AgentProcess, session: OpenSession, spec: RunSpec, sink: RunSink, rules: TurnRules
    ) -> None:
        self._process, self._session, self._spec, self._sink = process, session, spec, sink
        self._runtime, self._clock = rules.runtime, rules.clock
        self._queue = TurnQueue()
        self._reader = UpdateReader(
            provider=process.capabilities.name or spec.agent_id,
            max_record_bytes=rules.max_record_bytes,
            known_lists=session.known_lists,
        )
        self._summary = TurnSummary()
        self._denials: list[str] = []
        self._denied = 0

    async def run(self) -> RunOutcome:
        """Send the prompt and handle what comes until its answer. A cancelled turn is cancelled in the agent, too."""
        connection, native_id = self._process.connection, self._session.native_id
        try:
            prompt_id = connection.begin_prompt(native_id, self._prompt(), self._queue)
        except AgentGone as error:
            return RunOutcome(error=str(error))
        end: AgentResponse | AgentGone | None = None
        try:
            end = await self._handle_until_end()
            return await self._outcome(end)
        except SessiondError as error:
            # The transcript refuses what the agent says.
            return RunOutcome(error=error.message)
        finally:
            if end is None:
                with trio.CancelScope(shield=True):
                    await self._cancel()
            connection.end_prompt(native_id, prompt_id)
            self._queue.close()

    def _prompt(self) -> list[dict[str, Any]]:
        said = "\n\n".join(part for part in (self._spec.context, self._spec.message) if part)
        blocks: list[dict[str, Any]] = [{"type": "text", "text": said}]
        if self._process.capabilities.image:
            blocks += [
                {"type": "image", "mimeType": image["mimeType"], "data": image["data"]} for image in self._spec.images
            ]
        return blocks

    async def _handle_until_end(self) -> AgentResponse | AgentGone:
        while True:
            frame = await self._queue.get()
            if isinstance(frame, AgentResponse | AgentGone):
                return frame
            # What has come is handled to its end: a message half of which is written, or a permission that is on
            # record and was not answered, would be wrong for good.
            with trio.CancelScope(shield=True):
                await self._handle(frame)

    async def _handle(self, frame: AgentNotification | AgentRequest, cancelled: str | None = None) -> None:
        match frame:
            case AgentNotification():
                await self._apply(self._reader.take(frame.params.get("update")))
            case AgentRequest(method="session/request_permission"):
                await self._answer_permission(frame, cancelled)
            case AgentRequest():
                await self._decline_elicitation(frame)

    async def _apply(self, events: Iterator[Event]) -> None:
        for event in events:
            match event:
                case Delta():
                    self._sink.delta(event.text)
                case ThoughtDelta():
                    self._sink.thought_delta(event.text)
                case Tool():
                    self._sink.tool(event.phase, event.tool_call_id, event.name, **event.extra)
                case MessageOutput():
                    self._summary.add(event)
                    await self._sink.message(self._with_model(event.message))
                case CustomOutput():
                    await self._sink.custom(event.custom_type, event.data)
                case _:
                    pass

    def _with_model(self, message: dict[str, Any]) -> dict[str, Any]:
        model = self._session.model
        return {**message, "model": model} if model and message["role"] == "assistant" else message

    async def _answer_permission(self, request: AgentRequest, cancelled: str | None = None) -> None:
        """Answer by the policy; first on record, then to the agent. `cancelled` says why it is cancelled instead."""
        call = table(request.params, "toolCall")
        kind, title = self._reader.calls.describe(call)
        await self._apply(self._reader.calls.begin(call))
        if cancelled is None:
            answer = permissions.decide(
                kind,
                array(request.params, "options"),
                policy=self._runtime.permissions,
                rules=self._runtime.permission_rules,
            )
        else:
            answer = permissions.cancel(cancelled)
        title = shorten(title[:_MAX_TITLE_CHARS])
        record = {"toolCallId": text(request.params, "toolCall", "toolCallId")[:1024], "title": title, "kind": kind}
        await self._record_answer(record, answer)
        if answer.decision != "allow":
            self._reader.calls.deny(call, answer.reason)
        if answer.decision != "allow" and cancelled is None:
            self._denied += 1
            if len(self._denials) < _MAX_DENIALS:
                self._denials.append(f"permission denied for {title} ({kind}): {answer.reason}")
        self._process.connection.answer(request, answer.result)

    async def _decline_elicitation(self, request: AgentRequest) -> None:
        reason = "questions of agents are not supported yet"
        asked = {"title": shorten(text(request.params, "message")), "kind": "elicitation"}
        await self._record_answer(asked, permissions.cancel(reason))
        self._process.connection.answer(request, {"action": "decline", "_meta": {"sessiond": {"reason": reason}}})

    async def _record_answer(self, asked: dict[str, Any], answer: permissions.PermissionAnswer) -> None:
        record = {**asked, "outcome": "policy", "decision": answer.decision, "reason": answer.reason}
        if answer.option_id is not None:
            record["optionId"] = answer.option_id[:1024]
        await self._sink.custom(ANSWER, {**record, "runId": self._spec.run_id, "at": self._clock.wall_ms()})

    async def _cancel(self) -> None:
        """Cancel the turn in the agent and keep what it has said; end the process if it does not obey."""
        process, grace_s = self._process, self._runtime.grace_seconds
        process.connection.cancel_prompt(self._session.native_id)
        answered = False
        with trio.move_on_after(grace_s):
            answered = await self._handle_cancelled()
        if not answered:
            process.end(f"the agent was ended: it did not end a turn within {grace_s:g} s after it was cancelled")
        with suppress(SessiondError):  # it is the transcript that refused; the run's end says so
            await self._apply(self._reader.end("cancelled"))

    async def _handle_cancelled(self) -> bool:
        """Whether the turn came to an end; permissions are refused meanwhile, as the protocol demands."""
        while True:
            frame = await self._queue.get()
            if isinstance(frame, AgentResponse | AgentGone):
                return True
            with suppress(SessiondError):
                await self._handle(frame, cancelled="the turn was cancelled")

    async def _outcome(self, end: AgentResponse | AgentGone) -> RunOutcome:
        result = end.result if isinstance(end, AgentResponse) else None
        stop_reason = text(result, "stopReason")[:100] or None
        error, aborted = self._explain(end, stop_reason)
        await self._apply(self._reader.end(stop_reason or ("refusal" if error else "")))
        cost_usd = await self._note_usage()
        self._summary.end()
        return RunOutcome(
            reply=self._summary.reply,
            error=error,
            aborted=aborted,
            stop_reason=stop_reason,
            usage=turn_usage(result, self._reader.context, cost_usd),
            model=self._session.model,
            notes=tuple(self._notes()),
        )

    def _explain(self, end: AgentResponse | AgentGone, stop_reason: str | None) -> tuple[str | None, bool]:
        """Why the turn failed, if it did; and whether it was aborted."""
        if isinstance(end, AgentGone):
            return str(end), False
        if end.code is not None:
            refused = AgentRefused(end.code, end.message)
            return self._process.explain_refusal(refused, "ended the turn with an error"), False
        if stop_reason == "refusal":
            return "the agent refused to go on with this conversation (stop reason refusal)", False
        if stop_reason == "cancelled":
            return "the agent cancelled its turn", True
        return None, False

    async def _note_usage(self) -> float | None:
        """Record what is known of the context and the cost, if it has changed; what this turn cost."""
        context, session = self._reader.context, self._session
        if context is None:
            return None
        spent = cost_since(session.cost_usd, context.cost_usd)
        cost_usd = session.cost_usd if context.cost_usd is None else context.cost_usd
        if (cost_usd, context.size) != (session.cost_usd, session.context_size):
            session.cost_usd, session.context_size = cost_usd, context.size
            known = {"costUsd": cost_usd, "contextTokens": context.size or None}
            kept = {name: value for name, value in known.items() if value is not None}
            await self._sink.custom(NATIVE, {"nativeId": session.native_id, **kept})
        return spent

    def _notes(self) -> Iterable[str]:
        yield from self._session.take_notes()
        if self._spec.images and not self._process.capabilities.image:
            yield f"the agent takes no images: {pluralize(len(self._spec.images), 'image')} of the message stayed files"
        yield from self._denials
        if self._denied > len(self._denials):
            yield f"{self._denied} permissions were denied"
        if self._reader.dropped:
            yield f"{pluralize(self._reader.dropped, 'update')} of the agent could not be used"
        if self._reader.split:
            yield f"{pluralize(self._reader.split, 'message')} over limits.maxRecordBytes had to be split"
