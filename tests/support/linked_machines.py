"""A daemon that is linked with two machines, and programs that play its link and the machines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.in_process import Connection, InProcessDaemon, in_process_daemon

AGENTS = """
[store]
durability = "os"
[agents.defaults.subagents]
maxChildrenPerAgent = 1024
[[agents.list]]
id = "main"
runtime = { type = "echo" }
subagents = { allowAgents = ["mars"] }
[[agents.list]]
id = "ops"
runtime = { type = "echo" }
"""
LINK = """
[link]
name = "lap"
server = "nats://127.0.0.1:4222"
[[link.peers]]
name = "mars"
key = "AAAABBBBCCCCDDDDEEEE"
{rule}
[[link.peers]]
name = "venus"
key = "FFFFGGGGHHHHIIIIJJJJ"
"""
RULE = 'send = ["agent:ops:*"]\nspawn = ["op*"]'
# So that agents here may send to machines at all.
OPEN = '[tools.sessions]\nvisibility = "all"\n[tools.agentToAgent]\nenabled = true\nallow = ["*"]\n'


def linked_config(rule: str = RULE, more: str = "") -> str:
    return more + AGENTS + LINK.format(rule=rule)


@asynccontextmanager
async def linked_daemon(
    folder: Path, rule: str = RULE, more: str = ""
) -> AsyncIterator[tuple[InProcessDaemon, Connection]]:
    """The parts, and the owner's connection."""
    async with in_process_daemon(folder, linked_config(rule, more)) as parts, parts.connect() as owner:
        yield parts, owner


@asynccontextmanager
async def machine_connection(
    parts: InProcessDaemon, owner: Connection, *scopes: str, name: str = "mars"
) -> AsyncIterator[Connection]:
    """A connection with the token that the link has for a machine."""
    minted = await owner.call("tokens.mint", scopes=scopes or ("list", "read", "send", "spawn"), agentId=name)
    async with parts.connect(parts.services.tokens.caller(minted["token"])) as connection:
        yield connection


def user_messages(history: dict[str, Any]) -> list[dict[str, Any]]:
    return [message for message in history["messages"] if message["role"] == "user"]
