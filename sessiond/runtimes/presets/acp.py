"""How the known agent programs are started to speak ACP, and how to get what speaks it. Starts nothing."""

from __future__ import annotations

import re
from pathlib import PurePath

import msgspec

from sessiond.config.agents import AcpPreset, RuntimeConfig


class AcpForm(msgspec.Struct, frozen=True, kw_only=True):
    """`program` with `arguments` speaks ACP. `package` is the npm package that has it.

    Where the program is an adapter of the preset's own one, being there is enough. Else `help` matches what
    `--help` prints in releases that know the arguments. `asking_mode` is the id of the session mode in which the
    program asks for permission: in the modes in which Claude Code and Codex begin, their models decide themselves, and
    the permissions of the configuration would count for nothing.
    """

    program: str
    package: str
    arguments: tuple[str, ...] = ()
    help: re.Pattern[str] | None = None
    asking_mode: str | None = None
    # Whether it can begin with a copy of a session (`session/fork`, which is not in the protocol's first version).
    forks: bool = True
    # A variable by which the owner chooses the mode.
    mode_variable: str | None = None

    @property
    def remedy(self) -> str:
        """What to do where this is not installed."""
        return f"npm install -g {self.package}"


ACP_FORMS: dict[AcpPreset, AcpForm] = {
    "claude": AcpForm(
        program="claude-agent-acp", package="@agentclientprotocol/claude-agent-acp", asking_mode="default"
    ),
    "codex": AcpForm(
        program="codex-acp",
        package="@agentclientprotocol/codex-acp",
        asking_mode="read-only",
        mode_variable="INITIAL_AGENT_MODE",
    ),
    "gemini": AcpForm(
        program="gemini",
        package="@google/gemini-cli",
        arguments=("--acp",),
        help=re.compile(r"(?<![\w-])--acp\b"),
        asking_mode="default",
        forks=False,
    ),
    "opencode": AcpForm(
        program="opencode", package="opencode-ai", arguments=("acp",), help=re.compile(r"\bopencode acp\b")
    ),
}


def acp_form(preset: str | None) -> AcpForm | None:
    """The form of a preset; None where there is none."""
    return next((form for name, form in ACP_FORMS.items() if name == preset), None)


def acp_command(runtime: RuntimeConfig) -> tuple[str, ...]:
    """The whole command line of an agent with `type = "acp"`.

    As with `exec`, the first word of a configured `command` replaces the preset's program, and the others are added to
    the preset's arguments.
    """
    form = acp_form(runtime.preset)
    if form is None:
        return runtime.command
    program, *extra = runtime.command or (form.program,)
    return (program, *form.arguments, *extra)


def find_better_command(runtime: RuntimeConfig) -> str | None:
    """The command line of a known agent that speaks ACP, where the configured one is another of it; None elsewhere."""
    words = acp_command(runtime)
    program = PurePath(words[0]).name
    form = acp_form(program) or acp_form(runtime.preset)
    if form is None or (program == form.program and set(form.arguments) <= set(words)):
        return None
    return " ".join((form.program, *form.arguments))


def asking_mode(runtime: RuntimeConfig) -> str | None:
    """The id of the session mode in which an agent asks for permission; None to leave the mode as it is."""
    form = acp_form(runtime.preset)
    return None if form is None or form.mode_variable in runtime.env else form.asking_mode
