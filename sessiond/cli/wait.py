"""`sessiond wait`: wait for the end of a run and print its reply."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect
from sessiond.cli.frame.waiting import finish, wait


def run(args: Args) -> int:
    with connect(args) as client:
        # A first call, to fail at once if no daemon runs: the wait itself continues over restarts.
        client.call("ping", timeout_s=CALL_TIMEOUT_S)
        answer = wait(client, args.run, args.timeout, f"waiting for {args.run}")
    return finish(answer, json=args.json, where=answer["sessionKey"])


COMMAND = Command(
    "wait",
    "Wait for the end of a run and print its reply.",
    run=run,
    description="The wait survives a restart of the daemon; --timeout ends the wait, never the run.",
    arguments=(Argument("run", "The run's id, as send --no-wait and spawn print it."),),
    options=(
        Option("--timeout", "Wait at most this long (exit 5; the run goes on).", kind="duration", metavar="SECONDS"),
        *CLIENT_OPTIONS,
    ),
    examples=('run=$(sessiond send --no-wait main "take your time") && sessiond wait "$run"',),
)
