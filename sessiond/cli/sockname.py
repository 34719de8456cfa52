"""`sessiond sockname`: print the path of the daemon's socket."""

from __future__ import annotations

import os

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Command
from sessiond.cli.terminal.output import as_json, lines
from sessiond.client import locate


def run(args: Args) -> None:
    path = locate.socket_path(args.socket)
    if args.json:
        as_json({"socket": path, "exists": os.path.exists(path)})
    else:
        lines([path])


COMMAND = Command(
    "sockname",
    "Print the path of the daemon's socket, whether it runs or not.",
    run=run,
    options=CLIENT_OPTIONS,
    examples=("curl --unix-socket $(sessiond sockname) http://d/healthz",),
)
