"""The man page, from the declarations of the commands. Source: man(7), roff."""

from __future__ import annotations

from sessiond import __version__
from sessiond.cli.frame import registry
from sessiond.cli.frame.command import Command, Option
from sessiond.cli.frame.failures import exit_code_legend

SECTIONS = f"""\
.SH ENVIRONMENT
.TP
.B SESSIOND_STORE
The store's folder (\\fI$XDG_STATE_HOME/sessiond\\fR).
.TP
.B SESSIOND_SOCKET
The daemon's socket (\\fI$XDG_RUNTIME_DIR/sessiond/sessiond.sock\\fR, else \\fIrun/sessiond.sock\\fR in the store).
.TP
.B SESSIOND_CONFIG
The configuration (\\fI$XDG_CONFIG_HOME/sessiond/config.toml\\fR); none is needed.
.TP
.B SESSIOND_TOKEN_FILE
A file with a token; what is done with it is done with its rights.
.TP
.B SESSIOND_PAGER, PAGER
What long output on a terminal goes through (\\fBless\\fR unless given; \\fBcat\\fR: nothing).
.TP
.B NO_COLOR
No colour, on a terminal either.
.SH EXIT STATUS
{exit_code_legend()}.
"""


def page() -> str:
    """The whole page as roff."""
    head = [
        f'.TH SESSIOND 1 "" "sessiond {__version__}" "User Commands"',
        ".SH NAME",
        "sessiond \\- keep the sessions of AI agents, and let them talk to each other",
        ".SH SYNOPSIS",
        ".B sessiond\n.I command\n[\\fIoptions\\fR] [\\fIarguments\\fR]",
        ".SH COMMANDS",
    ]
    body = []
    for name in registry.COMMANDS:
        command = registry.find(name)
        if command is not None:
            body += _command(command, name)
    return "\n".join([*head, *body, SECTIONS])


def _command(command: Command, name: str) -> list[str]:
    shown = [f".SS sessiond {_text(name)} {_text(' '.join(argument.shown for argument in command.arguments))}".rstrip()]
    shown.append(_text(command.summary))
    if command.description:
        shown.append(_text(command.description))
    for argument in command.arguments:
        shown += [".TP", f".I {_text(argument.shown)}", _text(argument.help)]
    for option in command.options:
        shown += [".TP", _flags(option), _text(option.help)]
    if command.examples:
        shown += [".PP", ".EX", *map(_text, command.examples), ".EE"]
    for sub in command.subcommands.values():
        shown += _command(sub, f"{name} {sub.name}")
    return shown


def _flags(option: Option) -> str:
    flags = ", ".join(f"\\fB{_text(flag)}\\fR" for flag in option.flags)
    if option.kind == "flag":
        return flags
    return f"{flags} \\fI{_text(option.metavar or '|'.join(option.choices) or option.kind.upper())}\\fR"


def _text(text: str) -> str:
    """`text` escaped for roff: a line must not begin with a dot or a quote."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\\&" + escaped if escaped.startswith(".") else escaped
