"""Go on with a session of another program: in a session of ours, whose first run begins with a copy of the original.

Finds the agent and the session, and creates the session. Sends nothing and starts no run; the presets know how a
program copies a conversation. Source: runs.md, "Sessions of other programs".
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from pathlib import Path

import msgspec

from sessiond.config.settings import AgentConfig, Config
from sessiond.errors import Forbidden, Unsupported, quote
from sessiond.model.keys import rest_of
from sessiond.model.record import ENTRY
from sessiond.policy.spawn import is_sandboxed
from sessiond.runtimes.fork_support import forks
from sessiond.runtimes.presets import PRESETS
from sessiond.runtimes.presets.acp import acp_form
from sessiond.runtimes.presets.detect import agent_lines
from sessiond.sessions.lifecycle import SessionChanges
from sessiond.store.catalog import Session
from sessiond.store.store import Custom
from sessiond.store.workspace import default_workspace
from sessiond.tasks import run_in_thread


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """Where messages to another program's session go: the session `key` of our agent, which works in `cwd`.

    `session` is None until it is created.
    """

    original: Session
    key: str
    agent_id: str
    cwd: str
    session: Session | None


class Continuations:
    """The sessions of ours that go on with those of other programs.

    `complete` reads one of those to its end; `environ` is the daemon's environment.
    """

    def __init__(
        self,
        session_changes: SessionChanges,
        config: Callable[[], Config],
        *,
        complete: Callable[[Session], Awaitable[None]],
        environ: Mapping[str, str],
    ) -> None:
        self._session_changes, self._config = session_changes, config
        self._complete, self._environ = complete, environ

    async def plan(self, original: Session) -> Continuation:
        """Where a message to this session of another program goes. Creates nothing.

        Unsupported where nothing can go on with it: `cannot_fork`, `no_agent_for_source`, `cwd_missing`. Forbidden
        where the agent's sandbox does not show the folder.
        """
        config, program = self._config(), original.folder.source or ""
        if program not in PRESETS:
            raise _cannot_fork(program, original)
        agents = agents_for(config, program)
        if not agents:
            lines = agent_lines(program, taken={agent.id for agent in config.agents.list})
            raise Unsupported(
                f"no agent runs {program}, which has to go on with {original.key}: add this to the configuration,"
                f" reload it and send again\n{lines}",
                code="no_agent_for_source",
                config=lines,
            )
        await self._complete(original)
        agent, session = self._find(agents, original.key)
        cwd = await self._check_folder(agent, original)
        if session is None and not await forks(agent.runtime, self._environ, self._workspace(agent)):
            raise _cannot_fork(program, original)
        # Again: meanwhile another message may have begun it.
        _, session = self._find([agent], original.key)
        key = session.key if session is not None else self._free_key(agent, original.key)
        return Continuation(original=original, key=key, agent_id=agent.id, cwd=cwd, session=session)

    async def begin(self, planned: Continuation) -> Session:
        """The session of ours, created if there is none."""
        parts = [Custom(ENTRY, {"continues": planned.original.key})]
        session, _ = await self._session_changes.ensure(planned.key, planned.agent_id, cwd=planned.cwd, parts=parts)
        return session

    def _workspace(self, agent: AgentConfig) -> Path:
        return agent.workspace or default_workspace(self._session_changes.store.path, agent.id)

    def _find(self, agents: list[AgentConfig], original_key: str) -> tuple[AgentConfig, Session | None]:
        """The agent that goes on with the session, and its session; the first agent where none does yet."""
        by_key = self._session_changes.store.catalog.by_key
        for agent in agents:
            for key in _keys(agent, original_key):
                found = by_key.get(key)
                if found is not None and found.entry.continues == original_key:
                    return agent, found
        return agents[0], None

    def _free_key(self, agent: AgentConfig, original_key: str) -> str:
        first, second = _keys(agent, original_key)
        return first if first not in self._session_changes.store.catalog.by_key else second

    async def _check_folder(self, agent: AgentConfig, original: Session) -> str:
        """The folder of the original, in which the agent can work."""
        cwd = original.entry.cwd
        if cwd is None or not Path(cwd).is_absolute():
            raise _no_folder(
                f"the transcript of {original.key} does not say in which folder it was: go on with it in"
                f" {original.folder.source}"
            )
        sandboxed = is_sandboxed(agent.sandbox.mode, is_main=False)
        # In a thread: the folder may be on a file system that does not answer.
        there, shown = await run_in_thread(
            _look_at, agent, self._workspace(agent), cwd, original.path, abandon_on_cancel=True
        )
        if not there:
            raise _no_folder(
                f"{original.key} was in the folder {quote(cwd)}, which is not there: make it, and send again"
            )
        if sandboxed and not shown[0]:
            raise Forbidden(
                f"agent {quote(agent.id)} runs in a sandbox, whose workspace does not hold {quote(cwd)},"
                f" the folder of {original.key}: an agent without a sandbox can go on with it",
                code="sandboxed",
            )
        if sandboxed and not shown[1]:
            raise Unsupported(
                f"agent {quote(agent.id)} runs in a sandbox, which does not show it the transcript of {original.key}:"
                " an agent without a sandbox can go on with it",
                code="cannot_fork",
            )
        return cwd


def agents_for(config: Config, program: str) -> list[AgentConfig]:
    """The agents that run this program and can begin with a copy of its sessions, the default agent first."""
    form = acp_form(program)
    types = ("exec", "acp") if form is not None and form.forks else ("exec",)
    fitting = [one for one in config.agents.list if one.runtime.type in types and one.runtime.preset == program]
    default = config.default_agent()
    return sorted(fitting, key=lambda agent: agent.id != default)


def _keys(agent: AgentConfig, original_key: str) -> tuple[str, str]:
    """The key for the continuation by an agent, and another one where that is taken by something else.

    Our keys are in lower case. Two native ids that differ only in case, or a session that somebody made with that very
    key, must not end up in one conversation.
    """
    native = rest_of(original_key)
    key = f"agent:{agent.id}:{original_key}".lower()
    return key, f"{key}:{blake2b(native.encode(), digest_size=4).hexdigest()}"


def _look_at(agent: AgentConfig, workspace: Path, cwd: str, transcript: str) -> tuple[bool, tuple[bool, bool]]:
    """Whether the folder is there; whether it is in the workspace; and whether the transcript and the
    home are, in which the program keeps its copy.
    """
    home = agent.runtime.env.get("HOME", "").replace("{workspace}", str(workspace))
    root = os.path.realpath(workspace)
    folder, *others = (Path(os.path.realpath(path)).is_relative_to(root) for path in (cwd, transcript, home or "/"))
    return os.path.isdir(cwd), (folder, all(others))


def _cannot_fork(program: str, original: Session) -> Unsupported:
    newer = ", or install a newer one" if program in PRESETS else ""
    return Unsupported(
        f"{program} as it is here cannot go on with a copy of a session, and sessiond does not change"
        f" {original.key} itself: go on with it in {program}{newer}",
        code="cannot_fork",
    )


def _no_folder(reason: str) -> Unsupported:
    return Unsupported(reason, code="cwd_missing")
