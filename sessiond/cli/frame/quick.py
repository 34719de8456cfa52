"""Parse a simple, correct command line without click.

Importing click takes three times as long as starting Python, and most command lines do not need it: they ask for no
help and no completion, and have no mistake to explain. All others are left to click (`tree`), which uses the same
declarations; a test checks that both give the same results.
"""

from __future__ import annotations

from sessiond.cli.frame.command import Args

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.cli.frame.command import Command, Option


def parse(words: list[str], find: Callable[[str], Command | None]) -> tuple[Command, Args] | None:
    """The command and its arguments; None if the line has to be parsed by click."""
    command = find(words[0]) if words else None
    if command is None:
        return None
    rest = words[1:]
    if command.subcommands and rest and rest[0] in command.subcommands:
        command, rest = command.subcommands[rest[0]], rest[1:]
    elif command.subcommands and (command.run is None or any(not word.startswith("-") for word in rest)):
        return None
    values = _read(command, rest)
    return None if values is None else (command, Args(**values))


def _read(command: Command, words: list[str]) -> dict[str, object] | None:
    by_flag = {flag: option for option in command.options for flag in option.flags}
    values: dict[str, object] = {option.name: option.empty() for option in command.options}
    placed: list[str] = []
    todo = iter(words)
    for word in todo:
        if word == "--":
            placed += todo
        elif word == "-" or not word.startswith("-"):
            placed.append(word)
        else:
            flag, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
            option = by_flag.get(flag)
            if option is None:
                return None
            if option.kind == "flag":
                if equals:
                    return None
                values[option.name] = True
                continue
            if not equals:
                text = next(todo, "-")
                if text.startswith("-"):  # no value, another option, or a value that looks like an option
                    return None
            if not _take(option, text, values):
                return None
    return _place(command, placed, values)


def _take(option: Option, text: str, values: dict[str, object]) -> bool:
    try:
        value = option.read(text)
    except ValueError:
        return False
    if option.many:
        earlier = values[option.name]
        values[option.name] = (*earlier, value) if isinstance(earlier, tuple) else (value,)
    else:
        values[option.name] = value
    return True


def _place(command: Command, words: list[str], values: dict[str, object]) -> dict[str, object] | None:
    for argument in command.arguments:
        if argument.many:
            if argument.required and not words:
                return None
            values[argument.name], words = tuple(words), []
        elif words:
            if argument.choices and words[0] not in argument.choices:
                return None
            values[argument.name], words = words[0], words[1:]
        elif argument.required:
            return None
        else:
            values[argument.name] = None
    return None if words else values
