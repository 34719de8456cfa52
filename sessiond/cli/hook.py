"""`sessiond hook`: answer a hook of an agent program in a terminal; put the hooks into its settings, and take them out.

The hook itself prints what the program expects or nothing, and ends with 0 whatever happens: without sessiond the
program has to work as ever.
"""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress

from sessiond.cli.frame.command import JSON, SOCKET, Args, Argument, Command, Option
from sessiond.cli.frame.failures import CommandFailed, note
from sessiond.cli.terminal.output import as_json, lines

# Beside the settings, until they are as they were.
BACKUP = ".before-sessiond"
# A daemon that is there answers at once.
WAITING_S = 2.0
# Not from the table of programs, which only these two commands import.
PROGRAM = Argument("program", "The program.", choices=("claude", "codex"))


def run(args: Args) -> int:
    # None where it is closed: then there is nothing to read either.
    if sys.stdin is not None and sys.stdin.isatty():
        note("an agent program calls this; to let it: sessiond hook install claude --write")
        return 0
    from sessiond.cli.hooks.call import run_hook

    with suppress(KeyboardInterrupt):
        run_hook(args.socket)
    return 0


def install(args: Args) -> None:
    from sessiond.cli.hooks.files import read_settings, remove_settings, replace_settings
    from sessiond.cli.hooks.json_text import UnknownForm
    from sessiond.cli.hooks.settings import PROGRAMS, add_hooks, find_ours

    program = PROGRAMS[args.program]
    path = program.path(os.environ)
    before = read_settings(path)
    command = _own_command(args.socket)
    try:
        text = _decode(before)
        after = add_hooks(text, command, program.timeouts)
        has_ours = bool(find_ours(text))
    except UnknownForm as error:
        raise _leave_alone(path, error) from None
    if not args.write:
        _print_plan(args, path, command, add_hooks("", command, program.timeouts))
        return
    has_backup = before is not None and not has_ours
    written = before is None or after != text
    if written:
        if not has_ours:
            # What an earlier one has left is of no use any more.
            remove_settings(path + BACKUP)
        if before is not None and not has_ours:
            replace_settings(path + BACKUP, None, before)
        replace_settings(path, before, after.encode())
    if args.json:
        as_json({"path": path, "command": command, "written": written})
    elif not written:
        note(f"the hooks are in {path} already")
    else:
        as_it_was = [f"as it was before: {path + BACKUP}"] if has_backup else []
        lines([f"wrote {_describe(path)}", *as_it_was, f"to undo it: sessiond hook uninstall {args.program}"])
    if program.note and written:
        note(program.note)


def uninstall(args: Args) -> None:
    from sessiond.cli.hooks.files import read_settings, remove_settings, replace_settings
    from sessiond.cli.hooks.json_text import UnknownForm
    from sessiond.cli.hooks.settings import PROGRAMS, find_ours, take_out

    program = PROGRAMS[args.program]
    path = program.path(os.environ)
    current, backup = read_settings(path), read_settings(path + BACKUP)
    try:
        text = _decode(current)
        if not find_ours(text):
            _say_removal(args, path, [f"there are no hooks of sessiond in {path}"], removed=False)
            return
        after, as_before = take_out(text, _decode(backup) if backup is not None else None, program.timeouts)
    except UnknownForm as error:
        raise _leave_alone(path, error) from None
    shown = _describe(path)
    if after is None:
        remove_settings(os.path.realpath(path))
        _say_removal(args, path, [f"removed {shown}, which had nothing else in it"])
        if not args.json:
            _say_what_waits(args.program, text)
        return
    replace_settings(path, current, after.encode())
    done = [f"took the hooks of sessiond out of {shown}"]
    if as_before:
        remove_settings(path + BACKUP)
    elif backup is not None:
        done.append(f"it was changed meanwhile; as it was before they were added: {path + BACKUP}")
    _say_removal(args, path, done)
    if not args.json:
        _say_what_waits(args.program, text)


def _say_what_waits(program: str, text: str) -> None:
    """Say which messages wait that the hooks of the program, taken out of `text`, would have handed over."""
    from sessiond.cli.hooks.settings import find_socket
    from sessiond.client.blocking import Client
    from sessiond.client.errors import ClientError

    try:
        with Client(find_socket(text)) as client:
            waiting = client.call("hooks.list", timeout_s=WAITING_S)["waiting"]
    except (ClientError, OSError):
        return  # without a daemon nothing is known of it, and nothing depends on it
    for one in waiting:
        key = one["sessionKey"]
        if key.startswith(f"{program}:"):
            plural = one["unread"] != 1 or one["hasMore"]
            count = f"{one['unread']}{' or more' if one['hasMore'] else ''} message{'s wait' if plural else ' waits'}"
            note(f"{count} for {key}, and no hook hands them over any more; to read them: sessiond inbox {key}")


def _say_removal(args: Args, path: str, words: list[str], *, removed: bool = True) -> None:
    if args.json:
        as_json({"path": path, "removed": removed})
    elif removed:
        lines(words)
    else:
        note(words[0])


def _decode(data: bytes | None) -> str:
    from sessiond.cli.hooks.json_text import UnknownForm

    try:
        return (data or b"").decode()
    except UnicodeDecodeError:
        raise UnknownForm("is not UTF-8") from None


def _own_command(socket: str | None) -> str:
    """How the program has to call this one, by its full path: it may have another PATH."""
    ours = os.path.abspath(sys.argv[0])
    words = [ours] if os.path.basename(ours) == "sessiond" else [sys.executable, "-m", "sessiond"]
    words += ["hook"]
    if socket:
        words += ["--socket", os.path.abspath(os.path.expanduser(socket))]
    # Status 2, which an older sessiond without this command has, would keep the program from doing anything.
    return shlex.join(words) + " || true"


def _print_plan(args: Args, path: str, command: str, added: str) -> None:
    if args.json:
        as_json({"path": path, "command": command, "written": False, "added": added})
        return
    lines([f"To {path}:", "", *("    " + line for line in added.splitlines()), ""])
    lines([f"To add it, with what is there already left as it is: sessiond hook install {args.program} --write"])
    lines([f"To undo it: sessiond hook uninstall {args.program}"])


def _describe(path: str) -> str:
    """The path, and the file that it means if it is a symlink, as into a repository of dotfiles."""
    target = os.path.realpath(path)
    return f"{path} (which is {target})" if os.path.islink(path) else path


def _leave_alone(path: str, problem: Exception) -> CommandFailed:
    return CommandFailed(f"{path} {problem}: it was left as it is", hint="mend it first, or change it by hand")


COMMAND = Command(
    "hook",
    "Tell sessiond what an agent program in a terminal does, and let it ask you from anywhere.",
    run=run,
    description="Without a subcommand it is the hook itself: the program calls it with JSON on standard input. It"
    " prints what the program expects or nothing, and always ends with 0: without a daemon the program works as ever.",
    options=(SOCKET,),
    examples=("sessiond hook install claude", "sessiond hook install claude --write"),
    subcommands=(
        Command(
            "install",
            "Print what to add to the settings of a program, or add it.",
            run=install,
            arguments=(PROGRAM,),
            options=(Option("--write", "Add it; keeps a copy of the file as it was.", kind="flag"), JSON, SOCKET),
            examples=("sessiond hook install claude --write", "sessiond hook install codex"),
        ),
        Command(
            "uninstall",
            "Take the hooks out of the settings of a program again, and nothing else.",
            run=uninstall,
            arguments=(PROGRAM,),
            options=(JSON,),
            examples=("sessiond hook uninstall claude",),
        ),
    ),
)
