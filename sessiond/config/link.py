"""The `[link]` table: this machine, the server between machines, and what each other machine gets and may do here.

Structs with their defaults and limits, and the rules that types cannot express. Connects to nothing: the daemon never
does, `sessiond link` does. Source: machines.md, "Configuration".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from sessiond.config.agents import AgentsConfig, Table, Word
from sessiond.config.source import ConfigText, KeyPath, show
from sessiond.machine_names import MACHINE_NAME

# Each machine has consumers on the server, a token, and an agent that may be attached here.
MAX_PEERS = 128
# The files of the table. `rules.py` checks that their paths are absolute.
PATHS = ("ca", "certificate", "key", "nkeySeed")

# Where a server listens whose address names no port.
DEFAULT_PORT = 4222

_SERVER = re.compile(r"(?:nats|tls)://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?/?")

# Stricter than an agent's id, because it is a word of the subjects on the server as well.
MachineName = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"\A(?:{MACHINE_NAME.pattern})\Z",
        description="a name of a-z, 0-9 and -, at most 32 long, like build-host",
    ),
]
_PublicKey = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A[A-Za-z0-9+/=_.:-]{16,512}\Z",
        description='the line that "sessiond link identity" prints on that machine',
    ),
]
_StreamName = Annotated[
    str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,32}\Z", description="a name of A-Z, a-z, 0-9, _ and -")
]


class ExportRule(Table, frozen=True):
    """Which sessions a machine gets: those that match all fields that are given. `*` stands for any text."""

    agents: tuple[Word, ...] = ()
    labels: tuple[Word, ...] = ()
    cwd: tuple[Word, ...] = ()


class PeerConfig(Table, frozen=True):
    """Another machine. `export` is what it gets, besides what the owner shares; `send` are patterns of the session keys
    to which it may send here, `spawn` patterns of the agents that it may spawn. Empty: nothing, nobody.
    """

    name: MachineName
    key: _PublicKey
    export: tuple[ExportRule, ...] = ()
    send: tuple[Word, ...] = ()
    spawn: tuple[Word, ...] = ()


class LinkConfig(Table, frozen=True):
    """`name` is this machine's. `ca`, `certificate` and `key` are for TLS, `nkey_seed` is the file with an nkey."""

    name: MachineName | None = None
    server: Word | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    nkey_seed: Path | None = None
    encrypt: bool = False
    stream: _StreamName = "X"
    peers: tuple[PeerConfig, ...] = ()


def check_link(source: ConfigText, link: dict[str, Any], agents: dict[str, Any]) -> None:
    """Raise ConfigError for the first mistake in the table, whose types are right."""
    server = link.get("server")
    if server is not None:
        _check_server(source, server)
    for one, other in (("certificate", "key"), ("key", "certificate")):
        if one in link and other not in link:
            raise source.error(("link", one), f"needs link.{other} beside it")
    for name in ("ca", "certificate"):
        if name in link and not (server or "").startswith("tls://"):
            raise source.error(("link", name), 'is for a server with TLS: link.server must begin with "tls://"')
    peers = link.get("peers", [])
    for name in ("name", "server"):
        if peers and name not in link:
            example = '"lap"' if name == "name" else '"tls://nats.example:4222"'
            raise source.error(("link", "peers", 0), f"needs link.{name} as well, like {name} = {example}")
    _check_peers(source, link, peers, {agent["id"] for agent in agents.get("list", [])} or _default_ids())


def _default_ids() -> set[str]:
    """The agents of a file that names none."""
    return {agent.id for agent in AgentsConfig().list}


def _check_peers(source: ConfigText, link: dict[str, Any], peers: list[dict[str, Any]], agent_ids: set[str]) -> None:
    if len(peers) > MAX_PEERS:
        raise source.error(
            ("link", "peers", MAX_PEERS), f"is one too many: there may be {MAX_PEERS} [[link.peers]] tables"
        )
    names: set[str] = set()
    keys: dict[str, str] = {}
    for index, peer in enumerate(peers):
        path: KeyPath = ("link", "peers", index)
        name = peer["name"]
        if name == link["name"]:
            raise source.error((*path, "name"), f"is {show(name)}, which is the name of this machine")
        if name in names:
            raise source.error((*path, "name"), f"is {show(name)} for a second time; every machine has its own name")
        if name in agent_ids:
            raise source.error(
                (*path, "name"),
                f"is {show(name)}, which is an agent here; a machine is an agent as well, so give one of them another "
                "name",
            )
        names.add(name)
        if peer["key"] in keys:
            raise source.error((*path, "key"), f"is the key of {show(keys[peer['key']])} already")
        keys[peer["key"]] = name
        for number, rule in enumerate(peer.get("export", ())):
            if not any(rule.values()):
                raise source.error(
                    (*path, "export", number), 'has no field that must match; to export all write agents = ["*"]'
                )


def server_port(address: str) -> int | None:
    """The port in the address of a NATS server, None where that is no such address."""
    found = _SERVER.fullmatch(address)
    port = int(found[1] or DEFAULT_PORT) if found is not None else 0
    return port if 0 < port < 65536 else None


def _check_server(source: ConfigText, server: str) -> None:
    if server_port(server) is None:
        # Without the address itself, which may have a password in it.
        raise source.error(
            ("link", "server"),
            'must be the address of a NATS server like "tls://nats.example:4222" or "nats://127.0.0.1:4222", without a'
            " password: who this machine is, certificate and key say, or nkeySeed",
        )
