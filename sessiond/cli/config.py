"""`sessiond config`: whether the configuration is good, and what it comes to. Needs no daemon."""

from __future__ import annotations

import os
from pathlib import Path

from sessiond.cli.frame.command import JSON, Args, Command, Option
from sessiond.cli.frame.failures import BAD_CONFIG, CommandFailed
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.toml import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessiond.config import Config

CONFIG = Option("--config", "The file (default: $SESSIOND_CONFIG, else the XDG one).", metavar="FILE", complete="file")


def path_of(args: Args) -> Path | None:
    """The file that flag or environment names; None for the default place, where there need be none."""
    given = args.config or os.environ.get("SESSIOND_CONFIG")
    return Path(given).expanduser() if given else None


def _load(args: Args) -> tuple[Config, Path]:
    # msgspec and the structs take some 60 ms: only these commands and the daemon pay them.
    from sessiond.config import default_path, load
    from sessiond.errors import ConfigError

    path = path_of(args)
    try:
        return load(path), path or default_path()
    except ConfigError as error:
        raise CommandFailed(str(error), status=BAD_CONFIG) from None


def check(args: Args) -> None:
    from sessiond.config_warnings import warnings

    config, path = _load(args)
    is_there = path.exists()
    found = warnings(config.agents.list)
    if args.json:
        ids = [agent.id for agent in config.agents.list]
        told = [{"what": what, "hint": hint} for what, hint in found]
        as_json({"ok": True, "path": str(path), "exists": is_there, "agents": ids, "warnings": told})
    elif is_there:
        lines([f"{path} is good: {_count(len(config.agents.list))}"])
        for what, hint in found:
            lines([f"warning: {what}", f"  -> {hint}"])
    else:
        lines([f"there is no {path}, and none is needed: the defaults hold"])


def show(args: Args) -> None:
    from sessiond.config import documented

    config, path = _load(args)
    values = documented(config)
    for agent in values["agents"]["list"]:
        # One number for all agents, under agents.defaults: the file itself may not say it here.
        agent["subagents"].pop("maxConcurrent", None)
    if args.json:
        as_json(values)
        return
    lines([f"# {path}{'' if path.exists() else ' (not there: these are the defaults)'}", *render(values)])


def _count(agents: int) -> str:
    return f"{agents} agent{'' if agents == 1 else 's'}"


COMMAND = Command(
    "config",
    "Check the configuration, or show it with every default filled in.",
    examples=("sessiond config check", "sessiond config show"),
    subcommands=(
        Command(
            "check",
            "Say whether the configuration is good (exit 78 where it is not: file, line, key).",
            run=check,
            options=(CONFIG, JSON),
            examples=("sessiond config check --config ./config.toml",),
        ),
        Command(
            "show",
            "Print the configuration with every default filled in.",
            run=show,
            options=(CONFIG, JSON),
            examples=("sessiond config show", "sessiond config show --json | jq .limits"),
        ),
    ),
)
