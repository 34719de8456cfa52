"""`sessiond patch`: change the settings of a session."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import ask, drop_absent
from sessiond.cli.frame.failures import USAGE, CommandFailed
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.screen import screen_of
from sessiond.cli.terminal.table import pairs
from sessiond.ranges import SEND_POLICIES, THINKING_LEVELS, VERBOSE_LEVELS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The option that sets a field, and the field's name on the wire.
FIELDS = {
    "label": "label",
    "display_name": "displayName",
    "thinking": "thinkingLevel",
    "verbose": "verboseLevel",
    "model": "model",
    "send_policy": "sendPolicy",
    "context_tokens": "contextTokens",
    "notify": "notify",
}
CLEARABLE = (*(name.replace("_", "-") for name in FIELDS), "delivery-context")


def run(args: Args) -> None:
    changes = drop_absent({field: getattr(args, name) for name, field in FIELDS.items()})
    if args.notify is not None:
        changes["notify"] = args.notify == "yes"
    for name in args.clear:
        changes[FIELDS.get(name.replace("-", "_"), "deliveryContext")] = None
    if not changes:
        raise CommandFailed("there is nothing to change", hint="see: sessiond patch --help", status=USAGE)
    patched = ask(args, "sessions.patch", {"key": args.key, **changes})
    if args.json:
        as_json(patched)
        return
    row = patched["row"]
    shown = {field: format_setting(row.get(field, "(cleared)")) for field in changes}
    lines(pairs({"session": patched["key"], **shown}, screen_of()))


def format_setting(value: Any) -> str:
    """The value of a setting for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


COMMAND = Command(
    "patch",
    "Change the settings of a session.",
    run=run,
    arguments=(Argument("key", "The session.", complete="key"),),
    options=(
        Option("--label", "Its name, by which `send --label` finds it.", metavar="NAME"),
        Option("--display-name", "What lists show.", metavar="NAME"),
        Option("--thinking", f"How much it thinks: {', '.join(THINKING_LEVELS)}.", metavar="LEVEL"),
        Option("--verbose", f"How much of its work is shown: {', '.join(VERBOSE_LEVELS)}.", metavar="LEVEL"),
        Option("--model", "Its model.", metavar="MODEL"),
        Option("--send-policy", "Whether messages may be sent to it.", choices=SEND_POLICIES),
        Option("--context-tokens", "The size of its context.", kind="count", metavar="N"),
        Option("--notify", "Whether you are told of the end of each run, however short.", choices=("yes", "no")),
        Option("--clear", "Back to the default; may be repeated.", many=True, choices=CLEARABLE),
        *CLIENT_OPTIONS,
    ),
    examples=("sessiond patch main --label home --thinking high", "sessiond patch main --clear model"),
)
