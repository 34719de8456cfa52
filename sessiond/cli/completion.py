"""`sessiond completion`: what a shell needs to complete this program's words; and its man page."""

from __future__ import annotations

import sys

from sessiond.cli.frame.command import JSON, Args, Argument, Command
from sessiond.cli.terminal.output import as_json

PROGRAM = "sessiond"
VARIABLE = "_SESSIOND_COMPLETE"


def text_for(shell: str) -> str:
    """The script for bash, zsh or fish; for `man` the page in roff."""
    from sessiond.cli.frame import tree

    if shell == "man":
        from sessiond.cli.frame.man import page

        return page()
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "the choices of the argument are click's shells"
    completion = kind(tree.root(), {}, PROGRAM, VARIABLE)
    # Not source(): for bash it first starts bash to ask its version, and on a build server there may be none.
    return completion.source_template % completion.source_vars()


def run(args: Args) -> None:
    text = text_for(args.shell)
    if args.json:
        as_json({"shell": args.shell, "text": text})
    else:
        sys.stdout.write(text.rstrip("\n") + "\n")


COMMAND = Command(
    "completion",
    "Print the completion script of a shell, or the man page.",
    run=run,
    arguments=(Argument("shell", "bash, zsh, fish, or man.", choices=("bash", "zsh", "fish", "man")),),
    options=(JSON,),
    examples=(
        'eval "$(sessiond completion bash)"   # in ~/.bashrc',
        "sessiond completion fish > ~/.config/fish/completions/sessiond.fish",
        "sessiond completion man | man -l -",
    ),
)
