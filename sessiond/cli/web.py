"""`sessiond web`: open the page in the browser, print its address, or end it."""

from __future__ import annotations

import os

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Command, Option
from sessiond.cli.frame.daemon import ask, drop_absent
from sessiond.cli.frame.failures import USAGE, CommandFailed, note
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.token import SCOPES
from sessiond.errors import pluralize
from sessiond.ranges import PAGE_TTL_S

READ_SCOPES = ("list", "read")
# What a person does all day; not what ends, deletes or changes settings.
WRITE_SCOPES = tuple(scope for scope in SCOPES if scope != "admin")


def run(args: Args) -> None:
    if args.close:
        _close(args)
        return
    if args.ttl is not None and args.ttl < 1:
        raise CommandFailed("a page is open for a second at least", hint="as in: --ttl 1h", status=USAGE)
    scopes = SCOPES if args.admin else WRITE_SCOPES if args.write else READ_SCOPES
    opened = ask(args, "http.open", drop_absent({"scopes": list(scopes), "ttlSeconds": args.ttl}))
    url = f"{opened['address']}#{opened['code']}"
    if args.json:
        as_json({**opened, "url": url})
        return
    if args.print:
        lines([url])
    elif _open_browser(url):
        note(f"opened {opened['address']} in the browser")
        return
    else:
        note("there is no browser here; open this address in one")
        lines([url])
    port = opened["address"].rstrip("/").rpartition(":")[2]
    note(f"it works once, within {opened['codeSeconds']} seconds")
    note(f"from another machine, in a terminal there first: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE")


def _close(args: Args) -> None:
    done = ask(args, "http.close")
    if args.json:
        as_json(done)
        return
    ended = f"{pluralize(done['revoked'], 'page')} ended" if done["revoked"] else "no page was open"
    lines([f"{ended}; the port is closed" if done["closed"] else ended])


def _open_browser(url: str) -> bool:
    """Whether a browser was started. None is where there is no screen: one in the terminal runs no scripts."""
    if not any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        return False
    import webbrowser

    try:
        return webbrowser.open(url)
    except (OSError, webbrowser.Error):
        return False


COMMAND = Command(
    "web",
    "Open the page in the browser: everything that your agents do, live.",
    run=run,
    options=(
        Option("--print", "Print the address instead of opening a browser.", kind="flag"),
        Option("--write", "The page may also send, spawn and answer.", kind="flag"),
        Option("--admin", "The page may do everything.", kind="flag"),
        Option(
            "--ttl",
            f"How long the page stays open ({PAGE_TTL_S.default // 3600}h).",
            kind="duration",
            metavar="SECONDS",
        ),
        Option("--close", "End all pages instead.", kind="flag"),
        *CLIENT_OPTIONS,
    ),
    description="The page reads unless you give it more. Nothing is installed or fetched for it, and it is reached "
    "from this machine only.",
    examples=("sessiond web", "sessiond web --write", "sessiond web --print", "sessiond web --close"),
)
