"""`sessiond acp`: an agent of the Agent Client Protocol on standard input and output. Only imports and starts it."""

from __future__ import annotations

import sys
from importlib import import_module

from sessiond.cli.frame.command import SOCKET, Args, Command, Option
from sessiond.cli.frame.failures import note

# Imported by name: cli and acp are siblings, and the layers forbid an import.
SERVER = "sessiond.acp.server"


def run(args: Args) -> int:
    if sys.stdin is None:  # closed with `<&-`: an editor that is gone
        return 0
    if sys.stdin.isatty():
        note("an editor starts this and speaks to it on standard input; try: acpx --agent 'sessiond acp' exec hello")
    status: int = import_module(SERVER).run(args.socket, args.agent)
    return status


COMMAND = Command(
    "acp",
    "Be an agent on standard input and output, for editors that speak the Agent Client Protocol.",
    run=run,
    description="Every session that you may see is a session of the editor, those of other programs too; a new one "
    "works in the folder that the editor names. Two editors, or an editor and a terminal, see the same turns live. "
    "Inside a run it acts as the run's session.",
    options=(
        Option("--agent", "The agent of new sessions (default: the default agent).", metavar="AGENT", complete="agent"),
        SOCKET,
    ),
    examples=("sessiond acp", "sessiond acp --agent claude", "acpx --agent 'sessiond acp' exec 'what is here?'"),
)
