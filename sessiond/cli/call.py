"""`sessiond call`: call any method of the daemon."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect
from sessiond.cli.frame.failures import CommandFailed, describe
from sessiond.cli.frame.params import read_params
from sessiond.cli.terminal.output import as_json
from sessiond.client.errors import RpcError


def run(args: Args) -> None:
    with connect(args) as client:
        params = read_params(args.params, args.method, lambda: client.call("rpc.discover", timeout_s=CALL_TIMEOUT_S))
        try:
            as_json(client.call(args.method, params, timeout_s=args.timeout))
        except RpcError as error:
            # Not translated to options and commands: the caller used the names of the protocol.
            failure = describe(error)
            raise CommandFailed(error.message, hint=failure.hint, status=failure.status) from None


COMMAND = Command(
    "call",
    "Call any method of the daemon and print its result as JSON.",
    run=run,
    description="The methods and their params: sessiond call rpc.discover (docs/protocol.md has them in tables). A"
    " VALUE is taken as the method wants it: text as it stands, a number, true, or JSON.",
    arguments=(
        Argument("method", "The method's name.", complete="method"),
        Argument(
            "params",
            "NAME=VALUE, once or more, or one JSON object; `-` reads it from standard input.",
            required=False,
            many=True,
            complete="param",
            shown="[NAME=VALUE...|JSON]",
        ),
    ),
    options=(
        Option("--timeout", "Give up after this long (exit 5).", kind="duration", metavar="SECONDS"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        "sessiond call ping",
        "sessiond call sessions_list limit=5 search=build",
        'sessiond call sessions.usage \'{"key":"main"}\'',
    ),
)
