"""`sessiond link admin` and `check`: what the administrator of the server has to do, and whether it is done."""

from __future__ import annotations

from pathlib import Path

from sessiond.cli.doctor import show
from sessiond.cli.frame.command import JSON, Args, Command, Option
from sessiond.cli.frame.failures import BAD_CONFIG, FAILED, USAGE, CommandFailed
from sessiond.cli.link_verbs.identities import own_nkey
from sessiond.cli.link_verbs.places import CONFIG, load_config, load_module
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.screen import screen_of
from sessiond.errors import quote
from sessiond.machine_names import MACHINE_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from sessiond.config.link import LinkConfig

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TLS_NEXT = """\
# 1  an authority, the server's certificate and one for each user; the name in it is the user's:
#    curve="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
#    openssl req -x509 $curve -keyout ca.key -out ca.pem -days 3650 -subj /CN=ca
#    openssl req $curve -keyout NAME.key -out NAME.csr -subj /CN=NAME
#    echo subjectAltName=DNS:NAME > NAME.ext
#    openssl x509 -req -in NAME.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 -out NAME.pem -extfile NAME.ext
#    (for srv.pem NAME is the name in link.server; where that is an address: IP:NAME, not DNS:NAME)"""
_NKEYS_NEXT = """\
# 1  the public nkey of a machine is printed there by: sessiond link identity --nkey
#    that of the administrator, whose seed is made if it is missing, is filled in by: --nkey-seed ADMIN.nk"""
_NEXT = """\
# 2  start the server with this file, then make the stream and the consumers:
#    sessiond link admin --apply {options}
# 3  on each machine: sessiond link check"""


def administrate(args: Args) -> None:
    # Imported late: msgspec and the structs take some 60 ms.
    from sessiond.config.link import server_port

    link = load_config(args).link
    machines = _machines(args, link)
    if args.apply:
        _apply(args, link, machines)
        return
    setup = load_module("server_setup")
    admin, nkeys = args.admin or setup.ADMIN, _nkeys(args, link)
    # With certificates there is TLS; with nkeys there may be.
    server = _server(args, link)
    is_encrypted = nkeys is None or (server or "").startswith("tls://")
    if nkeys is not None and args.nkey_seed:
        nkeys[admin] = own_nkey(Path(args.nkey_seed).expanduser())
    ports = {} if server is None else {"port": server_port(server)}
    text = setup.server_configuration(
        machines, stream=link.stream, admin=admin, nkeys=nkeys, is_encrypted=is_encrypted, **ports
    )
    if args.store_dir is not None:
        text = text.replace(setup.STORE_DIR, str(Path(args.store_dir).expanduser().absolute()))
    if args.json:
        as_json({"machines": machines, "configuration": text})
        return
    lines(text.rstrip("\n").split("\n"))
    options = "--certificate admin.pem --key admin.key"
    if nkeys is not None:
        options = f"--nkey-seed {args.nkey_seed or 'ADMIN.nk'}"
    lines([_TLS_NEXT if nkeys is None else _NKEYS_NEXT, _NEXT.format(options=options)])


def _apply(args: Args, link: LinkConfig, machines: list[str]) -> None:
    setup = load_module("server_setup")
    settings = _settings(args, link, setup.ADMIN, is_admin=True)
    limits: dict[str, Any] = {}
    if args.max_bytes is not None:
        limits["max_bytes"] = _bytes_of(args.max_bytes)
    if args.max_age is not None:
        limits["max_age_s"] = args.max_age
    steps = _finish(setup.set_up(settings, machines, **limits))
    if args.json:
        as_json({"steps": [{"what": step.what, "done": step.done} for step in steps]})
        return
    lines([f"{step.what:24} {step.done}" for step in steps])


def check(args: Args) -> int | None:
    """Print what was found; FAILED where something does not work."""
    link = load_config(args).link
    checking = load_module("server_check")
    is_admin = bool(args.certificate or args.nkey_seed or args.admin)
    settings = _settings(args, link, load_module("server_setup").ADMIN, is_admin=is_admin)
    monitoring = None
    found: list[dict[str, Any]] = []
    if args.monitor is not None:
        try:
            monitoring = checking.read_monitoring(args.monitor, link.stream)
        except load_module("failures").LinkError as error:
            found.append({"level": "warn", "thing": "monitoring", "what": str(error)})
    peers = [] if is_admin else [peer.name for peer in link.peers]
    machines = _machines(args, link) if is_admin else []
    findings = _finish(checking.check(settings, peers, monitoring, machines=machines))
    found += [{"level": one.level, "thing": one.thing, "what": one.what, "hint": one.hint} for one in findings]
    if args.json:
        as_json({"findings": found})
    else:
        lines(show(found, screen_of()))
    return FAILED if any(one["level"] == "error" for one in found) else None


def _finish(work: Coroutine[Any, Any, Any]) -> Any:
    """What the work comes to. Its failures are sentences."""
    import asyncio
    import logging

    # asyncio remarks on every connection with TLS that is closed, and the library on what is said here in words.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    try:
        return asyncio.run(work)
    except load_module("failures").LinkError as error:
        raise CommandFailed(str(error)) from None


