"""Agents that speak the Agent Client Protocol: warm processes, and turns in their sessions. Source: runs.md, "acp".

Knows the configuration of agents. Does not know queues, transcripts or time limits of runs.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import trio

from sessiond.clock import Clock
from sessiond.config.agents import AgentConfig
from sessiond.errors import SessiondError, Stopping, quote
from sessiond.runtimes import sandbox
from sessiond.runtimes.acp.connection import AgentGone
from sessiond.runtimes.acp.process import AgentProcess, CannotServe, ProcessRules
from sessiond.runtimes.acp.session import OpenSession, SessionRules, close_session, find_session, open_session
from sessiond.runtimes.acp.tool_server import TokenFolder, clear_token_folders, files_for_sandbox
from sessiond.runtimes.acp.turn import PromptTurn, TurnRules
from sessiond.runtimes.exec import program_environment
from sessiond.runtimes.launcher import CannotStart, ProgramCommand
from sessiond.runtimes.mounts import SOCKET, NoSandbox
from sessiond.runtimes.presets.acp import acp_command, acp_form, asking_mode
from sessiond.runtimes.runtime import RunOutcome, RunSink, RunSpec, Shortage, raise_shortage

# A process in a sandbox with the files of one run is of use to that session only.
_IDLE_WITH_FILES_S = 60.0
# How long an agent that is at work may take to say whether it has a session.
_BUSY_S = 5.0
_WORKSPACE = re.compile(r"\{workspace\}")

# What a sandbox shows besides the workspace: the folder of the attachments, and where it is mounted.
SandboxFiles = tuple[str, str | None]


class AcpLimits(msgspec.Struct, frozen=True):
    """The limits of `[limits]` that concern agents."""

    max_record_bytes: int
    max_frame_bytes: int


class AcpAgents:
    """All processes. `run` is a background task of the daemon, within which every process is a task."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        bubblewrap: sandbox.Bubblewrap,
        limits: Callable[[], AcpLimits],
        clock: Clock,
    ) -> None:
        self._environ, self._bubblewrap, self.limits, self.clock = environ, bubblewrap, limits, clock
        self._runtimes: dict[AgentConfig, AcpRuntime] = {}
        self._nursery: trio.Nursery | None = None

    def clear(self, sockets: Path) -> None:
        """Remove what a killed daemon left beside its sockets."""
        clear_token_folders(sockets)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the processes until cancelled; then end them."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def runtime(self, agent: AgentConfig) -> AcpRuntime:
        """The runtime of an agent."""
        if agent not in self._runtimes:
            self._runtimes[agent] = AcpRuntime(self, agent)
        return self._runtimes[agent]

    def reconfigure(self, agents: Iterable[AgentConfig]) -> None:
        """The configuration was loaded again: end the processes of agents that changed or are gone, once they rest."""
        current = set(agents)
        for agent in [one for one in self._runtimes if one not in current]:
            self._runtimes.pop(agent).retire()

    async def start(self, process: AgentProcess, tokens: TokenFolder) -> None:
        """Start a process. CannotServe, CannotStart, Shortage; Stopping if the daemon stops."""
        if self._nursery is None:
            raise Stopping("the daemon is stopping")

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            try:
                await process.run(task_status=task_status)
            finally:
                tokens.remove()

        await self._nursery.start(run)

    async def command(self, agent: AgentConfig, spec: RunSpec, tokens: TokenFolder, stack: ExitStack) -> ProgramCommand:
        """How the process is started; in a sandbox where the run wants one. NoSandbox."""
        fill = str(spec.workspace).replace("\\", "\\\\")
        argv = [_WORKSPACE.sub(fill, word) for word in acp_command(agent.runtime)]
        own = {name: _WORKSPACE.sub(fill, value) for name, value in agent.runtime.env.items()}
        environ = sandbox.base_environment(self._environ) if spec.sandboxed else self._environ
        env = program_environment(environ, own)
        env.pop("SESSIOND_SESSION_KEY", None)
        env["SESSIOND_SOCKET"] = str(SOCKET if spec.sandboxed else spec.socket)
        # Only the tool server of a session has a token. Whatever else the agent starts is nobody, and never the owner,
        # also where the agent passes on a part of its environment (`client/ancestry.py` finds these two).
        env["SESSIOND_TOKEN_FILE"] = tokens.no_token(sandboxed=spec.sandboxed)
        env["SESSIOND_RUN_ID"] = "acp"
        fds: Mapping[int, int] = {}
        if spec.sandboxed:
            with raise_shortage("the sandbox cannot be made"):
                missing = await self._bubblewrap.find_problem()
                if missing is not None:
                    raise NoSandbox(f"this run needs a sandbox, and there is none: {missing}")
                config = msgspec.structs.replace(
                    agent.sandbox, read_only=(*agent.sandbox.read_only, *files_for_sandbox())
                )
                shown = msgspec.structs.replace(spec, token_file=tokens.path, cwd=None)
                box = stack.enter_context(self._bubblewrap.wrap(argv, shown, config, env["PATH"]))
            argv, fds = list(box.argv), box.fds
        return ProgramCommand(argv=tuple(argv), env=env, cwd=spec.workspace, inherited=fds)


