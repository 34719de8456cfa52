"""The configuration: every key, default and limit, as frozen structs, and how they are loaded from the file.

Attributes are the documented keys in snake_case. Reads one TOML file and never writes it; does not know what the daemon
does with a value. Source: cli.md, "Configuration".
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from sessiond.config import rules as config_rules
from sessiond.config import trust as config_trust
from sessiond.config.agents import (
    AgentConfig,
    AgentDefaults,
    AgentId,
    AgentsConfig,
    Command,
    Preset,
    RuntimeConfig,
    SandboxConfig,
    Seconds,
    SubagentsConfig,
    Table,
    Thinking,
    Word,
)
from sessiond.config.link import ExportRule, LinkConfig, PeerConfig, check_link
from sessiond.config.notify import NotifyRule, applicable_rule_keys, check_rules
from sessiond.config.source import ConfigText, type_info
from sessiond.errors import ConfigError

__all__ = [
    "AgentConfig",
    "AgentDefaults",
    "AgentsConfig",
    "Config",
    "ExportRule",
    "LinkConfig",
    "NotifyRule",
    "PeerConfig",
    "Preset",
    "RuntimeConfig",
    "SandboxConfig",
    "SubagentsConfig",
    "Thinking",
    "default_path",
    "load",
    "parse",
    "to_document",
]

Visibility = Literal["self", "tree", "agent", "all"]

_Bytes = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
_WireBytes = Annotated[int, msgspec.Meta(ge=4096, le=2**30)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]

# No configuration is longer, and finding the line of an error in it would take seconds.
MAX_FILE_BYTES = 1 << 20


class SendMatch(Table, frozen=True):
    """Every given field must match. `key_prefix` may match the canonical key or the part of it after the agent."""

    channel: str | None = None
    chat_type: str | None = None
    key_prefix: str | None = None


class SendRule(Table, frozen=True):
    match: SendMatch
    action: Literal["allow", "deny"]


class SendPolicyConfig(Table, frozen=True):
    default: Literal["allow", "deny"] = "allow"
    rules: tuple[SendRule, ...] = ()


class ReplyBackConfig(Table, frozen=True):
    max_ping_pong_turns: Annotated[int, msgspec.Meta(ge=0, le=5)] = 5


class ResetConfig(Table, frozen=True):
    """`idle_minutes` 0: never. `at_hour` is local time, for mode `daily`."""

    mode: Literal["idle", "daily"] = "idle"
    idle_minutes: Seconds = 0
    at_hour: Annotated[int, msgspec.Meta(ge=0, le=23)] = 4


class SessionConfig(Table, frozen=True):
    main_key: Annotated[
        str, msgspec.Meta(pattern=r"\A[a-z0-9][a-z0-9._-]{0,63}\Z", description="a word of a-z, 0-9, . _ and -")
    ] = "main"
    scope: Literal["per-sender", "global"] = "per-sender"
    send_policy: SendPolicyConfig = SendPolicyConfig()
    agent_to_agent: ReplyBackConfig = ReplyBackConfig()
    reset: ResetConfig = ResetConfig()


class SessionToolsConfig(Table, frozen=True):
    """`send_visibility` None: the same as `visibility`. Matches of the `redact_patterns` are masked."""

    visibility: Visibility = "tree"
    send_visibility: Visibility | None = None
    redact: bool = True
    redact_patterns: tuple[Word, ...] = ()


class AgentToAgentConfig(Table, frozen=True):
    """`allow` are patterns of agent ids; an empty list allows nothing even if `enabled`."""

    enabled: bool = False
    allow: tuple[Word, ...] = ()


class AttachmentsConfig(Table, frozen=True):
    enabled: bool = True
    max_files: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 50
    max_file_bytes: _Bytes = 1_048_576
    max_total_bytes: _Bytes = 5_242_880
    retain_on_session_keep: bool = False


class SpawnToolConfig(Table, frozen=True):
    attachments: AttachmentsConfig = AttachmentsConfig()


class ToolAllowConfig(Table, frozen=True):
    """The session tools that sub-agents may use; by default none."""

    allow: tuple[Word, ...] = ()


class SubagentToolsConfig(Table, frozen=True):
    tools: ToolAllowConfig = ToolAllowConfig()


# Not "camel": `sessions_spawn` keeps the tool's own name.
class ToolsConfig(Table, frozen=True, rename={"agent_to_agent": "agentToAgent"}):
    sessions: SessionToolsConfig = SessionToolsConfig()
    agent_to_agent: AgentToAgentConfig = AgentToAgentConfig()
    sessions_spawn: SpawnToolConfig = SpawnToolConfig()
    subagents: SubagentToolsConfig = SubagentToolsConfig()


class HttpConfig(Table, frozen=True):
    listen: str | None = None
    allowed_origins: tuple[str, ...] = ()

    def address(self) -> tuple[str, int] | None:
        """`(host, port)` to listen on; None: HTTP is off."""
        return None if self.listen is None else config_rules.listen_address(self.listen)


class ChannelConfig(Table, frozen=True):
    command: Command


class Price(Table, frozen=True):
    """US dollars per million tokens. Cached tokens without a price of their own cost as much as input."""

    input: Seconds
    output: Seconds
    cache_read: Seconds | None = None
    cache_write: Seconds | None = None


class ModelsConfig(Table, frozen=True):
    """An empty `allow` allows every model."""

    allow: tuple[Word, ...] = ()
    pricing: dict[str, Price] = {}


class LimitsConfig(Table, frozen=True):
    max_frame_bytes: _WireBytes = 16 * 2**20
    max_pre_auth_frame_bytes: _WireBytes = 64 * 2**10
    # 512 stays well below the recursion limit of the JSON and CBOR readers.
    max_nesting: Annotated[int, msgspec.Meta(ge=8, le=512)] = 64
    max_record_bytes: _WireBytes = 8 * 2**20
    max_connections: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 256
    max_in_flight: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 64
    max_queued_events: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 1024
    first_message_seconds: _Positive = 30
    max_hops: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    messages_per_minute: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = 30


class StoreConfig(Table, frozen=True):
    durability: Literal["sync", "os"] = "sync"
    watcher: Literal["auto", "inotify", "watchfiles"] = "auto"


class WatchConfig(Table, frozen=True):
    """How writes of other programs are noticed. `auto` polls file systems that do not report them (FUSE, NFS ...)."""

    backend: Literal["auto", "inotify", "watchfiles", "polling"] = "auto"


class DeliveryConfig(Table, frozen=True):
    """`retry_seconds` are the waits before each retry; the last one repeats until `give_up_minutes` have passed."""

    retry_seconds: Annotated[tuple[_Positive, ...], msgspec.Meta(min_length=1)] = (5, 10, 20, 60)
    give_up_minutes: Seconds = 30


class SourceConfig(Table, frozen=True):
    """One program's sessions. `path` None: where the program puts them. `enabled` None: when the folder is there."""

    path: Path | None = None
    enabled: bool | None = None


