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
from sessiond.runtimes.acp import asking, permissions
from sessiond.runtimes.acp.connection import AgentGone, AgentRefused
from sessiond.runtimes.acp.frames import AgentFrame, AgentNotification, AgentRequest, AgentResponse
from sessiond.runtimes.acp.process import AgentProcess
from sessiond.runtimes.acp.session import OpenSession
from sessiond.runtimes.acp.updates import UpdateReader, cost_since, turn_usage
from sessiond.runtimes.acp.waiting_requests import WaitingRequests
from sessiond.runtimes.output import CustomOutput, Delta, Event, MessageOutput, ThoughtDelta, Tool
from sessiond.runtimes.presets.fields import array, table, text
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec
from sessiond.runtimes.turn_summary import TurnSummary

# What may wait until it is written to the transcript; then the agent has to wait.
_MAX_WAITING_BYTES = 1024 * 1024
# A run has at most this many notes on permissions that were denied.
_MAX_DENIALS = 10
_MAX_TITLE_CHARS = 500
_OVER, _CANCELLED = "the turn is over", "the turn was cancelled"


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
        timeout_s = rules.runtime.permission_timeout_seconds or None
        self._waiting = WaitingRequests(process.connection, sink, timeout_s)
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
            self._waiting.cancel_all(_OVER)
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
        """The end of the turn. Questions are asked meanwhile, and withdrawn when it ends."""
        end: AgentResponse | AgentGone | SessiondError
        async with trio.open_nursery() as nursery:
            self._asking = nursery
            try:
                end = await self._handle_frames()
            except SessiondError as error:
                end = error  # not raised here: a nursery would wrap it
            nursery.cancel_scope.cancel()
        if isinstance(end, SessiondError):
            raise end
        return end

    async def _handle_frames(self) -> AgentResponse | AgentGone:
        while True:
            frame = await self._queue.get()
            if isinstance(frame, AgentResponse | AgentGone):
                return frame
            # What has come is handled to its end: a message half of which is written, or a permission that is on
            # record and was not answered, would be wrong for good.
            with trio.CancelScope(shield=True):
                await self._handle(frame)
                await trio.lowlevel.checkpoint()  # many may have come, and what is long takes 20 ms and more

    async def _handle(self, frame: AgentNotification | AgentRequest, cancelled: str | None = None) -> None:
        match frame:
            case AgentNotification(method="$/cancel_request"):
                self._waiting.take_back(frame.params.get("requestId"))
            case AgentNotification():
                await self._apply(self._reader.take(frame.params.get("update")))
            case AgentRequest(method="session/request_permission"):
                await self._answer_permission(frame, cancelled)
            case AgentRequest():
                await self._answer_form(frame, cancelled)

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
        """Answer by the policy, or ask a person. `cancelled` says why it is cancelled instead."""
        call = table(request.params, "toolCall")
        known = self._reader.calls.describe(call)
        await self._apply(self._reader.calls.begin(call))
        options = array(request.params, "options")
        rules = self._runtime.permission_rules
        answer = permissions.decide(known.kind, options, policy=self._runtime.permissions, rules=rules)
        if cancelled is not None:
            answer = permissions.cancel(cancelled)
        elif answer is None:
            question = asking.read_permission(request.params, known.fields, title=known.title, kind=known.kind)
            if question is not None:
                self._ask(request, question)
                return
            answer = permissions.cancel("the agent offered nothing to choose from")
        # First on record, then to the agent.
        title = shorten(known.title[:_MAX_TITLE_CHARS])
        record = {"toolCallId": text(call, "toolCallId")[:1024], "title": title, "kind": known.kind}
        await self._record_answer(record, answer)
        self._process.connection.answer(request, answer.result)
        if answer.decision != "allow":
            self._note_denial(request, answer.reason, is_noted=cancelled is None)

    async def _answer_form(self, request: AgentRequest, cancelled: str | None = None) -> None:
        """Ask a person where the form is one choice, else decline it. `cancelled` says why it is cancelled instead."""
        refused = 'permissions = "deny"' if self._runtime.permissions == "deny" else None
        question = cancelled or refused or asking.read_form(request.params)
        if not isinstance(question, str):
            self._ask(request, question)
            return
        asked = {"title": shorten(text(request.params, "message")), "kind": "elicitation"}
        await self._record_answer(asked, permissions.cancel(question))
        reply = asking.decline_form(question) if cancelled is None else asking.cancel_form(question)
        self._process.connection.answer(request, reply.result)

    def _ask(self, request: AgentRequest, question: asking.AgentQuestion) -> None:
        def note(reply: asking.AgentReply) -> None:
            if reply.denied is not None:
                self._note_denial(request, reply.denied)

        # Added at once: a task begins at any time, and the next frame may take the request back.
        self._asking.start_soon(self._waiting.ask, self._waiting.add(request, question), note)

    def _note_denial(self, request: AgentRequest, reason: str, *, is_noted: bool = True) -> None:
        """Say why a call goes on no further: in its result where the agent says nothing more of it, and on the run."""
        call = table(request.params, "toolCall")
        self._reader.calls.deny(call, reason)
        if is_noted:
            self._denied += 1
            if len(self._denials) < _MAX_DENIALS:
                known = self._reader.calls.describe(call)
                title = shorten(known.title[:_MAX_TITLE_CHARS])
                self._denials.append(f"permission denied for {title} ({known.kind}): {shorten(reason)}")

    async def _record_answer(self, asked: dict[str, Any], answer: permissions.PermissionAnswer) -> None:
        record = {**asked, "outcome": "policy", "decision": answer.decision, "reason": answer.reason}
        if answer.option_id is not None:
            record["optionId"] = answer.option_id[:1024]
        await self._sink.custom(ANSWER, {**record, "runId": self._spec.run_id, "at": self._clock.wall_ms()})

    async def _cancel(self) -> None:
        """Cancel the turn in the agent and keep what it has said; end the process if it does not obey."""
        process, grace_s = self._process, self._runtime.grace_seconds
        process.connection.cancel_prompt(self._session.native_id)
        # Behind the cancellation, which makes the agent take them for what they are.
        self._waiting.cancel_all(_CANCELLED)
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
                await self._handle(frame, cancelled=_CANCELLED)

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
