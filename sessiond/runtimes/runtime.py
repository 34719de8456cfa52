"""The interface of runtimes: a runtime executes one turn of an agent and returns its outcome.

Defines the types that the supervisor and the runtimes share. Does not know callers, queues or transcripts.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from sessiond.model.question import QuestionAnswer, QuestionDraft
from sessiond.model.usage import Usage
from sessiond.store import dirfd

Message = dict[str, Any] | msgspec.Raw
RunStep = Literal["primary", "reply", "announce"]
ToolPhase = Literal["start", "update", "end"]


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, as a runtime gets it.

    `context` is a text of the daemon (preamble, notice of attachments) that comes before `message`. `attachments` is
    the receipt (runs.md, "Attachments"; `relDir` is relative to `workspace`), `mount_path` the `attachAs.mountPath`.
    `socket` is `agent.sock`. `deadline_ms` (milliseconds since 1970) is only for the agent's information: the
    supervisor cancels the turn. `native_session_id` is the value that an earlier run of this session passed to
    `RunSink.native_session`. Without one, the program begins with a copy of its conversation `fork_of`, if that is set,
    which has used `fork_usage` so far and is in `fork_file`. `native_required`: without `native_session_id` the run
    fails; `native_cost_usd` is what that had cost when the agent said so last. `images` are the image blocks of the
    message, `{data, mimeType}`. `cwd` is where it starts, if not in `workspace`. `target` is what another machine is
    asked for, such as `mars/agent:ops:main`.
    `history()` reads the earlier messages (at most 100 and one mebibyte), oldest first.
    """

    run_id: str
    session_key: str
    session_id: str
    agent_id: str
    message: str
    workspace: Path
    socket: Path
    step: RunStep = "primary"
    context: str | None = None
    provenance: dict[str, Any] | None = None
    thinking: str | None = None
    model: str | None = None
    attachments: dict[str, Any] | None = None
    mount_path: str | None = None
    deadline_ms: int | None = None
    token_file: Path | None = None
    native_session_id: str | None = None
    native_required: bool = False
    native_cost_usd: float | None = None
    images: tuple[dict[str, Any], ...] = ()
    fork_of: str | None = None
    fork_usage: Usage | None = None
    fork_file: Path | None = None
    cwd: Path | None = None
    turn: int | None = None
    max_turns: int | None = None
    target: str | None = None
    sandboxed: bool = False
    history: Callable[[], Awaitable[list[msgspec.Raw]]] | None = None


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended. `error` is None for success, else a sentence for people.

    `usage` has pi's shape: `{input, output, cacheRead, cacheWrite, totalTokens, cost?: {total, ...}}`. `notes` are
    warnings about a turn that succeeded. `aborted`: the agent itself cancelled the turn. `stop_reason` is why it
    stopped, in its own words. If no assistant message went through the sink, the supervisor writes a
    non-empty `reply` as one.
    """

    reply: str | None = None
    error: str | None = None
    usage: dict[str, Any] | None = None
    model: str | None = None
    notes: tuple[str, ...] = ()
    aborted: bool = False
    stop_reason: str | None = None


class RunSink(Protocol):
    """Receives the output of a turn while it is executed."""

    async def message(self, message: Message) -> None:
        """Append one message object (`role`, `content`, ...) to the transcript. Returns when it is written."""

    async def custom(self, custom_type: str, data: Any) -> None:
        """Append a `custom` record: output of the agent that is not a message, unchanged."""

    def delta(self, text: str) -> None:
        """Live text of the reply. Not stored."""

    def thought_delta(self, text: str) -> None:
        """Live text of what the agent thinks. Not stored."""

    def tool(self, phase: ToolPhase, tool_call_id: str, name: str, **extra: Any) -> None:
        """A live tool event. Not stored."""

    async def native_session(self, session_id: str) -> None:
        """Store the agent program's own id of the conversation; the next run gets it as `RunSpec.native_session_id`.

        The text is opaque: a runtime may store more in it than the id. It is written with the next message, and that of
        a fork at once.
        """

    async def ask(self, draft: QuestionDraft, timeout_s: float | None = None) -> QuestionAnswer:
        """Ask a person, and wait for the end of the question, which is on record then. Cancelling withdraws it.

        Several may be open at once; meanwhile the run has no slot. Conflict where too many are open.
        """


class AgentAway(Exception):
    """The connection of the agent is gone and the turn has not reached it. The run waits until an agent attaches."""


class Shortage(Exception):
    """The machine has no descriptor, process or memory left to start the turn. Nothing was started, and it is retried.

    The message is for the log.
    """


@contextmanager
def raise_shortage(what: str) -> Iterator[None]:
    """Convert an OSError about missing descriptors, processes or memory into Shortage. Use it before a turn begins."""
    try:
        yield
    except OSError as error:
        if not dirfd.is_shortage(error):
            raise
        raise Shortage(f"{what}: {os.strerror(error.errno or 0)}") from None


class Runtime(Protocol):
    """Executes turns. Failures of the agent are returned as a RunOutcome; only AgentAway, Shortage and bugs are raised.

    `run` is cancelled for an abort or a timeout: the runtime ends whatever it started, then lets Cancelled through.
    """

    async def run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        """Execute one turn to its end."""
