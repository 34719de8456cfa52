"""A program of a user's own, as the system tests start it: `sample_program.py agent|channel NAME LOG`.

As an agent it answers what the session's key tells it to, as a channel it acknowledges everything. What it was asked it
writes to LOG, one JSON object a line. It speaks through `sessiond.client` alone, and comes back when the daemon does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from sessiond.client import AttachedRun, Client

kind, name, log_path = sys.argv[1:4]
log = open(log_path, "a", buffering=1)  # noqa: SIM115 - open until the program ends


def note(**facts: Any) -> None:
    log.write(json.dumps(facts) + "\n")


def talk(run: AttachedRun) -> str:
    """Reply with the agent's name and the turn, or do what a word in the message asks for."""
    turn = run.params.get("turn", 0)
    note(runId=run.run_id, key=run.session_key, step=run.step, turn=turn, message=run.message)
    time.sleep(0.004)  # noqa: TID251 - as an agent that works
    if "die" in run.message:
        os._exit(1)
    if run.step == "announce":
        return f"the outcome of {run.session_key}"
    if "short" in run.session_key and turn == 3:
        return "REPLY_SKIP"
    return f"{name}{turn}"


def deliver(params: dict[str, Any]) -> None:
    note(deliveryId=params["deliveryId"], to=params["to"], text=params["text"])


with Client(name=name) as client:
    if kind == "agent":
        client.attach(name, talk)
    else:
        client.attach_channel(name, deliver)