class CannotAsk(Exception):
    """The agent cannot be started or asked. The message is for people."""


class AcpRuntime:
    """Runs the turns of one agent: one process for each state of the sandbox. Source: runs.md, "acp"."""

    def __init__(self, agents: AcpAgents, agent: AgentConfig) -> None:
        self._agents, self._agent = agents, agent
        self._warm: dict[SandboxFiles | bool, WarmAgent] = {}

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
        """The error as a sentence, which says how to get the program of a preset where that is not there."""
        form = acp_form(self._agent.runtime.preset)
        if form is None or not str(error).startswith(f"command not found: {form.program} "):
            return str(error)
        return f"{error}; it comes with: {form.remedy}"

    def retire(self) -> None:
        """End the processes once they rest."""
        for warm in self._warm.values():
            warm.retire()

    def _warm_agent(self, spec: RunSpec) -> WarmAgent:
        files: SandboxFiles | bool = spec.sandboxed
        given = spec.attachments or {}
        folder = given.get("relDir")
        # Images are in the prompt: they need no process that sees their files, in which the session would be resumed.
        are_images = bool(spec.images) and len(spec.images) == given.get("count")
        if spec.sandboxed and isinstance(folder, str) and not are_images:
            files = folder, spec.mount_path
        for key in [key for key, warm in self._warm.items() if warm.is_cold and key != files]:
            del self._warm[key]
        if files not in self._warm:
            self._warm[files] = WarmAgent(self._agents, self._agent, has_files=isinstance(files, tuple))
        return self._warm[files]


