"""A warm process of an agent: started, greeted, read, and ended when nobody has used it for a while.

Knows pipes and the handshake. Does not know sessions or runs. Source: runs.md, "acp".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import structlog
import trio

import sessiond
from sessiond.errors import quote
from sessiond.runtimes import process
from sessiond.runtimes.acp import frames
from sessiond.runtimes.acp.connection import AgentConnection, AgentGone, AgentRefused
from sessiond.runtimes.launcher import Program, ProgramCommand
from sessiond.runtimes.presets.fields import array, member, table, text
from sessiond.tasks import run_off_loop

log = structlog.get_logger("sessiond.runtimes")

PROTOCOL_VERSION = 1
# An agent that does not read its input cannot be told anything any more.
_MAX_UNREAD_BYTES = 128 * 1024 * 1024
_LINES_AT_ONCE = 64
# How long a process that has closed its output may take to exit.
_EXIT_S = 2.0


class CannotServe(Exception):
    """The process cannot be used. The message is for people. `for_good`: only another process may be of use.

    `is_mute`: it has answered nothing, and may be no agent.
    """

    def __init__(self, message: str, *, for_good: bool = False, is_mute: bool = False) -> None:
        super().__init__(message)
        self.for_good, self.is_mute = for_good, is_mute


class ProcessRules(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one process. `authenticate` is the id of the method by which it is told to authenticate.

    `takes_forms`: the agent may ask a person to fill in a form.
    """

    agent_id: str
    start_s: float
    idle_s: float
    max_frame_bytes: int
    authenticate: str | None = None
    takes_forms: bool = False


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent said of itself in its answer to `initialize`."""

    load: bool = False
    resume: bool = False
    close: bool = False
    fork: bool = False
    image: bool = False
    name: str = ""
    methods: tuple[str, ...] = ()


class AgentProcess:
    """One process. `run` is a task of its own; `connection` is what to talk to it by."""

    def __init__(self, command: ProgramCommand, rules: ProcessRules) -> None:
        self._command, self._rules = command, rules
        self.connection = AgentConnection(self._write)
        self.capabilities = Capabilities()
        self._splitter = frames.LineSplitter(rules.max_frame_bytes)
        self._noise, self._wrote_noise = "", False
        self._stderr = process.OutputTail()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._has_outgoing = trio.Event()
        self._over = trio.Event()
        self._users = 0
        self._used, self._rested = trio.Event(), trio.Event()

    @property
    def ended(self) -> bool:
        """Whether it takes no more turns."""
        return self._over.is_set()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the process while the context lasts, and for `idle_s` after the last one."""
        self._users += 1
        self._used.set()
        self._rested = trio.Event() if self._users == 1 else self._rested
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._used = trio.Event()
                self._rested.set()

    def end(self, reason: str) -> None:
        """End the process; its turns end as errors with this sentence."""
        self.connection.close(reason)
        self._over.set()

    def end_when_rested(self) -> None:
        """End the process now, or after its last turn."""
        self._rules = msgspec.structs.replace(self._rules, idle_s=0)
        if not self._users:
            self.end("the agent's configuration has changed")

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Start the process, and tell `task_status` when it is ready; then keep it until its end.

        CannotServe, CannotStart or Shortage before that.
        """
        program = await process.start_program(self._command, process.KILL_GRACE_S)
        failure: CannotServe | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._feed, program)
                nursery.start_soon(self._watch, program)
                failure = await self._greet()
                if failure is None:
                    log.info("an agent was started", agent=self._rules.agent_id)
                    task_status.started()
                    nursery.start_soon(self._end_after_rest)
                    await self._over.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.end("sessiond is stopping")
            with trio.CancelScope(shield=True):
                await program.end(process.KILL_GRACE_S + process.REAP_S)
                await program.aclose()
            log.info("an agent has ended", agent=self._rules.agent_id, status=program.status)
        if failure is not None:
            raise failure

    async def _greet(self) -> CannotServe | None:
        """Initialize the connection; why that failed, None if it did not. Not raised: a nursery would wrap it."""
        try:
            await self._initialize()
            if self._rules.authenticate is not None:
                params = {"methodId": self._rules.authenticate}
                await self.connection.request("authenticate", params, self._rules.start_s)
        except AgentGone as error:
            return CannotServe(str(error), is_mute=True)
        except AgentRefused as error:
            return CannotServe(self.explain_refusal(error, "refused the connection"))
        except trio.TooSlowError:
            said = f"the agent did not answer within {self._rules.start_s:g} s of its start{self._last_words}"
            return CannotServe(f"{said}; it may be a program that does not speak ACP", is_mute=True)
        except CannotServe as error:
            return error
        return None

    async def _initialize(self) -> None:
        capabilities: dict[str, Any] = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        if self._rules.takes_forms:
            capabilities["elicitation"] = {"form": {}}
        params = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": capabilities,
            "clientInfo": {"name": "sessiond", "title": "sessiond", "version": sessiond.__version__},
        }
        answer = await self.connection.request("initialize", params, self._rules.start_s)
        version = member(answer, "protocolVersion")
        if version != PROTOCOL_VERSION or isinstance(version, bool):
            named = isinstance(version, int | str) and not isinstance(version, bool)
            spoken = f"version {quote(str(version))}" if named else "no version that it names"
            raise CannotServe(
                f"the agent speaks {spoken} of the Agent Client Protocol, and sessiond speaks"
                f" {PROTOCOL_VERSION}: install a release of the agent that does"
            )
        able = table(answer, "agentCapabilities")
        self.capabilities = Capabilities(
            load=able.get("loadSession") is True,
            resume=isinstance(member(able, "sessionCapabilities", "resume"), dict),
            close=isinstance(member(able, "sessionCapabilities", "close"), dict),
            fork=isinstance(member(able, "sessionCapabilities", "fork"), dict),
            image=member(able, "promptCapabilities", "image") is True,
            name=text(answer, "agentInfo", "name")[:100],
            methods=tuple(text(one, "id") for one in array(answer, "authMethods") if text(one, "id")),
        )

    def explain_refusal(self, error: AgentRefused, what: str) -> str:
        """A sentence about an error of the agent: what it did, and what to do next where it wants a login."""
        said = f"the agent {what}: {error.message or f'error {error.code}'}"
        if error.code != frames.AUTH_REQUIRED:
            return said
        methods = ", ".join(quote(one) for one in self.capabilities.methods[:5]) or "(it names none)"
        return (
            f"{said}. It wants a login: log in with the program itself, or set `authenticate` in the runtime of agent"
            f" {quote(self._rules.agent_id)} to one of its methods: {methods}; or give the variable that it reads,"
            " such as an API key, in `env` there"
        )

    def _write(self, line: bytes) -> None:
        if self._outgoing_bytes > _MAX_UNREAD_BYTES:
            self.end("the agent was ended: it did not read what it was sent")
            return
        self._outgoing.append(line)
        self._outgoing_bytes += len(line)
        self._has_outgoing.set()

    async def _feed(self, program: Program) -> None:
        """Write to the program. A frame that was begun is never cut off: only the end of the process ends this."""
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing = trio.Event()
            lines, self._outgoing = self._outgoing, []
            for line in lines:
                try:
                    await program.stdin.send_all(line)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    # It has ended, which `_watch` says, or it reads no more and would leave every turn without an end.
                    await trio.sleep(process.PIPE_GRACE_S)
                    if program.status is None:
                        self.end(f"the agent was ended: it closed its input{self._last_words}")
                    return
                self._outgoing_bytes -= len(line)

    async def _watch(self, program: Program) -> None:
        """Read the program until its end, and say how it ended."""
        stdout = process.PipeReader(program.stdout, self._take)
        stderr = process.PipeReader(program.stderr, self._take_stderr)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stdout.read)
            nursery.start_soon(stderr.read)
            nursery.start_soon(_wait_for_exit, program, (stdout, stderr), nursery.cancel_scope)
            await stdout.done.wait()
            with trio.move_on_after(_EXIT_S):
                await trio.sleep_forever()  # until the exit, which cancels this nursery
            nursery.cancel_scope.cancel()
        for line in self._splitter.end():
            await self._take_line(line)
        self.end(f"the agent's process ended ({_describe_end(program.status)}){self._last_words}")

    @property
    def _last_words(self) -> str:
        said = self._stderr.text() or self._noise
        return f": {said}" if said else ""

    async def _take_stderr(self, data: bytes) -> None:
        self._stderr.feed(data)
        await trio.lowlevel.checkpoint()

    async def _take(self, data: bytes) -> None:
        try:
            lines = self._splitter.feed(data)
        except frames.FrameTooLong:
            limit = self._rules.max_frame_bytes
            self.end(f"the agent was ended: it sent a frame over limits.maxFrameBytes ({limit} bytes)")
            return
        for number, line in enumerate(lines, 1):
            await self._take_line(line)
            if number % _LINES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    async def _take_line(self, line: bytes) -> None:
        if self.ended or not line.strip():
            return
        frame = await run_off_loop(len(line), frames.parse_frame, line)
        if isinstance(frame, frames.AgentRequest) and frame.method == "initialize":
            # Our answer would come back too, and be taken for that of an agent.
            self.end("the program does not seem to speak ACP: it repeats what it is sent")
        elif frame is not None:
            await self.connection.handle(frame, len(line))
        else:
            if not self._wrote_noise:
                self._wrote_noise = True
                log.info("an agent writes lines that are no frames", agent=self._rules.agent_id)
            self._noise = frames.sample_of(line)

    async def _end_after_rest(self) -> None:
        await self._used.wait()
        while True:
            await self._rested.wait()
            with trio.move_on_after(self._rules.idle_s) as patience:
                await self._used.wait()
            # It may have been taken up again in the moment in which the time was over.
            if patience.cancelled_caught and not self._users:
                self.end("the agent's process was ended after a rest")
                return


def _describe_end(status: int | None) -> str:
    """How a program has ended; None is the status of one that goes on without output."""
    if status is None:
        return "closed its output"
    return process.ProgramExit(status, "").describe() or "command exited"


async def _wait_for_exit(
    program: Program, readers: tuple[process.PipeReader, process.PipeReader], over: trio.CancelScope
) -> None:
    # Returns at the exit of the program, or if its keeper was killed, which kills the program too.
    await program.receive()
    for reader in readers:
        reader.program_is_gone(process.PIPE_GRACE_S)
    for reader in readers:
        await reader.done.wait()
    over.cancel()
