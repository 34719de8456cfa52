"""`sessiond mcp`: the MCP server on standard input and output. This module only imports and starts it."""

from __future__ import annotations

from importlib import import_module

from sessiond.cli.frame.command import SOCKET, Args, Command, Option
from sessiond.cli.frame.failures import note
from sessiond.client.locate import has_token_file

# Imported by name: cli and mcp are siblings, and the layers forbid an import.
SERVER = "sessiond.mcp.server"


def run(args: Args) -> int:
    if args.session and has_token_file():
        note("--session counts for nothing here: the token in SESSIOND_TOKEN_FILE says for which session this speaks")
    status: int = import_module(SERVER).run(args.socket, args.session)
    return status


COMMAND = Command(
    "mcp",
    "Be an MCP server on standard input and output, for agents that speak MCP.",
    run=run,
    description="What it may see follows from the token in SESSIOND_TOKEN_FILE (inside a run), else from --session, "
    "else from a session of its own that is named after the client.",
    options=(
        Option("--session", "The session it speaks for.", metavar="KEY", complete="key"),
        SOCKET,
    ),
    examples=("sessiond mcp", "claude mcp add sessiond -- sessiond mcp"),
)
