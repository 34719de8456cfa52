"""The declaration of a command, as plain data: used by the quick parser, by click (help, errors, completion) and for
the man page. Importing this module has to stay quick, so it uses no click, no typing and no dataclasses.
"""

from __future__ import annotations

from types import SimpleNamespace

from sessiond.errors import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[[SimpleNamespace], int | None]

Args = SimpleNamespace

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Option:
    """`flags` is `"--limit"` or `"--follow -f"`; the value is read as `args.limit`, `args.follow`.

    `kind` is flag, text, int (of at least 0), count (an int of at least 1), number (a float of at least 0) or duration
    (seconds, from `90`, `15m`, `90d`).
    `complete` names what the shell completes: `key`, `agent`, `question`, `option` (of a question) or `file`.
    """

    def __init__(
        self,
        flags: str,
        help: str,  # named as in click
        *,
        kind: str = "text",
        metavar: str | None = None,
        many: bool = False,
        choices: Sequence[str] = (),
        complete: str | None = None,
    ) -> None:
        self.flags = flags.split()
        self.name = self.flags[0].lstrip("-").replace("-", "_")
        self.help = help
        self.kind = kind
        self.metavar = metavar
        self.many = many
        self.choices = tuple(choices)
        self.complete = complete

    def empty(self) -> object:
        """The value if the option is not given."""
        if self.kind == "flag":
            return False
        return () if self.many else None

    def read(self, text: str) -> object:
        """The value of `text`; ValueError says what is wrong with it."""
        if self.choices and text not in self.choices:
            raise ValueError(f"{quote(text)} is not one of {', '.join(self.choices)}")
        return CONVERT[self.kind](text)


class Argument:
    """A positional argument. `many`: it takes all remaining ones, so it has to be the last; `shown` is its usage."""

    def __init__(
        self,
        name: str,
        help: str,
        *,
        required: bool = True,
        many: bool = False,
        choices: Sequence[str] = (),
        complete: str | None = None,
        shown: str | None = None,
    ) -> None:
        plain = name.upper() + ("..." if many else "")
        self.shown = shown or (plain if required else f"[{plain}]")
        self.name = name
        self.help = help
        self.required = required
        self.many = many
        self.choices = tuple(choices)
        self.complete = complete


class Command:
    """A command. `run(args)` returns the exit status (None is 0). `examples` are whole command lines.

    If a command has `subcommands` (name -> Command) and none is given, its own `run` is called, if it has one.
    """

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        run: Run | None = None,
        arguments: Sequence[Argument] = (),
        options: Sequence[Option] = (),
        examples: Sequence[str] = (),
        description: str = "",
        subcommands: Sequence[Command] = (),
    ) -> None:
        self.name = name
        self.summary = summary
        self.run = run
        self.arguments = tuple(arguments)
        self.options = tuple(options)
        self.examples = tuple(examples)
        self.description = description
        self.subcommands = {command.name: command for command in subcommands}


def _whole(text: str, least: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < least:
        raise ValueError(f"{quote(text)} is not a whole number of at least {least}")
    return number


def _count(text: str) -> int:
    return _whole(text, 1)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{quote(text)} is not a number of at least 0")
    return number


def _duration(text: str) -> float:
    unit = UNITS_S.get(text[-1:])
    try:
        return _number(text) if unit is None else _number(text[:-1]) * unit
    except ValueError:
        raise ValueError(f"{quote(text)} is not a duration: write 90 (seconds), 30s, 15m, 12h, 90d or 2w") from None


CONVERT: dict[str, Callable[[str], object]] = {
    "text": str,
    "int": _whole,
    "count": _count,
    "number": _number,
    "duration": _duration,
}

JSON = Option("--json", "Print JSON instead of text.", kind="flag")
SOCKET = Option("--socket", "The daemon's socket (default: $SESSIOND_SOCKET, else where it listens).", metavar="PATH")
CLIENT_OPTIONS = (JSON, SOCKET)