class SourcesConfig(Table, frozen=True):
    """The sessions of other programs that are shown beside our own. `keep` saves files that a program deletes."""

    enabled: bool = True
    keep: bool = False
    claude: SourceConfig = SourceConfig()
    codex: SourceConfig = SourceConfig()
    gemini: SourceConfig = SourceConfig()
    pi: SourceConfig = SourceConfig()
    opencode: SourceConfig = SourceConfig()

    def source(self, name: str) -> SourceConfig:
        """The settings of one program."""
        found = getattr(self, name)
        assert isinstance(found, SourceConfig)
        return found


class AcpConfig(Table, frozen=True):
    """`default_agent` is the agent of spawns with `runtime: "acp"` that name none."""

    default_agent: AgentId | None = None


class SearchConfig(Table, frozen=True):
    """The index that makes searches quick. `budget` is how much of a core building it may take."""

    index: bool = True
    budget: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1


class Config(Table, frozen=True):
    """The whole configuration. `Config()` is that of an empty file."""

    session: SessionConfig = SessionConfig()
    tools: ToolsConfig = ToolsConfig()
    agents: AgentsConfig = AgentsConfig()
    http: HttpConfig = HttpConfig()
    channels: dict[AgentId, ChannelConfig] = {}
    models: ModelsConfig = ModelsConfig()
    limits: LimitsConfig = LimitsConfig()
    store: StoreConfig = StoreConfig()
    watch: WatchConfig = WatchConfig()
    delivery: DeliveryConfig = DeliveryConfig()
    sources: SourcesConfig = SourcesConfig()
    search: SearchConfig = SearchConfig()
    acp: AcpConfig = AcpConfig()
    notify: tuple[NotifyRule, ...] = ()
    link: LinkConfig = LinkConfig()

    def default_agent(self) -> str:
        """The id of the agent with `default = true`, else of the first."""
        return next((agent.id for agent in self.agents.list if agent.default), self.agents.list[0].id)

    def agent(self, agent_id: str) -> AgentConfig | None:
        """The configured agent with this id."""
        return next((agent for agent in self.agents.list if agent.id == agent_id), None)

    def machine(self, name: str) -> PeerConfig | None:
        """The other machine with this name. Each of them is an agent as well (machines.md, "Sending")."""
        return next((peer for peer in self.link.peers if peer.name == name), None)


