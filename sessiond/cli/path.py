"""`sessiond path`: where the transcript of a session lies."""

from __future__ import annotations

from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect
from sessiond.cli.terminal.output import as_json, lines


def run(args: Args) -> None:
    with connect(args) as client:
        found = client.call("sessions.resolve", key=args.key, timeout_s=CALL_TIMEOUT_S)
        asked = {"search": found["sessionId"], "includeArchived": True}
        rows = client.call("sessions_list", asked, timeout_s=CALL_TIMEOUT_S)["sessions"]
    path = next(row["transcriptPath"] for row in rows if row["sessionId"] == found["sessionId"])
    if args.json:
        as_json({**found, "transcriptPath": path})
    else:
        lines([path])


COMMAND = Command(
    "path",
    "Print the path of a session's transcript.",
    run=run,
    arguments=(Argument("key", "A session key, `main`, a label, or a session id.", complete="key"),),
    options=CLIENT_OPTIONS,
    examples=('tail -f "$(sessiond path main)"', 'jq -r .type "$(sessiond path main)" | sort | uniq -c'),
)
