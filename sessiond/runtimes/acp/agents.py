"""All agents that speak the Agent Client Protocol: their runtimes, and how their processes are started.

Knows the configuration of agents. What a turn is, `runtime.py` knows, which the daemon imports with the first of them.
Source: runs.md, "acp".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio

from sessiond.clock import Clock
from sessiond.config.agents import AgentConfig
from sessiond.errors import Stopping
from sessiond.runtimes import sandbox
from sessiond.runtimes.acp.tool_server import TokenFolder, files_for_sandbox
from sessiond.runtimes.exec import program_environment
from sessiond.runtimes.launcher import ProgramCommand
from sessiond.runtimes.mounts import SOCKET, NoSandbox
from sessiond.runtimes.presets.acp import acp_command
from sessiond.runtimes.runtime import RunSpec, Runtime, raise_shortage

if TYPE_CHECKING:
    from sessiond.runtimes.acp.process import AgentProcess

_WORKSPACE = re.compile(r"\{workspace\}")


class AcpLimits(msgspec.Struct, frozen=True):
    """The limits of `[limits]` that concern agents."""

    max_record_bytes: int
    max_frame_bytes: int


class AgentRuntime(Runtime, Protocol):
    """The runtime of one agent."""

    async def check_native(self, spec: RunSpec) -> str | None:
        """Why the agent cannot go on with `native_session_id`; None if it can. CannotAsk if that is not known."""
        ...

    def retire(self) -> None:
        """End the processes once they rest."""
        ...


class AcpAgents:
    """All processes. `run` is a background task of the daemon, within which every process is a task."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        bubblewrap: sandbox.Bubblewrap,
        limits: Callable[[], AcpLimits],
        clock: Clock,
        make_runtime: Callable[[AcpAgents, AgentConfig], AgentRuntime],
    ) -> None:
        self._environ, self._bubblewrap, self.limits, self.clock = environ, bubblewrap, limits, clock
        self._make_runtime = make_runtime
        self._runtimes: dict[AgentConfig, AgentRuntime] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the processes until cancelled; then end them."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def runtime(self, agent: AgentConfig) -> AgentRuntime:
        """The runtime of an agent."""
        if agent not in self._runtimes:
            self._runtimes[agent] = self._make_runtime(self, agent)
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
