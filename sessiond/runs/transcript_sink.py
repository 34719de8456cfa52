"""The sink of a runtime: writes messages to the transcript, publishes live text and tool events to subscribers."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from sessiond.clock import Clock
from sessiond.events.bus import EventBus
from sessiond.events.omission import omit_content
from sessiond.model.event import LiveEvent
from sessiond.model.lax import decode_any
from sessiond.model.message import complete_message, text_of
from sessiond.model.question import QuestionAnswer, QuestionDraft
from sessiond.model.record import ENTRY, RecordDraft
from sessiond.model.row import native_id_of
from sessiond.policy.redact import may_name_spawn, redact_spawn_raw
from sessiond.runs.asking import RunQuestions
from sessiond.runs.run import Run
from sessiond.runs.text_so_far import KEY_BEGINS, KEY_ENDS, KEY_LINE_CHARS
from sessiond.runtimes.message_check import redact_message
from sessiond.runtimes.runtime import ToolPhase
from sessiond.store.store import Custom, Message, SessionStore
from sessiond.tasks import LONG_BYTES

# How much of the reply is kept as context for masking the next delta: as long as any secret except private keys.
_TAIL_CHARS = 512
# Of longer live tool events only the size is told.
_MAX_TOOL_BYTES = 256 * 1024


class ReplySoFar(msgspec.Struct, frozen=True):
    """The newest assistant message of a run that has text, and whether any message had a usage."""

    reply_id: str | None = None
    text: str | None = None
    usage: bool = False

    def with_message(self, said: _Said | None, record_id: str) -> ReplySoFar:
        """The state after one more message, which `said` this, None where it is no message of the assistant."""
        if said is None:
            return self
        usage = self.usage or said.has_usage
        if said.text.strip():
            return ReplySoFar(record_id, said.text, usage)
        return ReplySoFar(self.reply_id, self.text, usage)


class _Said(NamedTuple):
    text: str
    has_usage: bool


def _read_reply(message: dict[str, Any] | msgspec.Raw) -> _Said | None:
    fields = decode_any(message) if isinstance(message, msgspec.Raw) else message
    if not isinstance(fields, dict) or fields.get("role") != "assistant":
        return None
    return _Said(text_of(fields), isinstance(fields.get("usage"), dict))


def _encode(value: Any) -> msgspec.Raw | None:
    """The value as JSON, None where it has none: the store will refuse it."""
    try:
        return value if isinstance(value, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(value))
    except (ValueError, OverflowError, TypeError, RecursionError):
        return None


class TranscriptSink:
    """The sink of one run. `reply_so_far` is what the end of the run has to know about its messages."""

    def __init__(self, store: SessionStore, bus: EventBus, run: Run, clock: Clock, questions: RunQuestions) -> None:
        self._store, self._bus, self._run, self._clock, self._questions = store, bus, run, clock, questions
        self.reply_so_far = ReplySoFar()
        self._native_session_id: str | None = run.session.entry.native_session_id
        self._tail = self._thought_tail = ""

    async def message(self, message: dict[str, Any] | msgspec.Raw) -> None:
        # Cleared before the write: what is printed during the write belongs to the next message.
        self._run.text_so_far.clear()
        # A raw message is a transcript line that the program wrote itself and is stored as it is; one built from a
        # program's output is completed first.
        whole = message if isinstance(message, msgspec.Raw) else complete_message(message, self._clock.wall_ms())
        before: list[Message | Custom] = []
        native = self._run.session.entry.native_session_id
        if self._native_session_id is not None and self._native_session_id != native:
            before.append(Custom(ENTRY, {"nativeSessionId": self._native_session_id}))
        raw = _encode(whole)

        said: _Said | None = None

        def make() -> list[RecordDraft]:
            nonlocal said
            drafts = self._store.make_drafts([*before, Message(redact_message(raw) if raw is not None else whole)])
            said = _read_reply(message)  # of what can be stored only
            return drafts

        ids = await self._store.append_made(self._run.session, len(raw or b""), make)
        self.reply_so_far = self.reply_so_far.with_message(said, ids[-1])

    async def custom(self, custom_type: str, data: Any) -> None:
        raw = _encode(data)

        def make() -> list[RecordDraft]:
            return self._store.make_drafts([Custom(custom_type, redact_message(raw) if raw is not None else data)])

        await self._store.append_made(self._run.session, len(raw or b""), make)

    def delta(self, text: str) -> None:
        self._publish_live(
            "session.delta", {"runId": self._run.run_id, "text": text}, before=self._tail, size=len(text)
        )
        self._tail = _tail_of(self._tail + text)
        self._run.text_so_far.add(text)

    def thought_delta(self, text: str) -> None:
        fields = {"runId": self._run.run_id, "text": text}
        self._publish_live("session.thought", fields, before=self._thought_tail, size=len(text))
        self._thought_tail = _tail_of(self._thought_tail + text)

    def tool(self, phase: ToolPhase, tool_call_id: str, name: str, **extra: Any) -> None:
        if not self._bus.has_reader(self._run.key):
            return
        fields = {**extra, "runId": self._run.run_id, "phase": phase, "toolCallId": tool_call_id, "name": name}
        raw = msgspec.json.encode(fields)
        event = LiveEvent(self._run.key, "session.tool", fields, previous_text="", size=len(raw))
        # Attachments in a sessions_spawn call are for the child, not for subscribers.
        if len(raw) > (LONG_BYTES if may_name_spawn(raw) else _MAX_TOOL_BYTES):
            self._bus.publish(omit_content(event))
            return
        redacted = redact_spawn_raw(raw)
        self._bus.publish(event if redacted is raw else replace(event, fields=decode_any(redacted), size=len(redacted)))

    async def native_session(self, session_id: str) -> None:
        # Written with the next message; without any message the id is not worth a record. That of a fork is written at
        # once: by it the file of the fork is known as this session's, and a fork is not made twice.
        self._native_session_id = session_id
        entry = self._run.session.entry
        if entry.continues is not None and native_id_of(entry) != session_id.partition(" ")[0]:
            await self._store.append(self._run.session, [Custom(ENTRY, {"nativeSessionId": session_id})])

    async def ask(self, draft: QuestionDraft, timeout_s: float | None = None) -> QuestionAnswer:
        return await self._questions.ask(self._run, draft, timeout_s)

    def _publish_live(self, method: Any, fields: dict[str, Any], *, before: str, size: int) -> None:
        if self._bus.has_reader(self._run.key):
            self._bus.publish(LiveEvent(self._run.key, method, fields, previous_text=before, size=size))


def _tail_of(text: str) -> str:
    """The end of a reply as context for masking; with the BEGIN line of a private key that has not ended yet."""
    tail = text[-_TAIL_CHARS:]
    opened = text.rfind(KEY_BEGINS)
    if 0 <= opened < len(text) - len(tail) and KEY_ENDS not in text[opened:]:
        return text[opened : opened + KEY_LINE_CHARS] + tail[KEY_LINE_CHARS:]
    return tail