class WarmAgent:
    """A process of an agent, started when it is needed, and the sessions that are open in it."""

    def __init__(self, agents: AcpAgents, agent: AgentConfig, *, has_files: bool) -> None:
        self._agents, self._agent = agents, agent
        runtime = agent.runtime
        self._rules = ProcessRules(
            agent_id=agent.id,
            start_s=runtime.start_seconds,
            grace_s=runtime.grace_seconds,
            idle_s=min(runtime.idle_seconds, _IDLE_WITH_FILES_S) if has_files else runtime.idle_seconds,
            max_frame_bytes=agents.limits().max_frame_bytes,
            authenticate=runtime.authenticate,
        )
        self._opening = SessionRules(timeout_s=runtime.start_seconds, mode=asking_mode(runtime))
        self._places = trio.CapacityLimiter(runtime.max_sessions)
        self._starting = trio.Lock()
        self._process: AgentProcess | None = None
        self._tokens: TokenFolder | None = None
        # By our session id, the one that has rested longest first; and those in which a run goes on.
        self._sessions: OrderedDict[str, OpenSession] = OrderedDict()
        self._busy: set[str] = set()
        # By our session id, the id in the agent of a session that is being opened.
        self._claims: dict[str, str] = {}
        self._runs = 0
        self._retired = False

    @property
    def is_cold(self) -> bool:
        """Whether it has no process and no run."""
        return not self._runs and (self._process is None or self._process.ended)

    def retire(self) -> None:
        """Keep the process no longer than its runs."""
        self._retired = True
        if self._process is not None:
            self._process.end_when_rested()

    async def run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        """One turn. Waits while `maxSessions` others have one."""
        self._runs += 1
        # A run is a borrower of its own: its session may have another one that is just ending.
        try:
            await self._places.acquire_on_behalf_of(spec.run_id)
            try:
                return await self._run(spec, sink)
            finally:
                self._places.release_on_behalf_of(spec.run_id)
        finally:
            self._runs -= 1

    async def _run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        process, tokens = await self._ensure_process(spec)
        with process.in_use(), self._hold(spec.session_id), tokens.hold_token(spec):
            if self._retired:
                process.end_when_rested()
            session = await self._open(process, tokens, spec, sink)
            await session.choices.apply(process, session.native_id, spec, self._rules.start_s)
            rules = TurnRules(self._agent.runtime, self._agents.limits().max_record_bytes, self._agents.clock)
            return await PromptTurn(process, session, spec, sink, rules).run()

    async def check_native(self, spec: RunSpec) -> str | None:
        """Why the agent cannot go on with `native_session_id`; None if it can, or if it has other work first."""
        native_id = spec.native_session_id or ""
        self._runs += 1
        try:
            process, _ = await self._ensure_process(spec)
            if any(session.native_id == native_id for session in self._sessions.values()):
                return None
            # An agent that does one thing at a time answers after a turn, which may be the one that asks for this.
            with process.in_use(), trio.move_on_after(_BUSY_S if self._busy else math.inf):
                return await find_session(process, native_id, self._opening, cwd=_folder(spec))
            return None
        finally:
            self._runs -= 1

    @contextmanager
    def _hold(self, session_id: str) -> Iterator[None]:
        """Keep the session open while the context lasts; afterwards it is the one that has rested least."""
        self._busy.add(session_id)
        try:
            yield
        finally:
            self._busy.discard(session_id)
            if session_id in self._sessions:
                self._sessions.move_to_end(session_id)

    async def _ensure_process(self, spec: RunSpec) -> tuple[AgentProcess, TokenFolder]:
        """The process, started if there is none. There is no checkpoint between looking at it and returning it."""
        async with self._starting:
            if self._process is None or self._tokens is None or self._process.ended:
                self._process, self._tokens = await self._start(spec)
                self._sessions.clear()
            return self._process, self._tokens

    async def _start(self, spec: RunSpec) -> tuple[AgentProcess, TokenFolder]:
        tokens = TokenFolder(spec.socket)
        try:
            with ExitStack() as stack:
                command = await self._agents.command(self._agent, spec, tokens, stack)
                process = AgentProcess(command, self._rules)
                await self._agents.start(process, tokens)
        except BaseException:
            tokens.remove()
            raise
        return process, tokens

    async def _open(self, process: AgentProcess, tokens: TokenFolder, spec: RunSpec, sink: RunSink) -> OpenSession:
        """The session of the run, opened in the process if it is not."""
        session = self._sessions.get(spec.session_id)
        if session is not None:
            return session
        self._refuse_twice(spec)
        try:
            session = await self._open_unknown(process, tokens, spec, sink)
        finally:
            self._claims.pop(spec.session_id, None)
        return session

    async def _open_unknown(
        self, process: AgentProcess, tokens: TokenFolder, spec: RunSpec, sink: RunSink
    ) -> OpenSession:
        await self._make_room(process)
        servers = [tokens.server(spec)]
        rules = msgspec.structs.replace(self._opening, claim=lambda native_id: self._claim(spec.session_id, native_id))
        if self._busy != {spec.session_id}:
            # An agent that does one thing at a time answers after the turns of others.
            rules = msgspec.structs.replace(rules, timeout_s=math.inf)
        try:
            session = await open_session(process, spec, sink, rules, cwd=_folder(spec), servers=servers)
        except CannotServe as error:
            if error.for_good and self._busy == {spec.session_id}:
                process.end(str(error))
            raise
        self._sessions[spec.session_id] = session
        return session

    def _refuse_twice(self, spec: RunSpec) -> None:
        """Two sessions of ours cannot go on with one session of the agent at once: its updates name only that."""
        for session_id, session in list(self._sessions.items()):
            if session.native_id != spec.native_session_id:
                continue
            if session_id in self._busy:
                raise CannotServe(
                    f"the agent's session {quote(session.native_id)} is at work for another session ({session_id})"
                )
            del self._sessions[session_id]
        if spec.native_session_id is not None:
            self._claim(spec.session_id, spec.native_session_id)

    def _claim(self, session_id: str, native_id: str) -> None:
        """Keep the agent's id for this session of ours. CannotServe if another has it: updates name only that id."""
        others = {**{one: session.native_id for one, session in self._sessions.items()}, **self._claims}
        other = next((one for one, known in others.items() if known == native_id and one != session_id), None)
        if other is not None:
            raise CannotServe(
                f"the agent's session {quote(native_id)} is that of another session already ({other}): it cannot keep"
                f" the two apart. If it has one session only, set maxSessions = 1 in the runtime of {self._agent.id}"
            )
        self._claims[session_id] = native_id

    async def _make_room(self, process: AgentProcess) -> None:
        """Close the sessions that have rested longest while too many are open. They are resumed when needed."""
        while len(self._sessions.keys() | self._busy) > self._agent.runtime.max_sessions:
            rested = next(one for one in self._sessions if one not in self._busy)
            session = self._sessions.pop(rested)
            await close_session(process, session.native_id, self._rules.grace_s)


def _folder(spec: RunSpec) -> str:
    """Where the session works. CannotServe where its sandbox does not show that."""
    cwd = spec.cwd or spec.workspace
    if spec.sandboxed and not cwd.is_relative_to(spec.workspace):
        raise CannotServe(
            f"the session works in {quote(str(cwd))}, which its sandbox does not show: only the workspace is"
        )
    return str(cwd)
