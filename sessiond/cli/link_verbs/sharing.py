"""`sessiond link share` and `unshare`: sessions that other machines get besides those of the rules."""

from __future__ import annotations

from contextlib import contextmanager

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import ask
from sessiond.cli.frame.failures import FAILED, USAGE, CommandFailed
from sessiond.cli.link_verbs.places import CONFIG, STORE, load_config, load_module, store_of
from sessiond.cli.terminal.output import as_json, lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from collections.abc import Set as AbstractSet

KEY = Argument("key", "The session: a key, an alias, an id or a label.", required=False, complete="key")


def share(args: Args) -> int | None:
    if args.key is None:
        _show(args)
        return None
    key, shares, machine = _key_of(args), load_module("shares"), _machine_of(args)
    if not key.startswith("agent:"):
        raise CommandFailed(
            f"{key} is of another program or machine", hint="only sessions of ours are shared", status=USAGE
        )
    with _marks_errors():
        is_new = shares.mark(store_of(args), key, machine or shares.EVERYBODY)
    _say(args, key, f"{key} goes to {machine or 'all machines'}" + ("" if is_new else ", as before"), is_new)
    return None


def unshare(args: Args) -> int | None:
    if args.key is None:
        raise CommandFailed("say which session", hint="sessiond link share, without one, lists them", status=USAGE)
    shares = load_module("shares")
    marks = _marks_of(args)
    # A session that was deleted, and a machine that is not in the configuration any more, may still be marked.
    key = args.key if args.key in marks else _key_of(args)
    machines = marks.get(key, frozenset())
    machine = args.to if args.to in machines else _machine_of(args)
    if machine is not None and shares.EVERYBODY in machines:
        hint = f"sessiond link unshare {key}, then share it with each of the others: --to NAME"
        raise CommandFailed(f"{key} goes to all machines, and so to {machine}", hint=hint, status=FAILED)
    with _marks_errors():
        was_there: bool = shares.unmark(store_of(args), key, machine)
    words = f"{key} is shared no more" if was_there else f"{key} was not shared"
    _say(args, key, words + (f" with {machine}" if machine else ""), was_there)
    return None if was_there else FAILED


def _show(args: Args) -> None:
    marks = _marks_of(args)
    if args.json:
        as_json({"shares": {key: sorted(machines) for key, machines in marks.items()}})
        return
    for key, machines in sorted(marks.items()):
        lines([f"{key}  {'all machines' if '*' in machines else ', '.join(sorted(machines))}"])


def _marks_of(args: Args) -> Mapping[str, AbstractSet[str]]:
    with _marks_errors():
        marks: Mapping[str, AbstractSet[str]] = load_module("shares").SharesFile(store_of(args)).marks
    return marks


@contextmanager
def _marks_errors() -> Iterator[None]:
    """Why the marks cannot be read or changed, as a sentence."""
    failure = load_module("failures").LinkError
    try:
        yield
    except failure as error:
        raise CommandFailed(str(error)) from None


def _key_of(args: Args) -> str:
    """The canonical key, by which sessions are marked."""
    found: str = ask(args, "sessions.resolve", {"key": args.key})["key"]
    return found


def _machine_of(args: Args) -> str | None:
    if args.to is not None and load_config(args).machine(args.to) is None:
        raise CommandFailed(
            f"there is no machine {args.to} in the configuration", hint="sessiond link peer lists them", status=USAGE
        )
    name: str | None = args.to
    return name


def _say(args: Args, key: str, words: str, is_changed: bool) -> None:
    if args.json:
        as_json({"key": key, "machine": args.to, "changed": is_changed})
    else:
        lines([words])


SHARE = Command(
    "share",
    "Let other machines read a session; without one, list what is shared.",
    run=share,
    description="Besides what the rules of [[link.peers]] export. It stays so until `unshare`, also over a reset.",
    arguments=(KEY,),
    options=(Option("--to", "Only this machine (default: all).", metavar="NAME"), STORE, CONFIG, *CLIENT_OPTIONS),
    examples=("sessiond link share main --to mars", "sessiond link share"),
)
UNSHARE = Command(
    "unshare",
    "Take it back: other machines remove their copies.",
    run=unshare,
    arguments=(KEY,),
    options=(
        Option("--to", "Only for this machine (default: all).", metavar="NAME"),
        STORE,
        CONFIG,
        *CLIENT_OPTIONS,
    ),
    examples=("sessiond link unshare main",),
)
