"""`sessiond setup`: configure installed agent programs as agents, and register the MCP server in them. Asks first."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from sessiond.cli.config import CONFIG, path_of
from sessiond.cli.frame.command import JSON, Args, Command, Option
from sessiond.cli.frame.failures import BAD_CONFIG, FAILED, USAGE, CommandFailed, note
from sessiond.cli.terminal.escape import escape
from sessiond.cli.terminal.output import as_json, lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessiond.config.settings import Config
    from sessiond.runtimes.presets.detect import DetectedProgram

# Adding a tool server only writes a file; the slowest of the programs needs seconds to start.
ADD_TIMEOUT_S = 60
MARK, END_MARK = "# added by: sessiond setup", "# end of what sessiond setup added"
# Without these tables a program sees only its own session.
SIGHT = {
    "sessions": '[tools.sessions]\nvisibility = "all"\n',
    "agentToAgent": '[tools.agentToAgent]\nenabled = true\nallow = ["*"]\n',
}
# The agent that exists without a configuration. It is the requester of spawns from outside of a run.
MAIN = (
    '[[agents.list]]\nid = "main"\ndefault = true\nruntime = {{ type = "echo" }}\n'
    "subagents = {{ allowAgents = [{agents}] }}\n"
)


class SetupPlan:
    """The planned changes: lines for the configuration, commands that register the server, and how to undo both.

    `asks`: some of the agents ask for permission.
    """

    def __init__(
        self,
        path: Path,
        config: list[str],
        agents: list[str],
        commands: list[list[str]],
        undo: list[list[str]],
        *,
        asks: bool,
    ) -> None:
        self.path, self.config, self.agents, self.commands, self.undo = path, config, agents, commands, undo
        self.asks = asks

    @property
    def is_empty(self) -> bool:
        return not self.config and not self.commands

    def render(self) -> list[str]:
        shown = []
        if self.config:
            added = "\n".join(self.config).splitlines()
            shown += [f"To {_below_home(self.path)}:", "", *("    " + line for line in added), ""]
        if self.commands:
            shown += ["To give these programs your sessions as tools:", ""]
            shown += ["    " + shlex.join(command) for command in self.commands] + [""]
        undo = []
        if self.config:
            undo = [f"in {_below_home(self.path)}, remove the lines from", f"  {MARK}", "to", f"  {END_MARK}"]
        return [*shown, "To undo it:", "", *("    " + step for step in [*undo, *map(shlex.join, self.undo)])]


def run(args: Args) -> int | None:
    config, path = _configuration(args)
    plan = _plan(config, path)
    if plan is None:
        return None
    if plan.is_empty:
        note("everything is set up already")
        return None
    if args.json:
        facts = {"path": str(plan.path), "lines": plan.config, "commands": plan.commands, "undo": plan.undo}
        as_json(facts)
    else:
        lines(plan.render())
    if args.print or (args.json and not args.yes):
        return None
    if not args.yes and not _ask_consent():
        note("nothing was changed")
        return FAILED
    _write(plan)
    return _tell_programs(plan, quiet=args.json)


def _configuration(args: Args) -> tuple[Config, Path]:
    from sessiond.config.settings import default_path, load, parse
    from sessiond.errors import ConfigError

    path = path_of(args)
    try:
        return load(path) if path is None or path.exists() else parse(""), path or default_path()
    except ConfigError as error:
        raise CommandFailed(str(error), hint="mend it first", status=BAD_CONFIG) from None


def _plan(config: Config, path: Path) -> SetupPlan | None:
    """The plan; None if none of the programs is installed."""
    from sessiond.runtimes.presets import PRESETS
    from sessiond.runtimes.presets.detect import detect, not_configured
    from sessiond.runtimes.presets.tool_servers import PROGRAMS, has_tool_server

    words = {name: [_with_ourselves(word) for word in server.allow] for name, server in PROGRAMS.items()}
    found = detect(os.environ.get("PATH", os.defpath), words=words)
    if not found:
        note(f"none of these programs is in your PATH: {', '.join(PRESETS)}")
        note("install one, say who you are to it, and run this again: npm install -g @anthropic-ai/claude-code")
        return None
    commands, undo = [], []
    for program in found:
        server = PROGRAMS.get(program.preset)
        if server is None or program.path is None or has_tool_server(server, Path.home(), os.environ):
            continue
        commands.append([program.path, *map(_with_ourselves, server.add)])
        undo.append([program.path, *server.remove])
    new = not_configured(found, config)
    for hint in filter(None, (program.hint for program in new)):
        note(hint)
    agents = [program.preset for program in new]
    asks = any(program.runtime == "acp" for program in new)
    return SetupPlan(path, _config_lines(path, new, tools=bool(commands)), agents, commands, undo, asks=asks)


def _config_lines(path: Path, found: list[DetectedProgram], *, tools: bool) -> list[str]:
    """The lines to add, between two marker comments; empty if there is nothing to add."""
    import tomllib

    data = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    added = [program.config for program in found]
    if added and not data.get("agents", {}).get("list"):
        added.insert(0, MAIN.format(agents=", ".join(f'"{program.preset}"' for program in found)))
    if tools:
        added += [table for name, table in SIGHT.items() if name not in data.get("tools", {})]
    return [MARK + "\n" + "\n".join(added) + END_MARK + "\n"] if added else []


def _with_ourselves(word: str) -> str:
    """`word`, with the full path of this program: the program that starts it may have another PATH."""
    ours = os.path.abspath(sys.argv[0]) if os.path.basename(sys.argv[0]) == "sessiond" else "sessiond"
    return word.replace("{sessiond}", ours)


def _below_home(path: Path) -> str:
    """The path as it can be typed in a shell, with `~` for the home folder."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def _ask_consent() -> bool:
    if not sys.stdin.isatty():
        raise CommandFailed(
            "standard input is not a terminal, so setup cannot ask",
            hint="to do this: sessiond setup --yes",
            status=USAGE,
        )
    sys.stdout.write("\nDo this? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _write(plan: SetupPlan) -> None:
    """Append the lines to the configuration. The whole new file is checked before it replaces the old one."""
    if not plan.config:
        return
    from sessiond.config.settings import parse
    from sessiond.errors import ConfigError

    old = plan.path.read_text(encoding="utf-8") if plan.path.exists() else ""
    text = old + ("\n" if old and not old.endswith("\n") else "") + ("\n" if old else "") + "\n".join(plan.config)
    try:
        parse(text, str(plan.path))
    except ConfigError as error:
        sentence = f"with these lines the configuration would not be good: {error}"
        raise CommandFailed(sentence, status=BAD_CONFIG) from None
    plan.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # If the configuration is a symlink, such as into a repository of dotfiles, replace its target.
    target = plan.path.resolve()
    written = target.with_name(f".{target.name}.new")
    try:
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            written.chmod(target.stat().st_mode & 0o777)
        written.replace(target)
    except OSError as error:
        with suppress(OSError):
            written.unlink()
        raise CommandFailed(f"cannot write {plan.path}: {error.strerror}") from None


def _tell_programs(plan: SetupPlan, *, quiet: bool) -> int:
    status = 0
    say = note if quiet else print
    if plan.config:
        say(f"wrote {_below_home(plan.path)}")
    for command in plan.commands:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=ADD_TIMEOUT_S
            )
            failure = None if done.returncode == 0 else (done.stderr or done.stdout).strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            failure = str(error)
        name = os.path.basename(command[0])
        if failure is None:
            say(f"{name} has your sessions as tools now")
        else:
            status = FAILED
            say(f"{name} does not have them, since this failed: {shlex.join(command)}")
            say(escape(failure, lines=True))
    if plan.config:
        note("a daemon that runs takes the new lines with: sessiond config reload")
        if plan.agents:
            note(f'then try: sessiond send --agent {plan.agents[0]} "hello"')
            if plan.asks:
                note("what an agent asks permission for waits for you: sessiond questions")
    return status


COMMAND = Command(
    "setup",
    "Make the agent programs of this machine agents, and give them your sessions as tools.",
    run=run,
    description="Shows what it would write and run, asks once, and says how to undo it. What is there already stays.",
    options=(
        Option("--yes", "Do not ask.", kind="flag"),
        Option("--print", "Only show what would be done.", kind="flag"),
        CONFIG,
        JSON,
    ),
    examples=("sessiond setup", "sessiond setup --print"),
)
