"""`sessiond agents`: list the agents, those that wait for an answer first, and find installed programs that could be
configured as agents.
"""

from __future__ import annotations

import os

from sessiond.cli.agents_trial import COMMAND as TEST
from sessiond.cli.config import CONFIG, path_of
from sessiond.cli.frame.command import CLIENT_OPTIONS, JSON, Args, Command
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect
from sessiond.cli.frame.failures import BAD_CONFIG, CommandFailed, note
from sessiond.cli.frame.question_names import count_questions
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.screen import Screen, screen_of
from sessiond.cli.terminal.table import Column, render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def show(agents: list[dict[str, Any]], on: Screen) -> list[str]:
    columns = (
        Column("AGENT", lambda agent: agent["id"], keep=9, style="bold"),
        Column("NAME", lambda agent: agent.get("name"), least=8, keep=2),
        Column("RUNTIME", lambda agent: "machine" if agent.get("machine") else agent["runtime"], keep=5),
        Column("SANDBOX", lambda agent: "yes" if agent["sandboxed"] else "no", keep=3),
        Column("ATTACHED", _describe_attached, keep=6, style=lambda text: "green" if text.isdecimal() else "yellow"),
        Column("RUNNING", lambda agent: agent.get("liveRuns") or None, right=True, keep=4, style="blue"),
        Column("WAITING", lambda agent: agent.get("questions") or None, right=True, keep=8, style="yellow"),
    )
    return render(columns, agents, on)


def run(args: Args) -> None:
    with connect(args) as client:
        found = client.call("agents_list", timeout_s=CALL_TIMEOUT_S)
        waiting = {} if args.json else count_questions(client)
    if args.json:
        as_json(found)
        return
    agents = [{**agent, "questions": waiting.pop(agent["id"], 0)} for agent in found["agents"]]
    agents.sort(key=lambda agent: not agent["questions"])  # what waits comes first, else the order is kept
    lines(show(agents, screen_of()))
    if waiting or any(agent["questions"] for agent in agents):
        elsewhere = f", {sum(waiting.values())} of other programs' sessions" if waiting else ""
        note(f"what they wait for{elsewhere}, and the lines that answer: sessiond questions")
    if any(_describe_attached(agent) == "no" for agent in found["agents"]):
        note("an attached agent is a program that connects; until it does, messages to it wait, some minutes")


def _describe_attached(agent: dict[str, Any]) -> str:
    """How many connections run an attached agent, `away` where the link cannot reach its machine; empty for other
    runtimes.
    """
    if agent["runtime"] != "attached":
        return ""
    if agent.get("machine") and agent.get("attached") and agent.get("awaySince") is not None:
        return "away"
    return str(agent.get("attached") or "no")


def detect(args: Args) -> None:
    from sessiond.config.settings import load
    from sessiond.errors import ConfigError
    from sessiond.runtimes.presets import PRESETS
    from sessiond.runtimes.presets.detect import detect as find
    from sessiond.runtimes.presets.detect import not_configured

    try:
        config = load(path_of(args))
    except ConfigError as error:
        raise CommandFailed(str(error), status=BAD_CONFIG) from None
    installed = find(os.environ.get("PATH", os.defpath))
    found = not_configured(installed, config)
    if args.json:
        from msgspec import to_builtins

        as_json({"found": to_builtins(found), "known": list(PRESETS)})
        return
    if not found:
        names = ", ".join(program.preset for program in installed)
        note(f"configured already: {names}" if names else f"none of these programs is installed: {', '.join(PRESETS)}")
        return
    for program in found:
        where = f"# {program.path} {program.version or ''}".rstrip() if program.path else f"# {program.preset}"
        lines([where, *([f"# {program.hint}"] if program.hint else []), program.config])
    note("put these lines into the configuration, then: sessiond config reload")


COMMAND = Command(
    "agents",
    "Show the agents, who is attached, what runs and what waits for your answer.",
    run=run,
    options=CLIENT_OPTIONS,
    examples=("sessiond agents", "sessiond agents detect >> ~/.config/sessiond/config.toml"),
    subcommands=(
        TEST,
        Command(
            "detect",
            "Look for agent programs on this machine and print their configuration.",
            run=detect,
            description="Over ACP where the program has it. Programs that the configuration has already are left out.",
            options=(CONFIG, JSON),
            examples=("sessiond agents detect",),
        ),
    ),
)
