"""The supervisor's host: the runtime and workspace of an agent and the RunSpec of a run, from the configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from sessiond.clock import Clock
from sessiond.config.settings import AgentConfig, Config
from sessiond.errors import Unsupported, quote
from sessiond.model import lax
from sessiond.model.entry import Entry, Spawn
from sessiond.model.keys import agent_of, is_foreign, is_inbox, rest_of
from sessiond.model.lax import amount
from sessiond.model.usage import Usage, cost_of, usage_in
from sessiond.policy.spawn import is_sandboxed
from sessiond.runs.run import Run
from sessiond.runtimes.acp.agents import AcpAgents, AcpLimits, AgentRuntime, CannotAsk
from sessiond.runtimes.acp.tool_server import clear_token_folders
from sessiond.runtimes.attached import AttachedAgents
from sessiond.runtimes.echo import EchoRuntime
from sessiond.runtimes.exec import ExecRuntime
from sessiond.runtimes.runtime import RunSpec, Runtime
from sessiond.runtimes.sandbox import Bubblewrap
from sessiond.sessions import history
from sessiond.sessions.usage import price_of
from sessiond.store.store import SessionStore
from sessiond.store.workspace import default_workspace, make_workspace

# Bounds of the earlier messages that a program with `input = "json"` gets with each run.
_HISTORY_MESSAGES = 100
_HISTORY_BYTES = 1024 * 1024
# Longer than any run. A caller may ask for 1e308 seconds, which in milliseconds is infinite.
_LONGEST_RUN_S = 1e9


class Credentials(Protocol):
    """The token files of runs."""

    def issue(self, run: Run, *, sandboxed: bool) -> Path: ...
    def retire(self, run: Run) -> None: ...


def _make_acp_runtime(agents: AcpAgents, agent: AgentConfig) -> AgentRuntime:
    # Half a megabyte that a daemon without such agents does not need.
    from sessiond.runtimes.acp.runtime import AcpRuntime

    return AcpRuntime(agents, agent)


class DaemonHost:
    """`config()` is the current configuration. Source: runs.md, "Runtimes"."""

    def __init__(
        self,
        config: Callable[[], Config],
        store: SessionStore,
        attached: AttachedAgents,
        credentials: Credentials,
        agent_socket: Path,
        *,
        clock: Clock,
    ) -> None:
        self._config, self._store, self._attached = config, store, attached
        self._credentials, self._agent_socket = credentials, agent_socket
        self._bubblewrap = Bubblewrap((store.path, agent_socket.parent))
        self.acp_agents = AcpAgents(
            environ=os.environ,
            bubblewrap=self._bubblewrap,
            limits=self._acp_limits,
            clock=clock,
            make_runtime=_make_acp_runtime,
        )
        clear_token_folders(agent_socket.parent)
        self._echo = EchoRuntime()
        self._exec: dict[AgentConfig, ExecRuntime] = {}

    def runtime(self, agent_id: str) -> Runtime | None:
        agent = self._config().agent(agent_id)
        # An attached connection takes precedence over the runtime in the configuration.
        attached = self._attached.runtime(agent_id)
        if attached is not None or agent is None or agent.runtime.type == "attached":
            return attached
        if agent.runtime.type == "exec":
            return self._exec_runtime(agent)
        return self._echo if agent.runtime.type == "echo" else self.acp_agents.runtime(agent)

    def knows_agent(self, agent_id: str) -> bool:
        return self._config().agent(agent_id) is not None or self._attached.was_attached(agent_id)

    def keeps_messages(self, key: str) -> bool:
        if is_foreign(key):
            return True  # a program in a terminal gets them at its next turn
        return is_inbox(key) and self._attached.runtime(agent_of(key)) is None

    def understands_steps(self, agent_id: str) -> bool:
        if self.is_resumable(agent_id):
            return False  # an announcement is not worth a journey, and a model there
        agent = self._config().agent(agent_id)
        return self._attached.runtime(agent_id) is not None or agent is None or agent.runtime.understands_steps

    def _exec_runtime(self, agent: AgentConfig) -> ExecRuntime:
        key = agent
        if key not in self._exec:
            self._exec[key] = ExecRuntime(
                agent.runtime,
                environ=os.environ,
                max_record_bytes=self._config().limits.max_record_bytes,
                bubblewrap=self._bubblewrap,
                sandbox_config=agent.sandbox,
            )
        return self._exec[key]

    def _acp_limits(self) -> AcpLimits:
        limits = self._config().limits
        return AcpLimits(limits.max_record_bytes, limits.max_frame_bytes)

    def workspace(self, agent_id: str) -> Path:
        """The agent's workspace, created if needed. StorageError if that fails."""
        folder = self._workspace_path(agent_id)
        make_workspace(agent_id, folder, self._store.path)
        return folder

    def _workspace_path(self, agent_id: str) -> Path:
        agent = self._config().agent(agent_id)
        folder = agent.workspace if agent is not None else None
        return folder if folder is not None else default_workspace(self._store.path, agent_id)

    def is_sandboxed(self, key: str) -> bool:
        """Whether the runs of this session are sandboxed."""
        config = self._config()
        agent = config.agent(agent_of(key))
        if agent is None:
            return False
        return is_sandboxed(agent.sandbox.mode, is_main=rest_of(key) == config.session.main_key)

    async def check_native(self, key: str, native_id: str, folder: Path | None) -> str | None:
        """Why the agent of session `key` cannot go on with a session of its own, in `folder` or else the workspace.

        None if it can. Unsupported if it cannot be asked.
        """
        from sessiond.runtimes.acp.runtime import AcpRuntime

        agent_id = agent_of(key)
        runtime = self.runtime(agent_id)
        if not isinstance(runtime, AcpRuntime):
            raise Unsupported(
                f"agent {agent_id} is run by a program that has attached, which cannot go on with sessions of its own",
                code="agent_unavailable",
            )
        spec = RunSpec(
            run_id="",
            session_key=key,
            session_id=rest_of(key),
            agent_id=agent_id,
            message="",
            workspace=self.workspace(agent_id),
            socket=self._agent_socket,
            native_session_id=native_id,
            sandboxed=self.is_sandboxed(key),
            cwd=folder,
        )
        try:
            return await runtime.check_native(spec)
        except CannotAsk as error:
            raise Unsupported(
                f"agent {agent_id} cannot be asked for its session {quote(native_id)}: {error}",
                code="agent_unavailable",
            ) from None

    def spec(self, run: Run) -> RunSpec:
        config, request, entry = self._config(), run.request, run.session.entry
        agent_id = agent_of(run.key)
        runtime = self.runtime(agent_id)
        deadline = None
        if run.started_at and request.timeout_s:
            deadline = run.started_at + int(min(request.timeout_s, _LONGEST_RUN_S) * 1000)
        # The files that a child was spawned with are available to its later runs too. A sandbox shows only the
        # attachments that are named here.
        standing = entry.spawn
        if standing is None or standing.attachments_removed:
            standing = Spawn()
        sandboxed = bool(entry.sandboxed) or self.is_sandboxed(run.key)
        is_elsewhere = self.is_resumable(agent_id)
        # The built-in echo is the daemon itself, and needs no token and no folder. What runs on another machine does
        # nothing here, and would hold its token for days.
        if runtime is self._echo or is_elsewhere:
            token_file, workspace = None, self._workspace_path(agent_id)
        else:
            token_file, workspace = self._credentials.issue(run, sandboxed=sandboxed), self.workspace(agent_id)
        return RunSpec(
            run_id=run.run_id,
            session_key=run.key,
            session_id=run.session.session_id,
            agent_id=agent_id,
            message=request.text,
            workspace=workspace,
            socket=self._agent_socket,
            step=request.step,
            context=request.context,
            provenance=request.message.get("provenance"),
            thinking=request.thinking
            or entry.thinking_level
            or (config.agents.defaults.thinking if not is_elsewhere else None),
            model=self._model(run),
            attachments=request.attachments or standing.attachments,
            mount_path=request.mount_path if request.attachments else standing.mount_path,
            deadline_ms=deadline,
            token_file=token_file,
            native_session_id=entry.native_session_id,
            native_required=entry.native_required,
            native_cost_usd=entry.native_cost_usd,
            images=_images_in(request.message),
            **self._folder_fields(entry),
            turn=request.turn,
            max_turns=request.max_turns,
            target=entry.target if is_elsewhere else None,
            sandboxed=sandboxed,
            history=partial(self._history, run),
        )

    def _folder_fields(self, entry: Entry) -> dict[str, Any]:
        """The fields of the RunSpec that say where the session begins: its folder, and the session that it goes on
        with.
        """
        cwd = Path(entry.own_folder) if entry.own_folder is not None else None
        if entry.continues is None:
            return {"cwd": cwd}
        original = self._store.catalog.by_key.get(entry.continues)
        used = file = None
        if original is not None:
            had = original.entry
            parts = (had.input_tokens, had.output_tokens, had.cache_read, had.cache_write)
            used, file = Usage(*(count or 0 for count in parts)), Path(original.path)
        return {"fork_of": rest_of(entry.continues), "fork_usage": used, "fork_file": file, "cwd": cwd}

    async def _history(self, run: Run) -> list[msgspec.Raw]:
        """The newest messages before the run's own one (see `RunSpec.history`), oldest first."""
        session = run.session
        page = await history.page(
            self._store,
            session,
            limit=_HISTORY_MESSAGES + 1,
            include_tools=True,
            max_bytes=_HISTORY_BYTES,
        )
        messages = list(page.messages)
        own = next((n for n in reversed(range(len(messages))) if _is_same(messages[n], run.request.message)), None)
        if own is not None:
            del messages[own]
        return messages[-_HISTORY_MESSAGES:]

    def _model(self, run: Run) -> str | None:
        """The model that the agent reported, else the requested one."""
        config = self._config()
        agent = config.agent(agent_of(run.key))
        chosen = run.model or run.request.model or run.session.entry.model_override
        if chosen is not None or self.is_resumable(agent_of(run.key)):
            return chosen
        return (agent.model if agent is not None else None) or config.agents.defaults.model

    def retire(self, run: Run) -> None:
        self._credentials.retire(run)

    def slot_limits(self) -> tuple[int, int]:
        defaults = self._config().agents.defaults
        return defaults.max_concurrent, defaults.subagents.max_concurrent

    def is_light(self, agent_id: str) -> bool:
        return self.runtime(agent_id) is self._echo

    def is_resumable(self, agent_id: str) -> bool:
        return self._config().machine(agent_id) is not None

    def leave_open(self) -> None:
        self._attached.leave_open()

    def queue_ttl_s(self) -> float:
        return self._config().agents.defaults.queue_ttl_seconds

    def price(self, run: Run) -> float | None:
        """The cost by `models.pricing` in US dollars, if the runtime reported tokens but no cost; else None."""
        usage = usage_in(run.usage)
        if usage is None or cost_of(usage) is not None:
            return None
        return amount(price_of(self._config().models.pricing, self._model(run) or "", usage))


def _images_in(message: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """The image blocks of the message of a run."""
    content = message.get("content")
    return tuple(
        block
        for block in (content if isinstance(content, list) else ())
        if isinstance(block, dict) and block.get("type") == "image" and {"data", "mimeType"} <= block.keys()
    )


def _is_same(raw: msgspec.Raw, message: dict[str, Any]) -> bool:
    """Whether a stored message equals the message of the run."""
    return bool(lax.decode(bytes(raw)) == message)
