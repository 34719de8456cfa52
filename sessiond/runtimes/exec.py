"""Run a command as an agent: its command line, environment and input, and the outcome from its output.

Knows runtimes of type `exec`. Does not know queues, transcripts or time limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec
import trio

from sessiond.config.settings import RuntimeConfig, SandboxConfig
from sessiond.errors import SessiondError
from sessiond.runtimes import process, sandbox
from sessiond.runtimes.launcher import CannotStart, ProgramCommand
from sessiond.runtimes.mounts import HOME, SOCKET, TOKEN_FILE, NoSandbox
from sessiond.runtimes.output import (
    CustomOutput,
    Delta,
    Ended,
    Event,
    LinesOutput,
    MessageOutput,
    NativeSession,
    Output,
    TextOutput,
    ThoughtDelta,
    Tool,
    TranscriptLines,
)
from sessiond.runtimes.presets import PRESETS
from sessiond.runtimes.presets.preset import session_to_fork, session_to_resume
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec, raise_shortage
from sessiond.runtimes.turn_summary import TurnSummary
from sessiond.tasks import LONG_BYTES, run_off_loop

# The variables that a program needs to find its files and to use the user's language. Not XDG_RUNTIME_DIR, which leads
# to the owner's socket; API keys and proxies that an agent needs have to be in its `env`.
_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_[A-Z]+|TZ|TMPDIR|XDG_(CONFIG|DATA|STATE|CACHE)_HOME"
)
# JSON lines are parsed in pieces of this size: 64 KiB of short malformed lines blocked the event loop for 100 ms.
_PIECE_BYTES = 2048
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_PLACEHOLDER = re.compile(r"\{(sessionId|sessionKey|model|workspace|runId)\}")


class ExecRuntime:
    """Runs each turn as one process. Source: runs.md, "exec".

    `environ` is the daemon's own environment, of which little is passed on. `bubblewrap` provides the sandbox for runs
    with `RunSpec.sandboxed`.
    """

    def __init__(
        self,
        runtime: RuntimeConfig,
        *,
        environ: Mapping[str, str],
        max_record_bytes: int,
        bubblewrap: sandbox.Bubblewrap,
        sandbox_config: SandboxConfig,
        kill_grace_s: float = process.KILL_GRACE_S,
        pipe_grace_s: float = process.PIPE_GRACE_S,
    ) -> None:
        self._runtime = runtime
        self._preset = PRESETS[runtime.preset] if runtime.preset is not None else None
        self._environ = environ
        self._max_record_bytes = max_record_bytes
        self._bubblewrap = bubblewrap
        self._sandbox_config = sandbox_config
        self._kill_grace_s = kill_grace_s
        self._pipe_grace_s = pipe_grace_s

    async def run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        """Run one turn as one process, whose output goes to `sink` as it comes.

        A program that does not know the conversation that it was told to resume is started again with a new one.
        """
        if spec.sandboxed and not self._has_persistent_home(spec):
            spec = msgspec.structs.replace(spec, native_session_id=None)
        summary = TurnSummary()
        outcome = await self._attempt(spec, sink, summary)
        lost = (
            self._preset is not None
            and session_to_resume(spec)
            and self._preset.session_lost.search(outcome.error or "")
        )
        if not lost or summary.messages:
            return outcome
        spec = msgspec.structs.replace(spec, native_session_id=None)
        outcome = await self._attempt(spec, sink, TurnSummary())
        begun = "a new one" if session_to_fork(spec) is None else "again with a copy of the original"
        note = f"the agent did not know its earlier conversation any more and began {begun}"
        return msgspec.structs.replace(outcome, notes=(note, *outcome.notes))

    async def _attempt(self, spec: RunSpec, sink: RunSink, summary: TurnSummary) -> RunOutcome:
        output = self._output(spec)

        async def read(data: bytes) -> None:
            size = _PIECE_BYTES if isinstance(output, LinesOutput) else len(data)
            for start in range(0, len(data), size):
                if start:
                    await trio.lowlevel.checkpoint()
                piece = data[start : start + size]
                line_bytes = output.held_bytes if b"\n" in piece else 0
                await _apply_all(line_bytes, output.feed(piece), sink, summary)

        try:
            with ExitStack() as stack:
                command = await self._command(spec, stack)
                ended = await process.run(
                    command, read, kill_grace_s=self._kill_grace_s, pipe_grace_s=self._pipe_grace_s
                )
            await _apply_all(output.held_bytes, output.end(), sink, summary)
        except (CannotStart, NoSandbox) as error:
            return RunOutcome(error=str(error))
        except SessiondError as error:
            summary.end()
            return RunOutcome(error=error.message, usage=summary.usage, model=summary.model)
        summary.end()
        return _outcome(ended, output, summary)

    def _has_persistent_home(self, spec: RunSpec) -> bool:
        """Whether the home of a sandboxed program persists between runs: only if it is in the workspace."""
        home = _fill(self._runtime.env.get("HOME", str(HOME)), spec)
        return Path(home).is_relative_to(spec.workspace)

    def _output(self, spec: RunSpec) -> Output:
        if self._preset is not None:
            return LinesOutput(self._preset.parser(spec), self._max_record_bytes)
        if self._runtime.output == "jsonl":
            return LinesOutput(TranscriptLines(), self._max_record_bytes)
        return TextOutput(self._max_record_bytes)

    async def _command(self, spec: RunSpec, stack: ExitStack) -> ProgramCommand:
        argv = [_fill(word, spec) for word in self._runtime.command]
        own = {name: _fill(value, spec) for name, value in self._runtime.env.items()}
        env = _environment(self._environ, own, spec)
        stdin = await _json_input(spec) if self._runtime.input == "json" else _lines(_text(spec))
        if self._preset is not None:
            argv, stdin = self._preset.command(spec, argv), _text(spec)
        fds: Mapping[int, int] = {}
        if spec.sandboxed:
            with raise_shortage("the sandbox cannot be made"):
                missing = await self._bubblewrap.find_problem()
                if missing is not None:
                    raise NoSandbox(f"this run needs a sandbox, and there is none: {missing}")
                box = stack.enter_context(self._bubblewrap.wrap(argv, spec, self._sandbox_config, env["PATH"]))
            argv, fds = list(box.argv), box.fds
        elif spec.cwd is not None and "/" in argv[0]:
            argv[0] = str(spec.workspace / argv[0])  # a relative path is that of a program in the workspace
        cwd = spec.cwd if spec.cwd is not None and not spec.sandboxed else spec.workspace
        return ProgramCommand(argv=tuple(argv), env=env, cwd=cwd, stdin=stdin, inherited=fds)


def _environment(environ: Mapping[str, str], own: Mapping[str, str], spec: RunSpec) -> dict[str, str]:
    """A few variables of the daemon's environment, the runtime's `env`, and the SESSIOND_* variables of the run."""
    env = program_environment(sandbox.base_environment(environ) if spec.sandboxed else environ, own)
    env["SESSIOND_SOCKET"] = str(SOCKET if spec.sandboxed else spec.socket)
    env["SESSIOND_SESSION_KEY"] = spec.session_key
    env["SESSIOND_RUN_ID"] = spec.run_id
    env.pop("SESSIOND_TOKEN_FILE", None)
    if spec.token_file is not None:
        env["SESSIOND_TOKEN_FILE"] = str(TOKEN_FILE if spec.sandboxed else spec.token_file)
    return env


def program_environment(environ: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """A few variables of the daemon's environment, and the runtime's own."""
    env = {name: value for name, value in environ.items() if _INHERITED.fullmatch(name)}
    env.setdefault("PATH", _DEFAULT_PATH)
    # There is no terminal: programs must not write control sequences for one.
    return env | {"TERM": "dumb", **own}


def _fill(text: str, spec: RunSpec) -> str:
    """`text` with its placeholders filled in. Other braces stay as they are; without a model `{model}` is empty."""
    values = {
        "sessionId": spec.session_id,
        "sessionKey": spec.session_key,
        "model": spec.model or "",
        "workspace": str(spec.workspace),
        "runId": spec.run_id,
    }
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def _text(spec: RunSpec) -> bytes:
    """The context, then the message."""
    return "\n\n".join(part for part in (spec.context, spec.message) if part).encode("utf-8", "surrogatepass")


def _lines(text: bytes) -> bytes:
    """`text` with a final newline: some programs, like `bc`, ignore a last line without one."""
    return text if text.endswith(b"\n") else text + b"\n"


async def _json_input(spec: RunSpec) -> bytes:
    """The input as one JSON object. The members in `extra` are left out if they are None, the others are null."""
    extra = {
        "context": spec.context,
        "provenance": spec.provenance,
        "attachments": spec.attachments,
        "deadline": spec.deadline_ms,
        "turn": spec.turn,
        "maxTurns": spec.max_turns,
    }
    data = {
        "runId": spec.run_id,
        "sessionKey": spec.session_key,
        "sessionId": spec.session_id,
        "agentId": spec.agent_id,
        "step": spec.step,
        "message": spec.message,
        "thinking": spec.thinking,
        "model": spec.model,
        "history": await spec.history() if spec.history is not None else [],
        **{name: value for name, value in extra.items() if value is not None},
    }
    return msgspec.json.encode(data) + b"\n"


async def _apply_all(line_bytes: int, events: Iterator[Event], sink: RunSink, summary: TurnSummary) -> None:
    """Apply events that are parsed from a line of so many bytes. Errors as of the parser, after what came before."""
    if line_bytes <= LONG_BYTES:
        await _apply(events, sink, summary)
        return
    parsed, error = await run_off_loop(line_bytes, _parse_all, events)
    await _apply(parsed, sink, summary)
    if error is not None:
        raise error


def _parse_all(events: Iterator[Event]) -> tuple[list[Event], SessiondError | MemoryError | None]:
    parsed: list[Event] = []
    try:
        parsed.extend(events)
    except (SessiondError, MemoryError) as error:
        return parsed, error
    return parsed, None


async def _apply(events: Iterable[Event], sink: RunSink, summary: TurnSummary) -> None:
    for event in events:
        match event:
            case Delta():
                sink.delta(event.text)
            case ThoughtDelta():
                sink.thought_delta(event.text)
            case Tool():
                sink.tool(event.phase, event.tool_call_id, event.name, **event.extra)
            case MessageOutput():
                summary.add(event)
                await sink.message(event.message if event.raw is None else msgspec.Raw(event.raw))
            case CustomOutput():
                await sink.custom(event.custom_type, event.data)
            case NativeSession():
                await sink.native_session(event.session_id)
            case Ended():
                summary.add(event)


def _outcome(ended: process.ProgramExit, output: Output, summary: TurnSummary) -> RunOutcome:
    failure = ended.describe()
    if failure is not None:
        # Many programs print their errors on stdout only.
        detail = summary.error or ended.stderr or output.tail
        return RunOutcome(error=f"{failure}: {detail}" if detail else failure, usage=summary.usage, model=summary.model)
    if summary.error is not None:
        return RunOutcome(error=summary.error, usage=summary.usage, model=summary.model)
    notes: tuple[str, ...] = ()
    if output.bad_lines:
        note = f"{output.bad_lines} lines of output could not be read and were left out, the last: {output.tail}"
        if not summary.messages:
            return RunOutcome(error=f"the agent said nothing that can be read: {note}", usage=summary.usage)
        notes = (note,)
    return RunOutcome(reply=summary.reply, usage=summary.usage, model=summary.model, notes=notes)
