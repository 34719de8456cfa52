"""`sessiond link identity` and `peer`: who this machine is to others, and who they are to it."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

from sessiond.cli.frame.command import JSON, Args, Argument, Command, Option
from sessiond.cli.frame.failures import BAD_CONFIG, FAILED, USAGE, CommandFailed, note
from sessiond.cli.link_verbs.places import CONFIG, STORE, load_config, load_module, path_of, store_of
from sessiond.cli.terminal.output import as_json, lines
from sessiond.errors import quote, reason_of
from sessiond.machine_names import MACHINE_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from sessiond.config.link import LinkConfig


def show_identity(args: Args) -> None:
    """Print the line for the others' configuration; it is made at the first time."""
    if args.nkey:
        _show_nkey(args, load_config(args).link)
        return
    failure = load_module("failures").LinkError
    try:
        public = load_module("identity").load_identity(store_of(args), make=True).public
    except failure as error:
        raise CommandFailed(str(error)) from None
    if args.json:
        as_json({"identity": public.text, "fingerprint": public.fingerprint})
        return
    lines([public.text])
    note(f"fingerprint  {public.fingerprint}")
    note("on each other machine: sessiond link peer add NAME-OF-THIS-MACHINE LINE; compare the fingerprint there")


def _show_nkey(args: Args, link: LinkConfig) -> None:
    """Print the public nkey of this machine for the server's configuration; its seed is made where there is none."""
    if link.nkey_seed is None:
        raise CommandFailed(
            "the configuration names no file for the seed",
            hint='write into [link]: nkeySeed = "~/.config/sessiond/link.nk"',
            status=BAD_CONFIG,
        )
    path = link.nkey_seed.expanduser()
    is_new = not _is_there(path)
    public = own_nkey(path)
    if args.json:
        as_json({"nkey": public, "seed": str(path)})
        return
    lines([public])
    note(f"its seed is in {path}" + (", which was made now" if is_new else ""))


def own_nkey(path: Path) -> str:
    """The public nkey of the seed in the file, which is made where there is none."""
    connecting = load_module("connecting")
    try:
        if not _is_there(path):
            _write_seed(path, connecting.new_seed())
        public: str = connecting.public_nkey(connecting.read_seed(path), str(path))
    except load_module("failures").LinkError as error:
        raise CommandFailed(str(error)) from None
    return public


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder that may not be entered: whoever opens the file says so
        return True


def _write_seed(path: Path, seed: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "w", encoding="ascii") as file:
                file.write(f"{seed}\n")
        except OSError:
            path.unlink()  # half a seed would be taken for one that is damaged
            raise
    except OSError as error:
        hint = "make its folder, or name another file in [link]: nkeySeed"
        raise CommandFailed(f"{path} cannot be made for the seed: {reason_of(error)}", hint=hint) from None


def list_peers(args: Args) -> None:
    peers = load_config(args).link.peers
    identity, failure = load_module("identity"), load_module("failures").LinkError
    found: list[dict[str, Any]] = []
    for peer in peers:
        try:
            found.append({"name": peer.name, "fingerprint": identity.parse_public(peer.key, peer.name).fingerprint})
        except failure as error:
            raise CommandFailed(str(error), status=BAD_CONFIG) from None
    if args.json:
        as_json({"peers": found})
        return
    lines([f"{one['name']:12} {one['fingerprint']}" for one in found])
    if not found:
        note("no other machines")
        note('add one with what "sessiond link identity" prints there: sessiond link peer add NAME LINE')


def add_peer(args: Args) -> None:
    """Print the lines for the configuration, which is the owner's to write."""
    config, failure = load_config(args), load_module("failures").LinkError
    if not MACHINE_NAME.fullmatch(args.name):
        hint = "up to 32 of a-z, 0-9 and -, as in: sessiond link peer add build-host LINE"
        raise CommandFailed(f"{quote(args.name)} is no name of a machine", hint=hint, status=USAGE)
    if args.name == config.link.name:
        raise CommandFailed(f"{args.name} is the name of this machine", hint="give the other's", status=USAGE)
    identity = load_module("identity")
    try:
        public = identity.parse_public(args.line, args.name)
    except failure as error:
        raise CommandFailed(str(error), status=USAGE) from None
    with suppress(failure):  # a machine that has none yet has handed out none
        if identity.load_identity(store_of(args)).public == public:
            hint = f'"sessiond link identity" has to be run on {args.name}'
            raise CommandFailed("that is the identity of this machine", hint=hint, status=USAGE)
    known = next((peer for peer in config.link.peers if peer.name == args.name), None)
    if known is not None:
        if known.key == public.text:
            raise CommandFailed(f"the configuration has {args.name} already, with this key", status=FAILED)
        hint = "if that machine has a new identity, and you know why, replace its key there"
        raise CommandFailed(f"the configuration has {args.name} with another key", hint=hint, status=FAILED)
    if args.json:
        as_json({"name": args.name, "key": public.text, "fingerprint": public.fingerprint})
        return
    lines(
        [
            "[[link.peers]]",
            f'name = "{args.name}"',
            f'key = "{public.text}"',
            "# What it gets and may do here, nothing without these:",
            '# export = [{ agents = ["ops"], labels = ["pub-*"] }]',
            '# send = ["agent:ops:*"]',
            '# spawn = ["ops"]',
        ]
    )
    default = import_module("sessiond.config.settings").default_path
    note(f"put these lines into {path_of(args) or default()}, then run: sessiond config reload")
    note(f"fingerprint  {public.fingerprint}")
    note(f'compare it with what "sessiond link identity" prints on {args.name}, by another way than this line came')


IDENTITY = Command(
    "identity",
    "Print the line by which other machines know this one, and its fingerprint.",
    run=show_identity,
    description="It is made at the first time, in the store. Hand it over yourself, never over the server.",
    options=(
        Option("--nkey", "Print the public nkey for the server instead; its seed is made if missing.", kind="flag"),
        STORE,
        CONFIG,
        JSON,
    ),
    examples=("sessiond link identity", "ssh mars sessiond link identity"),
)
PEER = Command(
    "peer",
    "List the other machines, or print the lines that add one.",
    run=list_peers,
    options=(CONFIG, JSON),
    examples=("sessiond link peer",),
    subcommands=(
        Command(
            "add",
            "Print the lines of the configuration for another machine.",
            run=add_peer,
            arguments=(
                Argument("name", "What it is called, in its own configuration too."),
                Argument("line", 'What "sessiond link identity" prints there.'),
            ),
            options=(STORE, CONFIG, JSON),
            examples=('sessiond link peer add mars "$(ssh mars sessiond link identity)"',),
        ),
    ),
)
