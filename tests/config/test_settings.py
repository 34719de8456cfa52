"""The configuration file: the defaults without one, the meaning of each key, and the errors for a bad one."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rows import check_each
from support.sampling import amount

from sessiond.config.settings import (
    AgentConfig,
    AgentsConfig,
    Config,
    RuntimeConfig,
    SandboxConfig,
    SubagentsConfig,
    load,
    parse,
    to_document,
)
from sessiond.config.source import line_of
from sessiond.errors import ConfigError

# Every key in docs/, with its documented default.
DOCUMENTED_DEFAULTS: dict[str, Any] = {
    "session": {
        "mainKey": "main",
        "scope": "per-sender",
        "sendPolicy": {"default": "allow", "rules": []},
        "agentToAgent": {"maxPingPongTurns": 5},
        "reset": {"mode": "idle", "idleMinutes": 0, "atHour": 4},
    },
    "tools": {
        "sessions": {"visibility": "tree", "redact": True, "redactPatterns": []},
        "agentToAgent": {"enabled": False, "allow": []},
        "sessions_spawn": {
            "attachments": {
                "enabled": True,
                "maxFiles": 50,
                "maxFileBytes": 1_048_576,
                "maxTotalBytes": 5_242_880,
                "retainOnSessionKeep": False,
            }
        },
        "subagents": {"tools": {"allow": []}},
    },
    "agents": {
        "defaults": {
            "maxConcurrent": 4,
            "queueTtlSeconds": 300,
            "runTimeoutSeconds": 0,
            "subagents": {
                "maxConcurrent": 8,
                "maxSpawnDepth": 1,
                "maxChildrenPerAgent": 5,
                "runTimeoutSeconds": 0,
                "archiveAfterMinutes": 60,
                "announce": "agent",
                "wakeRequester": True,
                "allowAgents": [],
            },
            "sandbox": {"mode": "off", "sessionToolsVisibility": "spawned", "network": True, "readOnly": []},
        },
        "list": [
            {
                "id": "main",
                "default": False,
                "runtime": {"type": "echo"},
                "sandbox": {"mode": "off", "sessionToolsVisibility": "spawned", "network": True, "readOnly": []},
                "subagents": {
                    "maxConcurrent": 8,
                    "maxSpawnDepth": 1,
                    "maxChildrenPerAgent": 5,
                    "runTimeoutSeconds": 0,
                    "archiveAfterMinutes": 60,
                    "announce": "agent",
                    "wakeRequester": True,
                    "allowAgents": [],
                },
            }
        ],
    },
    "http": {"allowedOrigins": []},
    "channels": {},
    "models": {"allow": [], "pricing": {}},
    "limits": {
        "maxFrameBytes": 16_777_216,
        "maxPreAuthFrameBytes": 65_536,
        "maxNesting": 64,
        "maxRecordBytes": 8_388_608,
        "maxConnections": 256,
        "maxInFlight": 64,
        "maxQueuedEvents": 1024,
        "firstMessageSeconds": 30,
        "maxHops": 16,
        "messagesPerMinute": 30,
    },
    "store": {"durability": "sync", "watcher": "auto"},
    "watch": {"backend": "auto"},
    "delivery": {"retrySeconds": [5, 10, 20, 60], "giveUpMinutes": 30},
    "sources": {"enabled": True, "keep": False, "claude": {}, "codex": {}, "gemini": {}, "pi": {}, "opencode": {}},
    "search": {"index": True, "budget": 0.1},
    "acp": {},
    "notify": [],
    "link": {"encrypt": False, "stream": "X", "peers": []},
}
# The defaults of a runtime with type = "acp".
ACP_DEFAULTS: dict[str, Any] = {
    "type": "acp",
    "env": {},
    "permissions": "ask",
    "permissionRules": {},
    "permissionTimeoutSeconds": 0,
    "idleSeconds": 7200,
    "maxSessions": 8,
    "startSeconds": 60,
    "graceSeconds": 5,
}

# The example in docs/, with every key set to a value other than its default.
EVERY_KEY = """\
[session]
mainKey = "home"
scope = "global"
sendPolicy.default = "deny"
sendPolicy.rules = [ { match = { channel = "discord", chatType = "group", keyPrefix = "cron:" }, action = "allow" } ]
agentToAgent = { maxPingPongTurns = 0 }
reset = { mode = "daily", idleMinutes = 0.5, atHour = 23 }

