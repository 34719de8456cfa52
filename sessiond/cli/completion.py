"""`sessiond completion`: the completion scripts of the shells, and the man page."""

from __future__ import annotations

import sys

from sessiond.cli.frame.command import JSON, Args, Argument, Command
from sessiond.cli.terminal.output import as_json

PROGRAM = "sessiond"
VARIABLE = "_SESSIOND_COMPLETE"

# Not click's own script, because bash splits words at colons and `=`, and session keys are full of colons. The line is
# split at blanks here; the part up to the last colon or `=`, which bash keeps by itself, is cut off again. No blank is
# added behind `NAME=`, where a value follows.
BASH = """\
_sessiond_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" kind value
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local current="${words[-1]}"
    local kept="${current%"${current##*[:=]}"}"
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$kept"}") ;;
        esac
    done < <(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _SESSIOND_COMPLETE=bash_complete "$1")
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}
complete -o nosort -F _sessiond_completion sessiond
"""

ZSH = """\
#compdef sessiond

_sessiond_completion() {
    local -a plain described opened response
    local type key descr
    (( ! $+commands[sessiond] )) && return 1
    local -x COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) _SESSIOND_COMPLETE=zsh_complete
    response=("${(@f)$(sessiond)}")
    for type key descr in ${response}; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain)
                if [[ $key == *= ]]; then
                    opened+=("$key")
                elif [[ $descr == _ ]]; then
                    plain+=("$key")
                else
                    described+=("$key:$descr")
                fi ;;
        esac
    done
    [[ -n $described ]] && _describe -V unsorted described -U
    [[ -n $plain ]] && compadd -U -V unsorted -a plain
    [[ -n $opened ]] && compadd -U -S '' -V unsorted -a opened
    return 0
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _sessiond_completion "$@"
else
    compdef _sessiond_completion sessiond
fi
"""


def text_for(shell: str) -> str:
    """The script for bash, zsh or fish; for `man` the page in roff."""
    from sessiond.cli.frame import tree

    if shell == "man":
        from sessiond.cli.frame.man import page

        return page()
    if shell in ("bash", "zsh"):
        return BASH if shell == "bash" else ZSH
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "the choices of the argument are click's shells"
    completion = kind(tree.root(), {}, PROGRAM, VARIABLE)
    return completion.source()


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
