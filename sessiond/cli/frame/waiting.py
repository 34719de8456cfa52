"""Wait for a run, as `send`, `spawn` and `wait` do, and map its end to an exit status."""

from __future__ import annotations

import sys
import time

from sessiond.cli.frame.failures import FAILED, INTERRUPTED, TIMED_OUT, CommandFailed, note
from sessiond.cli.terminal.escape import escape
from sessiond.cli.terminal.live import CLEAR, StreamedReply
from sessiond.cli.terminal.output import as_json
from sessiond.cli.terminal.times import duration
from sessiond.client.retry import is_wait_over

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client.blocking import Client

# On a terminal the progress line counts seconds; elsewhere each request waits as long as the daemon allows.
TERMINAL_SLICE_S = 1.0
QUIET_SLICE_S = 30.0


def wait(
    client: Client, run_id: str, timeout_s: float | None, what: str, stream: StreamedReply | None = None
) -> dict[str, Any]:
    """`agent.wait` until the run ended or `timeout_s` passed, with a line of progress where stderr is a terminal, for
    as long as `stream` has nothing to show.
    """
    try:
        if not sys.stderr.isatty():
            return client.wait(run_id, timeout_s, QUIET_SLICE_S)
        return _wait_with_progress(client, run_id, timeout_s, what, stream or StreamedReply())
    except KeyboardInterrupt:
        if stream is not None:
            stream.end(None)
        raise CommandFailed(
            f"no longer waiting; the run {run_id} goes on",
            hint=f"wait on with: sessiond wait {run_id}",
            status=INTERRUPTED,
        ) from None


def _wait_with_progress(
    client: Client, run_id: str, timeout_s: float | None, what: str, stream: StreamedReply
) -> dict[str, Any]:
    began = time.monotonic()
    shown = False
    try:
        while True:
            spent = time.monotonic() - began
            left = TERMINAL_SLICE_S if timeout_s is None else min(TERMINAL_SLICE_S, timeout_s - spent)
            answer = client.wait(run_id, max(left, 0))
            spent = time.monotonic() - began
            if is_wait_over(answer) or (timeout_s is not None and spent >= timeout_s):
                return answer
            stream.say_before(f"{CLEAR}{what} … {duration(spent * 1000)}")
            shown = True
    finally:
        if shown:
            stream.say_before(CLEAR)


def describe_circle(where: str) -> str:
    """Why the command does not wait for a run that cannot end before the caller's own run."""
    return f"not waiting: {where} waits for this very run"


def finish(answer: dict[str, Any], *, json: bool, where: str, stream: StreamedReply | None = None) -> int:
    """Print how a run ended: its reply on stdout, unless `stream` has shown it, or the reason on stderr. `where` is the
    session it was in.
    """
    if stream is not None and stream.end(answer.get("reply") if answer["status"] == "ok" else None):
        return 0
    if json:
        as_json(answer)
    status = answer["status"]
    if status == "ok":
        if not json and answer.get("reply"):
            sys.stdout.write(escape(answer["reply"], lines=True) + "\n")
        elif not json:
            note(f"{where} is done and replied nothing")
        return 0
    if status in ("running", "queued", "accepted"):
        run_id = answer.get("runId", "")
        if answer.get("reason") == "ancestor_busy":
            raise CommandFailed(describe_circle(where), hint=f"it is the run {run_id}", status=TIMED_OUT)
        raise CommandFailed(
            f"no reply from {where} yet; the run {run_id} goes on",
            hint=f"wait on with: sessiond wait {run_id}",
            status=TIMED_OUT,
        )
    reasons = {"timeout": "the run met its time limit", "aborted": "the run was aborted"}
    reason = answer.get("error") or reasons.get(status, status)
    hint = f"what was said: sessiond history {where}"
    raise CommandFailed(f"{where}: {reason}", hint=hint, status=FAILED)
