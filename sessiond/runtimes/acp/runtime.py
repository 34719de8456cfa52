"""The runtime of one agent that speaks the Agent Client Protocol: warm processes, and turns in their sessions.

Knows the configuration of its agent. Does not know queues, transcripts or time limits of runs. Source: runs.md, "acp".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import msgspec
import trio

from sessiond.config.agents import AgentConfig
from sessiond.errors import SessiondError, Stopping
from sessiond.runtimes.acp.agents import AcpAgents, CannotAsk
from sessiond.runtimes.acp.connection import AgentGone
from sessiond.runtimes.acp.open_sessions import OpenSessions, RecordedLists
from sessiond.runtimes.acp.process import AgentProcess, CannotServe, ProcessRules
from sessiond.runtimes.acp.tool_server import TokenFolder
from sessiond.runtimes.acp.turn import PromptTurn, TurnRules
from sessiond.runtimes.launcher import CannotStart
from sessiond.runtimes.mounts import NoSandbox
from sessiond.runtimes.presets.acp import acp_form, find_better_command
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec, Shortage

# A process in a sandbox with the files of one run is of use to that session only.
_IDLE_WITH_FILES_S = 60.0


class Surroundings(msgspec.Struct, frozen=True):
    """What a process is started in, and by which it is found again: whether in a sandbox, and which attachments that
    shows besides the workspace (their folder), mounted where.
    """

    sandboxed: bool
    attachments: str | None = None
    mount_path: str | None = None


class AcpRuntime:
    """Runs the turns of one agent: one process for each state of the sandbox. Source: runs.md, "acp"."""

    def __init__(self, agents: AcpAgents, agent: AgentConfig) -> None:
        self._agents, self._agent = agents, agent
        self._warm: dict[Surroundings, WarmAgent] = {}

    async def run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        """Run one turn in the session's conversation with the agent."""
        try:
            return await self._warm_agent(spec).run(spec, sink)
        except (CannotServe, CannotStart, NoSandbox, AgentGone) as error:
            return RunOutcome(error=self._explain(error))
        except SessiondError as error:
            if isinstance(error, Stopping):
                raise
            return RunOutcome(error=error.message)

    async def check_native(self, spec: RunSpec) -> str | None:
        """Why the agent cannot go on with `native_session_id`; None if it can. CannotAsk if that is not known."""
        try:
            return await self._warm_agent(spec).check_native(spec)
        except (CannotServe, CannotStart, NoSandbox, AgentGone, Shortage) as error:
            raise CannotAsk(self._explain(error)) from None

    def _explain(self, error: Exception) -> str:
        """The error as a sentence, which says how to get the program of a preset where that is not there, and which one
        it is where another does not answer.
        """
        if isinstance(error, CannotServe) and error.is_mute:
            better = find_better_command(self._agent.runtime)
            return str(error) if better is None else f"{error}; the command that speaks ACP is: {better}"
        form = acp_form(self._agent.runtime.preset)
        if form is None or not str(error).startswith(f"command not found: {form.program} "):
            return str(error)
        return f"{error}; it comes with: {form.remedy}"

    def retire(self) -> None:
        """End the processes once they rest."""
        for warm in self._warm.values():
            warm.retire()

    def _warm_agent(self, spec: RunSpec) -> WarmAgent:
        wanted = _surroundings_of(spec)
        for other in [other for other, warm in self._warm.items() if warm.is_cold and other != wanted]:
            del self._warm[other]
        if wanted not in self._warm:
            self._warm[wanted] = WarmAgent(self._agents, self._agent, has_files=wanted.attachments is not None)
        return self._warm[wanted]


def _surroundings_of(spec: RunSpec) -> Surroundings:
    given = spec.attachments or {}
    folder = given.get("relDir")
    # Images are in the prompt: they need no process that sees their files, in which the session would be resumed.
    are_images = bool(spec.images) and len(spec.images) == given.get("count")
    if not spec.sandboxed or not isinstance(folder, str) or are_images:
        return Surroundings(spec.sandboxed)
    return Surroundings(spec.sandboxed, folder, spec.mount_path)


