"""The quick parser and click use the same declarations and must never disagree."""

from __future__ import annotations

from typing import Any

import click
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rows import check_each
from support.sampling import amount

from sessiond.cli.frame import quick, registry, tree
from sessiond.cli.frame.command import Args, Argument, Command, Option

NAMES = list(registry.COMMANDS)


def commands() -> list[tuple[list[str], Command]]:
    found = []
    for name in NAMES:
        command = registry.find(name)
        assert command is not None
        found.append(([name], command))
        found += [([name, sub.name], sub) for sub in command.subcommands.values()]
    return found


ALL = commands()


def parse_with_click(words: list[str]) -> dict[str, Any] | None:
    """What click hands to the command; None for a mistake, help or no command."""
    group = tree.root()
    context: click.Context | None = None
    try:
        with group.make_context("sessiond", list(words)) as context:
            while isinstance(context.command, click.Group):
                rest = [*context._protected_args, *context.args]
                if not rest:
                    return dict(context.params) if context.command.invoke_without_command else None
                name, command, rest = context.command.resolve_command(context, rest)
                assert command is not None
                context = command.make_context(name, rest, parent=context)
    except (click.ClickException, click.exceptions.Exit):
        return None
    return dict(context.params)


WORD = st.sampled_from(
    ["main", "hello", "-", "--", "", "5", "90d", "0.5", "-3", "x=y", "--json=1", "-h", "--", "-n", "-f", "-n5", "ü"]
)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    words, command = draw(st.sampled_from(ALL))
    flags = [flag for option in command.options for flag in option.flags]
    choices = [choice for thing in (*command.options, *command.arguments) for choice in thing.choices]
    part = WORD
    if flags:
        part = part | st.sampled_from(flags) | st.builds("{}={}".format, st.sampled_from(flags), WORD)
    if choices:
        part = part | st.sampled_from(choices)
    return [*words, *draw(st.lists(part, max_size=5))]


@given(lines())
@settings(max_examples=amount(400, 80), deadline=None)
def test_click_agrees_with_every_result_of_the_quick_parser(words: list[str]) -> None:
    found = quick.parse(words, registry.find)
    if found is not None:
        assert vars(found[1]) == parse_with_click(words)


@check_each("line", ["list", "history main -n 5 -f", "token list --json", "agents", "send main a b"])
def test_common_command_lines_are_parsed_without_click(line: str) -> None:
    assert quick.parse(line.split(), registry.find) is not None


TRY = Command(
    "try",
    "Try.",
    run=lambda _: None,
    arguments=(Argument("key", "K."), Argument("text", "T.", required=False, many=True)),
    options=(
        Option("--limit -n", "N.", kind="int"),
        Option("--age", "A.", kind="duration"),
        Option("--kind", "K.", many=True, choices=("a", "b")),
        Option("--json", "J.", kind="flag"),
    ),
)


def parse_quickly(*words: str) -> Args | None:
    found = quick.parse(["try", *words], {"try": TRY}.get)
    return None if found is None else found[1]


def test_options_and_arguments_may_stand_in_any_order() -> None:
    expected = Args(limit=5, age=5400.0, kind=("a", "b"), json=True, key="k", text=("x", "-", "--y"))
    assert (
        parse_quickly("--age=1.5h", "k", "-n", "5", "--kind", "a", "x", "--json", "--kind=b", "-", "--", "--y")
        == expected
    )
    assert parse_quickly("k") == Args(limit=None, age=None, kind=(), json=False, key="k", text=())


@check_each(
    "words",
    [
        [],
        ["k", "--help"],
        ["k", "--lim", "5"],
        ["k", "--limit"],
        ["k", "--limit", "-5"],
        ["k", "--limit", "five"],
        ["k", "--age", "1y"],
        ["k", "--kind", "c"],
        ["k", "--json=yes"],
        ["k", "-n5"],
    ],
)
def test_unusual_command_lines_are_left_to_click(words: list[str]) -> None:
    assert parse_quickly(*words) is None