[tools.sessions]
visibility = "all"
sendVisibility = "self"
redact = false
redactPatterns = ["x+"]
[tools.agentToAgent]
enabled = true
allow = ["*"]
[tools.sessions_spawn.attachments]
enabled = false
maxFiles = 1
maxFileBytes = 2
maxTotalBytes = 3
retainOnSessionKeep = true
[tools.subagents.tools]
allow = ["sessions_send"]

[agents.defaults]
maxConcurrent = 1
queueTtlSeconds = 0.25
runTimeoutSeconds = 1
model = "small"
thinking = "low"
workspace = "/srv/agents"
[agents.defaults.subagents]
maxConcurrent = 2
maxSpawnDepth = 5
maxChildrenPerAgent = 3
runTimeoutSeconds = 4.5
archiveAfterMinutes = 0
announce = "reply"
wakeRequester = false
model = "tiny"
thinking = "off"
allowAgents = ["*"]
[agents.defaults.sandbox]
mode = "all"
sessionToolsVisibility = "all"
network = false
memoryMaxBytes = 1073741824
maxProcesses = 100
readOnly = ["/opt/agent"]

[[agents.list]]
id = "coder"
runtime = { type = "exec", preset = "claude", env = { LANG = "C" } }
[[agents.list]]
id = "bc"
name = "Calculator"
default = true
workspace = "~/sums"
model = "none"
sandbox = { mode = "off" }
subagents = { allowAgents = ["coder"], maxSpawnDepth = 2 }
runtime = { type = "exec", command = ["bc", "-l"], input = "json", output = "jsonl" }
[[agents.list]]
id = "acp-1"
[agents.list.runtime]
type = "acp"
preset = "opencode"
command = ["/opt/opencode", "--pure"]
env = { HOME = "{workspace}" }
permissions = "allow"
permissionRules = { read = "allow", edit = "ask", switch_mode = "deny" }
permissionTimeoutSeconds = 1.5
idleSeconds = 0
maxSessions = 1
startSeconds = 0.5
graceSeconds = 0
authenticate = "api-key"

[search]
index = false
budget = 0.5

[acp]
defaultAgent = "acp-1"

[[notify]]
when = ["waiting"]
agents = ["coder", "claude"]
command = ["notify-send", "{title}", "{text}", "{body}"]
body = true

[[notify]]
when = ["error", "done"]
agents = ["*"]
url = "https://ntfy.example/topic"
format = "text"
headersFile = "/srv/headers"
body = false

[http]
listen = "localhost:7433"
allowedOrigins = ["https://example.org", "vscode-webview://abc"]
[channels.desktop]
command = ["notify-send", "{title}", "{text}"]
[models]
allow = ["small"]
pricing."a.b" = { input = 3.0, output = 15, cacheRead = 0.3, cacheWrite = 3.75 }
[limits]
maxFrameBytes = 4096
maxPreAuthFrameBytes = 4096
maxNesting = 8
maxRecordBytes = 4096
maxConnections = 1
maxInFlight = 1
maxQueuedEvents = 1
firstMessageSeconds = 0.1
maxHops = 1
messagesPerMinute = 1
[store]
durability = "os"
watcher = "watchfiles"

[watch]
backend = "polling"
[delivery]
retrySeconds = [0.1]
giveUpMinutes = 0

[sources]
enabled = false
keep = true
claude = { path = "/srv/claude", enabled = false }
codex = { enabled = true }
gemini.path = "/srv/gemini"
pi.enabled = true
opencode.enabled = false

