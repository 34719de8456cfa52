"""`sessiond call`: any method of the daemon, by hand."""

from __future__ import annotations

import json

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import connect
from sessiond.cli.frame.failures import USAGE, CommandFailed, describe
from sessiond.cli.frame.input import text_or_stdin
from sessiond.cli.terminal.output import as_json
from sessiond.client.errors import RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def params_of(text: str | None) -> dict[str, Any]:
    """The params of `[JSON]`: an object, none for none."""
    if text is None:
        return {}
    try:
        params = json.loads(text_or_stdin([text]))
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"the params are not JSON: {error}", status=USAGE) from None
    if not isinstance(params, dict):
        raise CommandFailed("the params must be a JSON object: params go by name", status=USAGE)
    return params


def run(args: Args) -> None:
    params = params_of(args.params)
    with connect(args) as client:
        try:
            as_json(client.call(args.method, params, timeout_s=args.timeout))
        except RpcError as error:
            # In the words of the protocol: that is what was written here.
            failure = describe(error)
            raise CommandFailed(error.message, hint=failure.hint, status=failure.status) from None


COMMAND = Command(
    "call",
    "Call any method of the daemon and print its result as JSON.",
    run=run,
    description="The methods and their params: sessiond call rpc.discover",
    arguments=(
        Argument("method", "The method's name.", complete="method"),
        Argument("params", "A JSON object; `-` reads standard input.", required=False),
    ),
    options=(
        Option("--timeout", "Give up after this long (exit 5).", kind="duration", metavar="SECONDS"),
        *CLIENT_OPTIONS,
    ),
    examples=("sessiond call ping", 'sessiond call sessions.usage \'{"key":"main"}\''),
)