def default_path() -> Path:
    """The default path of the configuration: `$XDG_CONFIG_HOME/sessiond/config.toml`."""
    from platformdirs.unix import Unix

    return Unix("sessiond").user_config_path / "config.toml"


def load(path: Path | None = None) -> Config:
    """The configuration in `path`, or in `default_path()`, which need not exist.

    ConfigError names file, line, key and what would be right. It is for the person who starts the daemon.
    """
    file = path or default_path()
    name = _tilde(file)
    try:
        # A pipe that a shell passes as a descriptor (`<(...)`) is read to its end. A FIFO in a folder may have no
        # writer, and opening it would block for ever.
        handed_over = file.parent in (Path("/dev/fd"), Path("/proc/self/fd"))
        flags = os.O_RDONLY | os.O_CLOEXEC | (0 if handed_over else os.O_NONBLOCK)
        with open(os.open(file, flags), "rb") as stream:
            if not handed_over and stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
                raise ConfigError(f"{name}: this is a pipe, not a regular file")
            config_trust.check_file(file, stream.fileno(), name)
            raw = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if path is None:
            return Config()
        raise ConfigError(f"{name}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{name}: the file is over {MAX_FILE_BYTES} bytes long, which is no configuration")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: the file is not UTF-8 text") from None
    return parse(text, name)


def parse(text: str, name: str = "config.toml") -> Config:
    """The configuration in a TOML text. `name` is the file name in errors. ConfigError as in `load`."""
    source = ConfigText(name, text)
    source.check(type_info(Config))
    config_rules.check(source)
    check_rules(source, source.data.get("notify", []))
    check_link(source, source.data.get("link", {}), source.data.get("agents", {}))
    data = config_rules.inherit(source.data, default_agent={"id": "main", "runtime": {"type": "echo"}})
    return msgspec.convert(data, Config, dec_hook=_decode)


def to_document(config: Config) -> dict[str, Any]:
    """The whole configuration as plain JSON values under the documented names, without what is not set.

    A runtime has the keys of its type only, and the agents that stand for machines are left out, so that the document
    is a configuration as well.
    """
    found = msgspec.to_builtins(config, enc_hook=str)
    assert isinstance(found, dict)
    found["agents"]["list"] = [agent for agent in found["agents"]["list"] if config.machine(agent["id"]) is None]
    for agent in found["agents"]["list"]:
        agent["runtime"] = config_rules.applicable_keys(agent["runtime"])
    found["notify"] = [applicable_rule_keys(rule) for rule in found["notify"]]
    return _without_none(found)


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return _without_none(value)
        return [strip(item) for item in value] if isinstance(value, list | tuple) else value

    return {key: strip(value) for key, value in table.items() if value is not None}


def _decode(kind: type, value: Any) -> Any:
    """Decode the paths of the file. `rules.check` has verified that they are absolute."""
    return config_rules.expand(value) if kind is Path else value


def _tilde(path: Path) -> str:
    try:
        return f"~/{path.absolute().relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)
