"""The part of the configuration that defines the agents and how they are run.

Frozen structs with their defaults and limits, and the small types that `settings.py` shares. Reads nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

Thinking = Literal["off", "minimal", "low", "medium", "high", "adaptive", "xhigh"]
Preset = Literal["claude", "codex", "gemini", "opencode", "pi"]
# The programs that speak ACP themselves or have an adapter of their makers.
AcpPreset = Literal["claude", "codex", "gemini", "opencode"]
Permission = Literal["ask", "allow", "deny"]
# ToolKind of the schema of ACP v1: what an agent says its tool call does.
ToolKind = Literal[
    "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"
]  # fmt: skip

AgentId = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A[a-z0-9][a-z0-9_-]{0,63}\Z",
        description="an id of a-z, 0-9, _ and -, at most 64 long, like code-review",
    ),
]
Word = Annotated[str, msgspec.Meta(min_length=1)]
Command = Annotated[tuple[Word, ...], msgspec.Meta(min_length=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Share = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class Table(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A table of the file."""


class SubagentsConfig(Table, frozen=True):
    """`run_timeout_seconds` 0: no limit. `archive_after_minutes` 0: never. `max_concurrent` is for the whole daemon."""

    max_concurrent: _Share = 8
    max_spawn_depth: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    max_children_per_agent: _Share = 5
    run_timeout_seconds: Seconds = 0
    archive_after_minutes: Seconds = 60
    announce: Literal["agent", "reply"] = "agent"
    wake_requester: bool = True
    model: Word | None = None
    thinking: Thinking | None = None
    allow_agents: tuple[Word, ...] = ()


class SandboxConfig(Table, frozen=True):
    """`memory_max_bytes` limits each process, `max_processes` the run; None: no limit.

    `read_only` are extra files and folders that the agent sees, such as the folder of its program.
    """

    mode: Literal["off", "non-main", "all"] = "off"
    session_tools_visibility: Literal["spawned", "all"] = "spawned"
    network: bool = True
    memory_max_bytes: Annotated[int, msgspec.Meta(ge=2**20, le=2**50)] | None = None
    max_processes: Annotated[int, msgspec.Meta(ge=1, le=2**22)] | None = None
    read_only: tuple[Path, ...] = ()


class RuntimeConfig(Table, frozen=True):
    """How an agent is run. A `preset` stands for command, input and output of a known agent program.

    From `permissions` on, the keys are those of `type = "acp"`. `permission_rules` come before `permissions`.
    `permission_timeout_seconds` 0: for as long as the turn. `authenticate` is the id of the method by which the agent
    is told to authenticate; None: it is not told to.
    """

    type: Literal["exec", "attached", "echo", "acp"]
    command: Command = ()
    input: Literal["text", "json"] = "text"
    output: Literal["text", "jsonl"] = "text"
    env: dict[str, str] = {}
    preset: Preset | None = None
    permissions: Permission = "ask"
    permission_rules: dict[ToolKind, Permission] = {}
    permission_timeout_seconds: Seconds = 0
    idle_seconds: Seconds = 7200
    max_sessions: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    start_seconds: Annotated[float, msgspec.Meta(gt=0)] = 60
    grace_seconds: Seconds = 5
    authenticate: Word | None = None

    @property
    def understands_steps(self) -> bool:
        """Whether the agent can tell an announce step from a message. The echo runtime cannot, nor can a program
        without a preset that gets only text.
        """
        return self.type not in ("echo", "exec") or self.preset is not None or self.input == "json"

    def __hash__(self) -> int:
        """Leaves out the dicts, which have no hash. Agent configurations are keys of the runtimes built for them."""
        return hash((self.type, self.command, self.input, self.output, self.preset))


class AgentConfig(Table, frozen=True):
    """One agent, with `agents.defaults` filled in. `workspace` None: a folder in the store."""

    id: AgentId
    runtime: RuntimeConfig
    name: Word | None = None
    default: bool = False
    workspace: Path | None = None
    model: Word | None = None
    sandbox: SandboxConfig = SandboxConfig()
    subagents: SubagentsConfig = SubagentsConfig()


class AgentDefaults(Table, frozen=True):
    """`queue_ttl_seconds` is how long a run waits for its attached agent; `run_timeout_seconds` 0: no limit."""

    max_concurrent: _Share = 4
    queue_ttl_seconds: Seconds = 300
    run_timeout_seconds: Seconds = 0
    model: Word | None = None
    thinking: Thinking | None = None
    workspace: Path | None = None
    subagents: SubagentsConfig = SubagentsConfig()
    sandbox: SandboxConfig = SandboxConfig()


class AgentsConfig(Table, frozen=True):
    defaults: AgentDefaults = AgentDefaults()
    list: tuple[AgentConfig, ...] = (AgentConfig(id="main", runtime=RuntimeConfig(type="echo")),)