[link]
name = "lap"
server = "tls://nats.example:4222"
ca = "/srv/ca.pem"
certificate = "/srv/lap.pem"
key = "/srv/lap.key"
nkeySeed = "/srv/lap.nk"
encrypt = true
stream = "machines"
[[link.peers]]
name = "mars"
key = "AAAABBBBCCCCDDDDEEEE"
export = [{ agents = ["coder"], labels = ["pub-*"], cwd = ["/srv/*"] }]
send = ["agent:coder:*"]
spawn = ["coder"]
"""


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return str(caught.value)


def test_without_a_file_every_documented_default_holds() -> None:
    assert to_document(Config()) == DOCUMENTED_DEFAULTS
    assert parse("") == Config()


def test_without_a_file_there_is_one_echo_agent_called_main() -> None:
    config = Config()
    assert config.agents.list == (AgentConfig(id="main", runtime=RuntimeConfig(type="echo")),)
    assert config.default_agent() == "main"
    assert config.agent("main") == config.agents.list[0]
    assert config.agent("other") is None


def test_every_documented_key_can_be_set_to_another_value() -> None:
    config = parse(EVERY_KEY)
    inherited = {
        "maxConcurrent": 2,
        "maxSpawnDepth": 5,
        "maxChildrenPerAgent": 3,
        "runTimeoutSeconds": 4.5,
        "archiveAfterMinutes": 0,
        "announce": "reply",
        "wakeRequester": False,
        "model": "tiny",
        "thinking": "off",
        "allowAgents": ["*"],
    }
    box = {
        "mode": "all",
        "sessionToolsVisibility": "all",
        "network": False,
        "memoryMaxBytes": 2**30,
        "maxProcesses": 100,
        "readOnly": ["/opt/agent"],
    }
    runtime = {"type": "exec", "env": {}}
    written = tomllib.loads(EVERY_KEY)
    written["agents"]["list"] = [
        {
            "id": "coder",
            "default": False,
            "workspace": "/srv/agents",
            "model": "small",
            "runtime": runtime | {"preset": "claude", "env": {"LANG": "C"}},
            "sandbox": box,
            "subagents": inherited,
        },
        {
            "id": "bc",
            "name": "Calculator",
            "default": True,
            "workspace": str(Path.home() / "sums"),
            "model": "none",
            "runtime": runtime | {"command": ["bc", "-l"], "input": "json", "output": "jsonl"},
            "sandbox": box | {"mode": "off"},
            "subagents": inherited | {"allowAgents": ["coder"], "maxSpawnDepth": 2},
        },
        {
            "id": "acp-1",
            "default": False,
            "workspace": "/srv/agents",
            "model": "small",
            "runtime": written["agents"]["list"][2]["runtime"],
            "sandbox": box,
            "subagents": inherited,
        },
    ]
    assert to_document(config) == written
    assert config.default_agent() == "bc"
    assert config.http.address() == ("127.0.0.1", 7433)


def test_agent_configurations_are_hashable() -> None:
    first, again = parse(EVERY_KEY).agents.list, parse(EVERY_KEY).agents.list
    other = parse(EVERY_KEY.replace('LANG = "C"', 'LANG = "D"')).agents.list
    assert {agent: number for number, agent in enumerate(first)} == {
        agent: number for number, agent in enumerate(again)
    }
    assert other[0] not in dict.fromkeys(first)


def test_the_keys_of_acp_have_their_defaults_and_limits_and_are_for_that_type_only() -> None:
    def with_runtime(kind: str, rest: str) -> str:
        return f'[[agents.list]]\nid = "a"\nruntime.type = "{kind}"\nruntime.command = ["x"]\n{rest}'

    (agent,) = to_document(parse(with_runtime("acp", "")))["agents"]["list"]
    assert agent["runtime"] == {**ACP_DEFAULTS, "command": ["x"]}
    own = {
        "permissions": ("'deny'", "'prompt'"),
        "permissionRules": ("{ other = 'deny' }", "{ other = 'prompt' }"),
        "permissionTimeoutSeconds": ("0", "-1"),
        "idleSeconds": ("0", "-0.1"),
        "maxSessions": ("1024", "1025"),
        "startSeconds": ("0.1", "0"),
        "graceSeconds": ("0", "inf"),
        "authenticate": ("'a'", "''"),
    }
    assert set(own) == set(ACP_DEFAULTS) - {"type", "env"} | {"authenticate"}
    for key, (fitting, other) in own.items():
        parse(with_runtime("acp", f"runtime.{key} = {fitting}"))
        assert f"agents.list[0].runtime.{key}" in refusal(with_runtime("acp", f"runtime.{key} = {other}"))
        assert refusal(with_runtime("exec", f"runtime.{key} = {fitting}")) == (
            f'config.toml:5: agents.list[0].runtime.{key} is for type = "acp" only; this runtime is "exec"'
        )


def test_the_first_agent_is_the_default_if_none_is_marked() -> None:
    config = parse(
        '[[agents.list]]\nid = "b"\nruntime.type = "echo"\n[[agents.list]]\nid = "a"\nruntime.type = "attached"'
    )
    assert config.default_agent() == "b"


def test_agents_inherit_sandbox_and_subagents_key_by_key() -> None:
    config = parse(
        """
        [agents.defaults]
        sandbox = { mode = "non-main", network = false }
        subagents = { maxChildrenPerAgent = 2 }
        [[agents.list]]
        id = "a"
        runtime = { type = "echo" }
        sandbox = { network = true }
        subagents = { allowAgents = ["b"] }
        """
    )
    agent = config.agent("a")
    assert agent is not None
    assert agent.sandbox == SandboxConfig(mode="non-main", network=True)
    assert agent.subagents == SubagentsConfig(max_children_per_agent=2, allow_agents=("b",))


def test_the_built_in_echo_agent_inherits_the_defaults_too() -> None:
    config = parse('[agents.defaults]\nsandbox = { mode = "all" }')
    runtime = RuntimeConfig(type="echo")
    assert config.agents.list == (AgentConfig(id="main", runtime=runtime, sandbox=SandboxConfig(mode="all")),)
    assert config.agents.defaults.sandbox == SandboxConfig(mode="all")


@check_each(
    ("text", "sentence"),
    [
        (
            "[session]\n\nsendPolcy = 3",
            "config.toml:3: session.sendPolcy is not a known key; did you mean session.sendPolicy?",
        ),
        ("[sesion]\nscope = 1", "config.toml:1: sesion is not a known key; did you mean session?"),
        (
            "[limits]\nmax_nesting = 9",
            "config.toml:2: limits.max_nesting is not a known key; did you mean limits.maxNesting?",
        ),
        (
            "[session]\nmaxPingPongTurns = 3",
            "config.toml:2: session.maxPingPongTurns is not a known key; "
            "did you mean session.agentToAgent.maxPingPongTurns?",
        ),
        (
            "[store]\nqqq = 1",
            "config.toml:2: store.qqq is not a known key; known here: durability, watcher",
        ),
        (
            '[store]\n"a b\\u0007" = 1',
            'config.toml:2: store."a b\\u0007" is not a known key; known here: durability, watcher',
        ),
        (
            "[session.agentToAgent]\n# turns\nmaxPingPongTurns = 6",
            "config.toml:3: session.agentToAgent.maxPingPongTurns must be a whole number from 0 to 5, not 6",
        ),
        (
            "[agents.defaults]\nmaxConcurrent = true",
            "config.toml:2: agents.defaults.maxConcurrent must be a whole number from 1 to 1024, not true",
        ),
        (
            "[agents.defaults]\nmaxConcurrent = 2.0",
            "config.toml:2: agents.defaults.maxConcurrent must be a whole number from 1 to 1024, not 2.0",
        ),
        (
            "[delivery]\ngiveUpMinutes = nan",
            "config.toml:2: delivery.giveUpMinutes must be a number of at least 0, not nan",
        ),
        (
            "[delivery]\ngiveUpMinutes = 99999999999999999999999",
            "config.toml:2: delivery.giveUpMinutes must be a number of at least 0, not a number of over 64 bits",
        ),
        (
            "[delivery]\nretrySeconds = [1, 0]",
            "config.toml:2: delivery.retrySeconds[1] must be a number above 0, not 0",
        ),
        ("[delivery]\nretrySeconds = []", "config.toml:2: delivery.retrySeconds must not be empty"),
        (
            "[delivery]\nretrySeconds = 5",
            "config.toml:2: delivery.retrySeconds must be an array, and each item a number above 0, not 5",
        ),
        (
            '[watch]\nbackend = "poll"',
            'config.toml:2: watch.backend must be one of "auto", "inotify", "polling", "watchfiles", ',
        ),
        ('[store]\nwatcher = "poll"', 'config.toml:2: store.watcher must be one of "auto", "inotify", "watchfiles", '),
        ("[tools.sessions]\nredact = 0", "config.toml:2: tools.sessions.redact must be true or false, not 0"),
        ("agents = 3", "config.toml:1: agents must be a table, not 3"),
        (
            "[[agents.list]]\nid = 'a'",
            "config.toml:1: agents.list[0] needs runtime, which must be a table with type",
        ),
        (
            "[[agents.list]]\nid = 'Main'\nruntime.type = 'echo'",
            "config.toml:2: agents.list[0].id must be an id of a-z, 0-9, _ and -, at most 64 long, like code-review, "
            'not "Main"',
        ),
        (
            "[[agents.list]]\nid = 'a\\n'\nruntime.type = 'echo'",
            "config.toml:2: agents.list[0].id must be an id",
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime.type = 'echo'\n[[agents.list]]\nruntime.type = 'echo'\nid = 'a'",
            'config.toml:6: agents.list[1].id is "a" for a second time; every agent has its own id',
        ),
        (
            "[[agents.list]]\nid = 'a'\ndefault = true\nruntime.type = 'echo'\n"
            "[[agents.list]]\nid = 'b'\ndefault = true\nruntime.type = 'echo'",
            'config.toml:7: agents.list[1].default cannot be true as well: "a" is the default agent already',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'exec' }",
            'config.toml:3: agents.list[0].runtime needs a command or a preset, like command = ["my-agent"] '
            'or preset = "claude"',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'exec', preset = 'cloude' }",
            'config.toml:3: agents.list[0].runtime.preset must be one of "claude", "codex", "gemini", "opencode", "pi"',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'exec', preset = 'pi', output = 'text' }",
            'config.toml:3: agents.list[0].runtime.output comes with preset = "pi"; leave it out',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'echo', command = ['x'] }",
            'config.toml:3: agents.list[0].runtime.command is for type = "exec" or "acp" only; this runtime is "echo"',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'acp', command = ['x'], input = 'text' }",
            'config.toml:3: agents.list[0].runtime.input is for type = "exec" only; this runtime is "acp"',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'acp' }",
            'config.toml:3: agents.list[0].runtime needs a command or a preset, like command = ["my-agent", "--acp"] '
            'or preset = "claude"',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'acp', preset = 'pi' }",
            'config.toml:3: agents.list[0].runtime.preset has no ACP form for "pi", only for claude, codex, gemini, '
            'opencode: use type = "exec", or name a program that speaks ACP in command',
        ),
        (
            "[[agents.list]]\nid = 'a'\n[agents.list.runtime]\ntype = 'acp'\ncommand = ['x',\n'-m={model}']",
            "config.toml:5: agents.list[0].runtime.command[1] has {model}, but one process of this agent has many "
            "sessions; leave it out",
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'acp', command = ['x'], env = { A = '{runId}' } }",
            "config.toml:3: agents.list[0].runtime.env.A has {runId}, but",
        ),
        (
            "[[agents.list]]\nid = 'a'\n[agents.list.runtime]\ntype = 'acp'\npreset = 'codex'\n"
            "permissionRules = { read = 'allow', write = 'ask' }",
            "config.toml:6: agents.list[0].runtime.permissionRules.write is no good name: it must be one of "
            '"delete", "edit", "execute", "fetch", "move", "other", "read", "search", "switch_mode", "think"',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'acp', preset = 'codex', permissionRules = { read = 1 } }",
            'config.toml:3: agents.list[0].runtime.permissionRules.read must be one of "allow", "ask", "deny", not 1',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime.type = 'echo'\n[acp]\ndefaultAgent = 'a'",
            'config.toml:5: acp.defaultAgent must be an agent with type = "acp", not "a"; there is none',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'acp', preset = 'codex' }\n[acp]\ndefaultAgent = 'b'",
            'config.toml:5: acp.defaultAgent must be an agent with type = "acp", not "b"; these are: a',
        ),
        (
            "[acp]\ndefaultAgent = 'main'",
            'config.toml:2: acp.defaultAgent must be an agent with type = "acp", not "main"; there is none',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime = { type = 'exec', command = ['x'], env = { 'A=B' = '1' } }",
            'config.toml:3: agents.list[0].runtime.env."A=B" is no name that an environment can have',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime.type = 'echo'\nworkspace = 'here'",
            'config.toml:4: agents.list[0].workspace must be an absolute path or begin with "~/", not "here"',
        ),
        (
            "[[agents.list]]\nid = 'a'\nruntime.type = 'echo'\nsubagents.maxConcurrent = 3",
            "config.toml:4: agents.list[0].subagents.maxConcurrent is one number for all agents: "
            "set agents.defaults.subagents.maxConcurrent",
        ),
        (
            "[agents.defaults]\nworkspace = '~nobody-of-that-name/x'",
            "config.toml:2: agents.defaults.workspace must be an absolute path",
        ),
        (
            "[agents.defaults]\nsandbox.readOnly = ['/opt', 'opt']",
            'config.toml:2: agents.defaults.sandbox.readOnly[1] must be an absolute path or begin with "~/", not "opt"',
        ),
        (
            "[tools.sessions]\nredactPatterns = [\n  'a',\n  '(',\n]",
            "config.toml:2: tools.sessions.redactPatterns[1] is not a regular expression: missing ), "
            "unterminated subpattern at position 0",
        ),
        (
            "[http]\nallowedOrigins = ['https://example.org/']",
            'config.toml:2: http.allowedOrigins[0] must be an origin like "https://example.org", without a path',
        ),
        ("[channels.Desktop]\ncommand = ['x']", "config.toml:1: channels.Desktop is no good name: it must be an id"),
        ("[channels.desktop]\ncommand = ['']", "config.toml:2: channels.desktop.command[0] must be a text that is"),
        ("[a\n", "config.toml:1: this is not TOML: Expected ']' at the end of a table declaration"),
        ("a = 1\nb = [1,\n\n", "config.toml:4: this is not TOML: "),
        ("a = 1\na = 2", "config.toml:2: this is not TOML: Cannot overwrite a value"),
        ("a = " + "1" * 5000, "config.toml:1: this is not TOML: it has a number of too many digits"),
        ("a = " + "[" * 100_000, "config.toml: the file is nested too deeply"),
    ],
)
def test_a_bad_file_is_refused_with_line_key_and_the_expected_value(text: str, sentence: str) -> None:
    assert refusal(text).startswith(sentence)


@check_each(
    ("key", "lowest", "highest"),
    [
        ("session.agentToAgent.maxPingPongTurns", 0, 5),
        ("session.reset.atHour", 0, 23),
        ("agents.defaults.subagents.maxSpawnDepth", 1, 5),
        ("agents.defaults.subagents.maxChildrenPerAgent", 1, 1024),
        ("agents.defaults.subagents.maxConcurrent", 1, 1024),
        ("agents.defaults.maxConcurrent", 1, 1024),
        ("agents.defaults.sandbox.memoryMaxBytes", 2**20, 2**50),
        ("agents.defaults.sandbox.maxProcesses", 1, 2**22),
        ("tools.sessions_spawn.attachments.maxFiles", 0, 10_000),
        ("tools.sessions_spawn.attachments.maxFileBytes", 1, 2**40),
        ("tools.sessions_spawn.attachments.maxTotalBytes", 1, 2**40),
        ("limits.maxFrameBytes", 4096, 2**30),
        ("limits.maxPreAuthFrameBytes", 4096, 2**30),
        ("limits.maxRecordBytes", 4096, 2**30),
        ("limits.maxNesting", 8, 512),
        ("limits.maxConnections", 1, 65_536),
        ("limits.maxInFlight", 1, 65_536),
        ("limits.maxQueuedEvents", 1, 2**20),
        ("limits.maxHops", 1, 1024),
        ("limits.messagesPerMinute", 1, 10**6),
    ],
)
def test_numbers_are_accepted_up_to_their_limits_and_refused_beyond(key: str, lowest: int, highest: int) -> None:
    for good in (lowest, highest):
        assert isinstance(parse(f"{key} = {good}"), Config)
    for bad in (lowest - 1, highest + 1):
        assert refusal(f"{key} = {bad}") == (
            f"config.toml:1: {key} must be a whole number from {lowest} to {highest}, not {bad}"
        )


@check_each(
    ("text", "address"),
    [
        ("127.0.0.1:7433", ("127.0.0.1", 7433)),
        ("127.8.9.10:0", ("127.8.9.10", 0)),
        ("localhost:65535", ("127.0.0.1", 65535)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_http_listens_on_loopback_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse(f'http.listen = "{text}"').http.address() == address


@check_each(
    "text",
    [
        "0.0.0.0:80", "[::]:80", "192.168.1.1:80", "example.org:80", "127.0.0.1", ":80", "127.0.0.1:", "::1:80",
        "127.0.0.1:65536", "127.0.0.1:-1", "[127.0.0.1]:80", "[::1%lo]:80", "127.0.0.1:８0", "",
    ],
)  # fmt: skip
def test_http_listens_on_no_other_address(text: str) -> None:
    assert refusal(f'http.listen = "{text}"').startswith("config.toml:1: http.listen must be a loopback address")


def test_a_tilde_in_a_path_is_the_home_folder() -> None:
    config = parse('agents.defaults.workspace = "~/work"')
    assert config.agents.defaults.workspace == Path.home() / "work"
    assert config.agents.list[0].workspace == Path.home() / "work"


def test_an_empty_list_of_agents_is_the_same_as_none() -> None:
    assert parse("agents.list = []").agents == AgentsConfig()


def test_load_reads_the_file_and_names_it_in_errors(tmp_path: Path) -> None:
    file = tmp_path / "my config.toml"
    file.write_text('store.durability = "os"\n')
    assert load(file).store.durability == "os"
    file.write_text("\nstore.durabilty = 1\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == f"{file}:2: store.durabilty is not a known key; did you mean store.durability?"


def test_load_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "latin1.toml").write_bytes(b'# one\nname = "caf\xe9"\n')
    (tmp_path / "huge.toml").write_bytes(b"#" * (2**20 + 1))
    (tmp_path / "largest.toml").write_bytes(b"#" * 2**20)
    found = {}
    for name in ("absent.toml", "latin1.toml", "huge.toml", "."):
        with pytest.raises(ConfigError) as caught:
            load(tmp_path / name)
        found[name] = str(caught.value).removeprefix(str(tmp_path))
    assert found == {
        "absent.toml": "/absent.toml: there is no such file",
        "latin1.toml": "/latin1.toml:2: the file is not UTF-8 text",
        "huge.toml": "/huge.toml: the file is over 1048576 bytes long, which is no configuration",
        ".": ": cannot be read: Is a directory",
    }
    assert load(tmp_path / "largest.toml") == Config()


def test_the_default_path_follows_the_environment(tmp_path: Path) -> None:
    """Each case runs in its own process, because the environment belongs to the process."""
    code = "from sessiond.config.settings import *; print(default_path()); print(load().store.durability)"

    def run(**extra: str) -> list[str]:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | extra
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip().splitlines()

    (tmp_path / ".config/sessiond").mkdir(parents=True)
    (tmp_path / ".config/sessiond/config.toml").write_text("store.durability = 'os'")
    assert run() == [str(tmp_path / ".config/sessiond/config.toml"), "os"]
    assert run(XDG_CONFIG_HOME=str(tmp_path / "x")) == [str(tmp_path / "x/sessiond/config.toml"), "sync"]
    (tmp_path / ".config/sessiond/config.toml").write_text("\n\nstore.durability = 3")
    assert run()[-1].endswith('~/.config/sessiond/config.toml:3: store.durability must be one of "os", "sync", not 3')


def test_the_line_of_a_multi_line_statement_is_found() -> None:
    text = (
        "[session.sendPolicy]\n"
        "# the rules\n"
        "rules = [\n"
        '  { match = { channel = "a" }, action = "deny" },\n'
        '  { match = { channel = "b" }, action = "dney" },\n'
        "]\n"
        'default = "allow"\n'
    )
    assert refusal(text).startswith('config.toml:5: session.sendPolicy.rules[1].action must be one of "allow", "deny"')


def test_the_line_is_found_after_strings_that_look_like_keys() -> None:
    text = 'model = """\n[store]\ndurability = 1\n"""\n\n[store]\n# durability = 2\n\n  "durability" = 3\n'
    assert line_of(text, ("store", "durability")) == 9
    assert line_of(text, ("store",)) == 6
    assert line_of(text, ("model",)) == 1
    assert line_of(text, ("absent", "key")) == 1


@given(
    st.lists(
        st.sampled_from(["", "# note", "[t{}]", "k{} = 1", "k{} = [\n 1,\n]", 'k{} = """\nk0 = 2\n"""']), max_size=40
    )
)
def test_the_reported_line_is_the_one_on_which_the_statement_begins(shapes: list[str]) -> None:
    """The expected lines are counted while the text is put together."""
    statements = [shape.format(number) for number, shape in enumerate(shapes)]
    table: tuple[str, ...] = ()
    line = 1
    wanted = {}
    for number, statement in enumerate(statements):
        if statement.startswith("["):
            table = (f"t{number}",)
        if statement.startswith("k"):
            wanted[(*table, f"k{number}")] = line
        line += statement.count("\n") + 1
    text = "\n".join(statements)
    assert {path: line_of(text, path) for path in wanted} == wanted


_KEYS = sorted({word for word in EVERY_KEY.replace(".", " ").replace('"', " ").split() if word.isidentifier()})
_VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates() | st.times() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS) | st.text(), inner, max_size=3),
    max_leaves=12,
)


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str():
            return '"' + "".join(f"\\U{ord(char):08X}" for char in value if not 0xD800 <= ord(char) < 0xE000) + '"'
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value.items()) + "}"
        case _:
            return value.isoformat()  # type: ignore[attr-defined]


def _check_parses_or_is_refused(text: str) -> None:
    said = ""
    try:
        parse(text)
    except ConfigError as error:
        said = str(error)
    assert not said or (said.startswith("config.toml:") and "\n" not in said)


@given(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4))
@settings(max_examples=amount(300, 20), deadline=None)
def test_any_toml_is_accepted_or_raises_config_error(data: dict[str, Any]) -> None:
    _check_parses_or_is_refused("\n".join(f"{name} = {_toml(value)}" for name, value in data.items()))


@given(st.text() | st.lists(st.sampled_from([*_KEYS, *"[]{}=\"'.,# \n", "3", "true"]), max_size=60).map("".join))
@settings(max_examples=amount(300, 20), deadline=None)
def test_any_text_is_accepted_or_raises_config_error(text: str) -> None:
    _check_parses_or_is_refused(text)


@given(
    st.integers(min_value=0, max_value=EVERY_KEY.count("\n")),
    st.integers(min_value=0, max_value=EVERY_KEY.count("\n")),
    _VALUES,
)
@settings(max_examples=amount(300, 20), deadline=None)
def test_a_valid_file_with_one_value_replaced_is_accepted_or_refused(line: int, gone: int, value: object) -> None:
    lines = EVERY_KEY.splitlines()
    key, equals, _ = lines[min(line, len(lines) - 1)].partition(" = ")
    lines[min(line, len(lines) - 1)] = f"{key}{equals}{_toml(value)}" if equals else key
    if gone < len(lines) and gone != line:
        del lines[gone]
    _check_parses_or_is_refused("\n".join(lines))


@check_each(
    ("runtime", "hears"),
    [
        ({"type": "echo"}, False),
        ({"type": "exec", "command": ("wc",)}, False),
        ({"type": "exec", "command": ("wc",), "output": "jsonl"}, False),
        ({"type": "exec", "command": ("x",), "input": "json"}, True),
        ({"type": "exec", "preset": "claude"}, True),
        ({"type": "attached"}, True),
        ({"type": "acp"}, True),
    ],
)
def test_only_runtimes_that_are_told_the_step_of_a_run_get_announce_steps(runtime: dict[str, Any], hears: bool):
    assert RuntimeConfig(**runtime).understands_steps is hears
