"""`sessiond config`: check, show and reload the configuration. Only `reload` needs a daemon."""

from __future__ import annotations

import os
import signal
import time
from importlib import import_module
from pathlib import Path

from sessiond.cli.frame.command import CLIENT_OPTIONS, JSON, Args, Command, Option
from sessiond.cli.frame.failures import BAD_CONFIG, PERMISSION, CommandFailed, note
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.toml import render
from sessiond.errors import pluralize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessiond.config.settings import Config

CONFIG = Option("--config", "The file (default: $SESSIOND_CONFIG, else the XDG one).", metavar="FILE", complete="file")


def path_of(args: Args) -> Path | None:
    """The file named by the option or the environment; None for the default path, where it is optional."""
    given = args.config or os.environ.get("SESSIOND_CONFIG")
    return Path(given).expanduser() if given else None


def _load(args: Args) -> tuple[Config, Path]:
    # Imported late: msgspec and the structs take some 60 ms.
    from sessiond.config.settings import default_path, load
    from sessiond.errors import ConfigError

    path = path_of(args)
    try:
        return load(path), path or default_path()
    except ConfigError as error:
        raise CommandFailed(str(error), status=BAD_CONFIG) from None


def check(args: Args) -> None:
    from sessiond.config.warnings import warnings
    from sessiond.delivery.unusable_targets import find_unusable_targets
    from sessiond.runtimes.presets.missing import missing_programs

    config, path = _load(args)
    is_there = path.exists()
    path_variable = os.environ.get("PATH")
    found = [*warnings(config.agents.list), *missing_programs(config.agents.list, path_variable)]
    found += find_unusable_targets(config.notify, path_variable)
    machines = [peer.name for peer in config.link.peers]
    agents = [agent.id for agent in config.agents.list if agent.id not in machines]
    if args.json:
        warnings_found = [{"what": what, "hint": hint} for what, hint in found]
        facts = {"agents": agents, "machines": machines, "warnings": warnings_found}
        as_json({"ok": True, "path": str(path), "exists": is_there, **facts})
    elif is_there:
        beside = f" and {pluralize(len(machines), 'other machine')}" if machines else ""
        lines([f"{path} is good: {pluralize(len(agents), 'agent')}{beside}"])
        for what, hint in found:
            lines([f"warning: {what}", f"  -> {hint}"])
    else:
        lines([f"there is no {path}, and none is needed: the defaults hold"])


def show(args: Args) -> None:
    from sessiond.config.settings import to_document

    config, path = _load(args)
    values = to_document(config)
    for agent in values["agents"]["list"]:
        # maxConcurrent is allowed in agents.defaults only.
        agent["subagents"].pop("maxConcurrent", None)
    if args.json:
        as_json(values)
        return
    lines([f"# {path}{'' if path.exists() else ' (not there: these are the defaults)'}", *render(values)])


def reload(args: Args) -> None:
    """Let the daemon reload its configuration file, and print whether it succeeded."""
    from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect

    with connect(args) as client:
        before = client.call("daemon.status", timeout_s=CALL_TIMEOUT_S)
        try:
            os.kill(before["pid"], signal.SIGHUP)
        except PermissionError:
            raise CommandFailed("the daemon is another user's", status=PERMISSION) from None
        deadline = time.monotonic() + CALL_TIMEOUT_S
        after = before
        while after.get("reloadedAt") == before.get("reloadedAt"):
            if time.monotonic() > deadline:
                raise CommandFailed(
                    "the daemon did not report the result of the reload in time", hint='see "sessiond status"'
                )
            time.sleep(0.02)  # noqa: TID251 - at a process border: a signal has no answer
            after = client.call("daemon.status", timeout_s=CALL_TIMEOUT_S)
        agents = len(client.call("agents_list", timeout_s=CALL_TIMEOUT_S)["agents"])
    if args.json:
        as_json({"ok": "reloadProblem" not in after, "problem": after.get("reloadProblem")})
    if after.get("reloadProblem"):
        raise CommandFailed(f"not taken over: {after['reloadProblem']}", hint="the old one holds", status=BAD_CONFIG)
    if not args.json:
        lines([f"the daemon has the new configuration: {pluralize(agents, 'agent')}"])
    # Imported late: few have a link. And cli and link are siblings, and the layers forbid an import.
    if import_module("sessiond.link.status").is_held(Path(after["store"])):
        note("the link here takes it with: systemctl --user reload sessiond-link, or SIGHUP")


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
            "reload",
            "Have the running daemon take the configuration over (exit 78 where it refuses: the old one holds).",
            run=reload,
            options=CLIENT_OPTIONS,
            examples=("sessiond config reload",),
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
