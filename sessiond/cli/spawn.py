"""`sessiond spawn`: start a sub-agent on a task, with files."""

from __future__ import annotations

import sys

from sessiond.cli.frame.away import note_away
from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect, drop_absent
from sessiond.cli.frame.failures import note
from sessiond.cli.frame.input import text_or_stdin
from sessiond.cli.frame.waiting import finish, wait
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.screen import Screen, screen_of
from sessiond.cli.terminal.table import Column, pairs, render
from sessiond.cli.terminal.times import size
from sessiond.client import files
from sessiond.ranges import THINKING_LEVELS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How long an agent may take to start and to say whether it has a session, as `startSeconds` has it.
RESUME_S = 60.0


def show(accepted: dict[str, Any], on: Screen) -> list[str]:
    """The receipt: the child, its run, and its files as a table."""
    receipt = accepted.get("attachments")
    facts = pairs(
        {
            "session": accepted["childSessionKey"],
            "run": accepted["runId"],
            "files": receipt and f"{receipt['count']} ({size(receipt['totalBytes'])}) in {receipt['relDir']}",
        },
        on,
    )
    columns = (
        Column("FILE", lambda file: file["name"], least=12, keep=3),
        Column("SIZE", lambda file: size(file["bytes"]), right=True, keep=2),
        Column("SHA-256", lambda file: file["sha256"], least=12, keep=1),
    )
    return [*facts, *render(columns, receipt["files"] if receipt else [], on)]


def run(args: Args) -> int | None:
    params = {
        "task": text_or_stdin(args.task),
        "agentId": args.agent,
        "attachments": [files.read_attachment(path) for path in args.attach] or None,
        "model": args.model,
        "thinking": args.thinking,
        "runTimeoutSeconds": args.timeout,
        "label": args.label,
        "sandbox": args.sandbox,
        "cleanup": args.cleanup,
        "runtime": args.runtime,
        "resumeSessionId": args.resume_session,
    }
    with connect(args) as client:
        # The agent may have to be started, to see whether it has the session.
        patience_s = CALL_TIMEOUT_S + (RESUME_S if args.resume_session else 0)
        accepted = client.call("sessions_spawn", drop_absent(params), timeout_s=patience_s)
        child = accepted["childSessionKey"]
        note_away(client, child)
        if not args.wait:
            if args.json:
                as_json(accepted)
                return None
            lines(show(accepted, screen_of()))
            note(f"follow it: sessiond history {child} -f")
            return None
        if not args.json:  # stdout is for the reply only
            sys.stderr.writelines(line + "\n" for line in show(accepted, screen_of(sys.stderr)))
        answer = wait(client, accepted["runId"], None, f"waiting for {child}")
    return finish({**accepted, **answer}, json=args.json, where=child)


COMMAND = Command(
    "spawn",
    "Give a task to a sub-agent in a session of its own, with files.",
    run=run,
    description="Its announcement goes to the main session of the default agent, or to the session that asks.",
    arguments=(Argument("task", "What to do. `-` is standard input.", many=True),),
    options=(
        Option("--attach", "A file for the sub-agent; may be repeated.", many=True, metavar="FILE", complete="file"),
        Option("--agent", "Which agent (default: the requester's own).", metavar="AGENT", complete="agent"),
        Option("--runtime", "`acp` starts an agent that speaks ACP.", choices=("subagent", "acp")),
        Option("--resume-session", "With acp: go on with this session of the agent program.", metavar="ID"),
        Option("--model", "Which model.", metavar="MODEL"),
        Option("--thinking", f"How much it thinks: {', '.join(THINKING_LEVELS)}.", metavar="LEVEL"),
        Option("--timeout", "End the run after this long.", kind="duration", metavar="SECONDS"),
        Option("--label", "A name for the session.", metavar="NAME"),
        Option("--sandbox", "`require` refuses where there is no sandbox.", choices=("inherit", "require")),
        Option("--cleanup", "Put the session away after its announcement, or keep it.", choices=("keep", "delete")),
        Option("--wait", "Wait for the end and print the reply.", kind="flag"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        'sessiond spawn --attach report.pdf --wait "summarise the report"',
        'sessiond spawn --agent reviewer --sandbox require --timeout 10m "check the patch"',
        'sessiond spawn --runtime acp --agent gemini --wait "what is new upstream?"',
    ),
)