def _machines(args: Args, link: LinkConfig) -> list[str]:
    """The machines named, else this one and its peers."""
    names = list(dict.fromkeys(args.machine)) or [*filter(None, [link.name]), *(peer.name for peer in link.peers)]
    for name in names:
        if not MACHINE_NAME.fullmatch(name):
            raise CommandFailed(f"{quote(name)} is no name of a machine", hint="as in: --machine lap", status=USAGE)
    if not names:
        hint = "--machine, once for each; or the [link] table of the configuration with its peers"
        raise CommandFailed("say which machines there are", hint=hint, status=USAGE)
    return names


def _nkeys(args: Args, link: LinkConfig) -> dict[str, str] | None:
    """The public nkeys by name, for a server with nkeys; None for one with certificates."""
    given = dict(pair.partition("=")[::2] for pair in args.nkey)
    bad = next((name for name, key in given.items() if not key.startswith("U") or len(key) != 56), None)
    if bad is not None:
        hint = 'as in: --nkey lap=UABC..., what "sessiond link identity --nkey" prints there'
        raise CommandFailed(f"that is no public nkey for {quote(bad)}", hint=hint, status=USAGE)
    seed = link.nkey_seed.expanduser() if link.nkey_seed is not None else None
    if seed is not None and link.name is not None and link.name not in given:
        given[link.name] = own_nkey(seed)
    return given if given or seed is not None or args.nkey_seed else None


def _server(args: Args, link: LinkConfig) -> str | None:
    """The address of the server, which the configuration has checked, and an option has not."""
    from sessiond.config.link import server_port

    if args.server and server_port(args.server) is None:
        hint = "as in: --server tls://nats.example:4222"
        raise CommandFailed("that is no address of a NATS server", hint=hint, status=USAGE)
    return args.server or link.server


def _settings(args: Args, link: LinkConfig, admin: str, *, is_admin: bool) -> Any:
    """How to reach the server: as the administrator with the options, else as this machine by its configuration."""
    server = _server(args, link)
    if server is None:
        raise CommandFailed(
            "no server is named",
            hint='write into [link]: server = "tls://nats.example:4222", or --server',
            status=USAGE,
        )
    if link.name is None and not is_admin:
        hint = 'write into [link]: name = "lap"'
        raise CommandFailed("the configuration has no name for this machine", hint=hint, status=BAD_CONFIG)

    from msgspec.structs import replace

    names = ("ca", "certificate", "key", "nkey_seed")
    given = {name: Path(path).expanduser() for name in names if (path := getattr(args, name))}
    # The administrator is another user, whom nothing in the configuration of this machine lets in.
    user = {"name": args.admin or admin, "certificate": None, "key": None, "nkey_seed": None} if is_admin else {}
    return load_module("connecting").settings_of(replace(link, **{"server": server, **user, **given}))


def _bytes_of(text: str) -> int:
    unit = _UNITS.get(text[-1:].lower())
    number = text[:-1] if unit else text
    if not number.isascii() or not number.isdecimal() or len(number) > 15 or not int(number):
        raise CommandFailed(f"{quote(text)} is no number of bytes", hint="as in: --max-bytes 20G", status=USAGE)
    return int(number) * (unit or 1)


_MACHINE = Option(
    "--machine", "A machine; may be repeated (default: this one and its peers).", metavar="NAME", many=True
)
_ACCESS = (
    Option("--server", "The server's address (default: that of [link]).", metavar="URL"),
    Option("--admin", "The administrator's name at the server (admin).", metavar="NAME"),
    Option("--ca", "The authority of its certificate (default: that of [link]).", metavar="FILE", complete="file"),
    Option("--certificate", "The administrator's certificate.", metavar="FILE", complete="file"),
    Option("--key", "The key of that certificate.", metavar="FILE", complete="file"),
    Option("--nkey-seed", "The file with the administrator's nkey seed.", metavar="FILE", complete="file"),
)
ADMIN = Command(
    "admin",
    "Print the server's configuration; with --apply make its stream and consumers.",
    run=administrate,
    description="For this machine and its peers, or those named. Both may be done again when there is another machine.",
    options=(
        Option("--apply", "Make the stream and consumers, or change them, as the administrator.", kind="flag"),
        _MACHINE,
        Option("--nkey", "A machine's public nkey, NAME=KEY; may be repeated.", metavar="PAIR", many=True),
        Option("--store-dir", "Where the server keeps the stream (/var/lib/nats).", metavar="DIR", complete="file"),
        Option("--max-bytes", "The limit of the stream (at first 8G).", metavar="BYTES"),
        Option(
            "--max-age", "How long the stream keeps what nobody has fetched (14d).", kind="duration", metavar="TIME"
        ),
        *_ACCESS,
        CONFIG,
        JSON,
    ),
    examples=(
        "sessiond link admin > nats.conf",
        "sessiond link admin --apply --certificate admin.pem --key admin.key",
    ),
)
CHECK = Command(
    "check",
    "Say what is wrong with the server, and what cannot be seen from here.",
    run=check,
    description="As this machine, or as the administrator with --certificate and --key, --nkey-seed or --admin."
    " Exit status 1 if something does not work.",
    options=(
        Option("--monitor", "The server's monitoring port, like http://127.0.0.1:8222.", metavar="URL"),
        _MACHINE,
        *_ACCESS,
        CONFIG,
        JSON,
    ),
    examples=("sessiond link check", "sessiond link check --monitor http://127.0.0.1:8222"),
)
