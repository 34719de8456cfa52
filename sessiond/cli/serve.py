"""`sessiond serve`: run the daemon in the foreground. This module only parses the options."""

from __future__ import annotations

import os
from pathlib import Path

from sessiond.cli.config import CONFIG, path_of
from sessiond.cli.frame.command import Args, Command, Option
from sessiond.client import locate

LEVELS = ("debug", "info", "warning", "error")


def run(args: Args) -> int:
    from sessiond.daemon import lifecycle

    store = Path(args.store).expanduser().absolute() if args.store else Path(locate.store_folder())
    given = args.socket or os.environ.get("SESSIOND_SOCKET")
    socket = Path(given).expanduser().absolute() if given else None
    return lifecycle.run(store, path_of(args), socket, log_level=args.log_level or "info", json_log=args.json)


COMMAND = Command(
    "serve",
    "Run the daemon in the foreground, logging to stderr.",
    run=run,
    description="SIGTERM lets what runs come to an end, a second one is quick; SIGHUP reads the configuration again.",
    options=(
        Option(
            "--store",
            "The store's folder (default: $SESSIOND_STORE, else ~/.local/state/sessiond).",
            metavar="DIR",
            complete="file",
        ),
        CONFIG,
        Option("--socket", "Where to listen (default: $SESSIOND_SOCKET, else the runtime folder).", metavar="PATH"),
        Option("--log-level", "What to log (info).", choices=LEVELS),
        Option("--json", "Log one JSON object a line.", kind="flag"),
    ),
    examples=("sessiond serve", "sessiond serve --store /tmp/try --log-level debug"),
)
