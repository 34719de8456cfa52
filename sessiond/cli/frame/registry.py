"""The list of commands, in the order of the help, with their modules. Imports a module when its command is used."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessiond.cli.frame.command import Command

# A module cannot be called `import`, which is a Python keyword; the others are called as their command.
COMMANDS = {
    name: f"sessiond.cli.{module or name}"
    for name, module in {
        "serve": "",
        "demo": "",
        "setup": "",
        "status": "",
        "list": "",
        "history": "",
        "export": "",
        "send": "",
        "inbox": "",
        "wait": "",
        "watch": "",
        "web": "",
        "search": "",
        "usage": "",
        "questions": "",
        "answer": "",
        "spawn": "",
        "agents": "",
        "create": "",
        "patch": "",
        "reset": "",
        "delete": "",
        "abort": "",
        "steer": "",
        "kill": "",
        "call": "",
        "token": "",
        "hook": "",
        "mcp": "",
        "acp": "",
        "link": "",
        "config": "",
        "doctor": "",
        "unit": "",
        "prune": "",
        "import": "import_store",
        "path": "",
        "sockname": "",
        "completion": "",
    }.items()
}


def find(name: str) -> Command | None:
    """The command called `name`, None where there is none."""
    module = COMMANDS.get(name)
    if module is None:
        return None
    command: Command = import_module(module).COMMAND
    return command