class WarmAgent:
    """A process of an agent, started when it is needed, and the turns in its sessions."""

    def __init__(self, agents: AcpAgents, agent: AgentConfig, *, has_files: bool) -> None:
        self._agents, self._agent = agents, agent
        self._idle_s = agent.runtime.idle_seconds
        if has_files:
            self._idle_s = min(self._idle_s, _IDLE_WITH_FILES_S)
        self._places = trio.CapacityLimiter(agent.runtime.max_sessions)
        self._starting = trio.Lock()
        self._process: AgentProcess | None = None
        # Those of this process: what still goes on in one that has ended knows nothing of the next.
        self._sessions: OpenSessions | None = None
        self._lists = RecordedLists()
        self._users = 0
        self._is_retired = False

    @property
    def is_cold(self) -> bool:
        """Whether it has no process, and nobody is about to use one."""
        return not self._users and (self._process is None or self._process.ended)

    def retire(self) -> None:
        """Keep the process no longer than its runs."""
        self._is_retired = True
        if self._process is not None:
            self._process.end_when_rested()

    async def run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        """One turn. Waits while `maxSessions` others have one."""
        with self._stay():
            async with self._places, self._use_process(spec) as (process, sessions):
                with sessions.hold(spec):
                    session = await sessions.open(spec, sink)
                    start_s = self._agent.runtime.start_seconds
                    await session.choices.apply(process, session.native_id, spec, start_s)
                    rules = TurnRules(self._agent.runtime, self._agents.limits().max_record_bytes, self._agents.clock)
                    return await PromptTurn(process, session, spec, sink, rules).run()

    async def check_native(self, spec: RunSpec) -> str | None:
        """Why the agent cannot go on with `native_session_id`; None if it can, or if it has other work first."""
        with self._stay():
            async with self._use_process(spec) as (_, sessions):
                return await sessions.check(spec)

    @contextmanager
    def _stay(self) -> Iterator[None]:
        """Do not be cold while the context lasts."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    @asynccontextmanager
    async def _use_process(self, spec: RunSpec) -> AsyncIterator[tuple[AgentProcess, OpenSessions]]:
        """The process, started if there is none, and kept while the context lasts. It is ended if it cannot serve and
        no session is at work in it.
        """
        process, sessions = await self._ensure_process(spec)
        with process.in_use():
            if self._is_retired:
                process.end_when_rested()
            try:
                yield process, sessions
            except CannotServe as error:
                if error.for_good and not sessions.has_runs:
                    process.end(str(error))
                raise

    async def _ensure_process(self, spec: RunSpec) -> tuple[AgentProcess, OpenSessions]:
        # There is no checkpoint between looking at it and returning it.
        async with self._starting:
            if self._process is None or self._sessions is None or self._process.ended:
                self._process, self._sessions = await self._start(spec)
            return self._process, self._sessions

    async def _start(self, spec: RunSpec) -> tuple[AgentProcess, OpenSessions]:
        runtime = self._agent.runtime
        rules = ProcessRules(
            agent_id=self._agent.id,
            start_s=runtime.start_seconds,
            idle_s=self._idle_s,
            max_frame_bytes=self._agents.limits().max_frame_bytes,
            authenticate=runtime.authenticate,
            takes_forms=runtime.permissions != "deny",
        )
        tokens = TokenFolder(spec.socket)
        try:
            with ExitStack() as stack:
                command = await self._agents.command(self._agent, spec, tokens, stack)
                process = AgentProcess(command, rules)
                await self._agents.start(process, tokens)
        except BaseException:
            tokens.remove()
            raise
        return process, OpenSessions(process, tokens, self._agent, self._lists)
