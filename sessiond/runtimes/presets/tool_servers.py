"""How `sessiond mcp` is registered in agent programs, and whether it is. Reads their settings; starts nothing."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

SERVER = "sessiond"


class ToolServerProgram(msgspec.Struct, frozen=True, kw_only=True):
    """`add`, `remove` and `allow` are arguments of the program; `{sessiond}` stands for the path of `sessiond`.

    `settings` is the file in the home directory that lists the servers under `table`. If the environment variable
    `moved_by` is set, it is the file `moved_to` in the folder that this variable names.
    """

    add: tuple[str, ...]
    remove: tuple[str, ...]
    settings: str
    table: str
    moved_by: str
    moved_to: str
    # Arguments of an agent's command that allow the tools: in a run nobody can be asked, and unapproved tools are
    # denied.
    allow: tuple[str, ...] = ()


PROGRAMS: dict[str, ToolServerProgram] = {
    "claude": ToolServerProgram(
        add=("mcp", "add", "--scope", "user", SERVER, "--", "{sessiond}", "mcp"),
        remove=("mcp", "remove", "--scope", "user", SERVER),
        settings=".claude.json",
        table="mcpServers",
        moved_by="CLAUDE_CONFIG_DIR",
        moved_to=".claude.json",
        allow=("--allowedTools", "mcp__sessiond__*"),
    ),
    "codex": ToolServerProgram(
        add=("mcp", "add", SERVER, "--", "{sessiond}", "mcp"),
        remove=("mcp", "remove", SERVER),
        settings=".codex/config.toml",
        table="mcp_servers",
        moved_by="CODEX_HOME",
        moved_to="config.toml",
        # All settings of the server: Codex does not start with a setting for a server that is not in its own file.
        allow=(
            "-c",
            'mcp_servers.sessiond={command="{sessiond}", args=["mcp"], default_tools_approval_mode="approve", '
            'env_vars=["SESSIOND_SOCKET", "SESSIOND_TOKEN_FILE"]}',
        ),
    ),
    "gemini": ToolServerProgram(
        add=("mcp", "add", "--scope", "user", SERVER, "{sessiond}", "mcp"),
        remove=("mcp", "remove", "--scope", "user", SERVER),
        settings=".gemini/settings.json",
        table="mcpServers",
        moved_by="GEMINI_CLI_HOME",
        moved_to=".gemini/settings.json",
    ),
}


def has_tool_server(program: ToolServerProgram, home: Path, environ: Mapping[str, str]) -> bool:
    """Whether the program's settings list `sessiond mcp`. False if the file cannot be read."""
    moved = environ.get(program.moved_by)
    path = Path(moved) / program.moved_to if moved else home / program.settings
    servers = _read(path).get(program.table)
    return isinstance(servers, dict) and SERVER in servers


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
