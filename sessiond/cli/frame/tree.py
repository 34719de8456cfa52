"""The declarations as a click command tree: help, errors, completion. Imported if the quick parser gives up."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from sessiond import __version__
from sessiond.cli.frame import completion, registry
from sessiond.cli.frame.command import Args, Argument, Command, Option
from sessiond.cli.frame.failures import exit_code_legend
from sessiond.errors import quote

EPILOG = f"Exit codes: {exit_code_legend()}."
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Reading(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on, and not before
    """A value read by the declaration, so that click and the quick parser cannot disagree."""

    def __init__(self, option: Option) -> None:
        self.name = option.kind
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._option.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class LazyGroup(click.Group):
    """Imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(registry.COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        command = registry.find(cmd_name)
        return None if command is None else build(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in registry.COMMANDS and not args[0].startswith("-"):
            ctx.fail(_unknown_name_message(args[0], registry.COMMANDS))
        return super().resolve_command(ctx, args)


class CommandWithExamples(click.Command):
    """Keeps the line breaks of the epilog."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        _write_epilog(self.epilog, formatter)


class GroupWithExamples(click.Group):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        _write_epilog(self.epilog, formatter)


def root() -> click.Group:
    group = LazyGroup(
        name="sessiond",
        help="Keep the sessions of AI agents, and let them talk to each other. Start with: sessiond demo",
        epilog=EPILOG,
        context_settings=SETTINGS,
    )
    return click.version_option(__version__, prog_name="sessiond")(group)


def run(words: list[str]) -> int:
    """Parse a command line with click and run it; the exit status."""
    try:
        status = root().main(words, prog_name="sessiond", standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show(sys.stdout)
        return 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    return status if isinstance(status, int) else 0


def build(command: Command) -> click.Command:
    """`command` as a click command."""
    common: dict[str, Any] = {
        "name": command.name,
        "params": [*map(_argument, command.arguments), *map(_option, command.options)],
        "help": _help(command),
        "short_help": command.summary,
        "epilog": "\n".join(command.examples),
        "context_settings": SETTINGS,
    }
    if not command.subcommands:
        return CommandWithExamples(callback=_callback(command), **common)
    return GroupWithExamples(
        callback=_callback(command) if command.run else None,
        invoke_without_command=command.run is not None,
        commands={name: build(sub) for name, sub in command.subcommands.items()},
        **common,
    )


def _callback(command: Command) -> Callable[..., int | None]:
    def call(**values: Any) -> int | None:
        if click.get_current_context().invoked_subcommand is not None:
            return None
        assert command.run is not None
        return command.run(Args(**values))

    return call


def _option(option: Option) -> click.Option:
    if option.kind == "flag":
        return click.Option([*option.flags, option.name], is_flag=True, help=option.help)
    return click.Option(
        [*option.flags, option.name],
        type=Reading(option),
        multiple=option.many,
        help=option.help,
        metavar=option.metavar or ("|".join(option.choices) if option.choices else option.kind.upper()),
        shell_complete=_completer(option.complete, option.choices),
    )


def _argument(argument: Argument) -> click.Argument:
    return click.Argument(
        [argument.name],
        required=argument.required,
        nargs=-1 if argument.many else 1,
        metavar=_metavar(argument),
        type=click.Choice(argument.choices) if argument.choices else click.STRING,
        shell_complete=_completer(argument.complete, argument.choices),
    )


def _metavar(argument: Argument) -> str:
    return argument.shown


def _completer(source: str | None, choices: Iterable[str]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if source == "file":
            return [CompletionItem(incomplete, type="file")]
        if source == "param":
            offered: Iterable[str] = completion.offers_of_params(ctx.params.get("method"), incomplete)
        elif source == "option":
            offered = completion.offers_of_options(ctx.params.get("id"))
        else:
            offered = choices or completion.offers(source)
        return [CompletionItem(value) for value in offered if value.startswith(incomplete)]

    return complete


def _help(command: Command) -> str:
    lines = [command.summary, command.description]
    if command.arguments:
        lines.append("\b\n" + "\n".join(f"{_metavar(a):12} {a.help}" for a in command.arguments))
    return "\n\n".join(line for line in lines if line)


def _write_epilog(epilog: str | None, formatter: click.HelpFormatter) -> None:
    if epilog:
        with formatter.section("Examples"):
            for line in epilog.splitlines():
                formatter.write(f"  {line}\n")


# Words that other programs have as commands.
_MEANT = {"version": "--version", "help": "--help", "machines": "link"}


def _unknown_name_message(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    if name in _MEANT:
        return f"there is no command {quote(name)}; see: sessiond {_MEANT[name]}"
    near = get_close_matches(name, known, 1)
    return f"there is no command {quote(name)}" + (
        f": did you mean {quote(near[0])}?" if near else "; see: sessiond --help"
    )
