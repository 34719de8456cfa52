"""`sessiond agents test`: send an agent one message in a new session, and explain what is missing if it fails."""

from __future__ import annotations

import re
import time
import uuid
from contextlib import suppress

from sessiond.cli.frame.away import is_unattached
from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect
from sessiond.cli.frame.failures import FAILED, NOT_FOUND, CommandFailed
from sessiond.cli.frame.waiting import wait
from sessiond.cli.terminal.escape import escape
from sessiond.cli.terminal.output import as_json, lines
from sessiond.cli.terminal.times import duration
from sessiond.client.errors import ClientError, RpcError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client.blocking import Client

MESSAGE = "This is a test of the connection. Please answer with the one word: ready"
PATIENCE_S = 60
# The daemon ends the run at its limit; writing the end may take a moment more.
MARGIN_S = 10
SANDBOX_PAGE = "docs/sandbox.md"
_NOT_THERE = re.compile(r"command not found|no such file or directory|cannot be started|exit status 127", re.IGNORECASE)
_NO_SANDBOX = re.compile(r"needs a sandbox|bubblewrap|bwrap|sandbox\.readOnly|must not see", re.IGNORECASE)
# Messages of the programs: "Please run /login", "Please set an Auth method", "No API key found", "401 Unauthorized".
_NO_LOGIN = re.compile(
    r"log ?in\b|logged (in|out)|sign in|api.?key|auth method|authenticat|unauthori[sz]ed|credential|\b401\b|\b403\b",
    re.IGNORECASE,
)


def run(args: Args) -> int:
    with connect(args) as client:
        agent = _agent(client, args.name)
        key = f"agent:{agent['id']}:test:{uuid.uuid4()}"
        began = time.monotonic()
        answer = _try(client, key, args.timeout or PATIENCE_S, 0 if is_unattached(agent) else MARGIN_S)
        took_ms = (time.monotonic() - began) * 1000
    works = answer["status"] == "ok" and bool((answer.get("reply") or "").strip())
    why, hint = ("", "") if works else diagnose(agent, answer)
    if args.json:
        facts = {"agent": agent["id"], "works": works, "tookMs": round(took_ms)}
        as_json(facts | ({"reply": answer["reply"]} if works else {"problem": why, "hint": hint}))
        return 0 if works else FAILED
    if not works:
        raise CommandFailed(f"{agent['id']}: {why}", hint=hint, status=FAILED)
    lines([f"{agent['id']} answered after {duration(took_ms)}: {escape(answer['reply'].strip())}"])
    return 0


def _agent(client: Client, name: str) -> dict[str, Any]:
    agents = client.call("agents_list", timeout_s=CALL_TIMEOUT_S)["agents"]
    for agent in agents:
        if agent["id"] == name:
            found: dict[str, Any] = agent
            return found
    known = ", ".join(agent["id"] for agent in agents)
    raise CommandFailed(f"there is no agent {name}", hint=f"these are configured: {known}", status=NOT_FOUND)


def _try(client: Client, key: str, patience_s: float, margin_s: float) -> dict[str, Any]:
    """How the run of one message ended. Its session is deleted afterwards."""
    params = {"sessionKey": key, "message": MESSAGE, "timeoutSeconds": patience_s}
    try:
        sent = client.call("chat.send", params, timeout_s=CALL_TIMEOUT_S)
    except RpcError as error:
        return {"status": "error", "error": str(error)}
    try:
        return wait(client, sent["runId"], patience_s + margin_s, f"waiting for {key.split(':')[1]}")
    finally:
        with suppress(ClientError):
            client.call("sessions.delete", {"key": key}, timeout_s=CALL_TIMEOUT_S)


def diagnose(agent: dict[str, Any], answer: dict[str, Any]) -> tuple[str, str]:
    """What went wrong, and what to do about it."""
    error_text = str(answer.get("error") or "")
    by_hand = "start the program by hand with a message, and see what it prints"
    if agent["runtime"] == "acp":  # by hand it would wait for frames
        by_hand = "try the program itself with a message; runtime.command is its form that speaks ACP (agents detect)"
    if answer["status"] == "ok":
        return "it ended well and said nothing", by_hand
    if is_unattached(agent):
        return "no program is attached that runs it", "start the program that attaches as this agent"
    if answer["status"] != "error":
        todo = "sessiond questions, or log in with" if agent["runtime"] == "acp" else "start"
        once = "itself" if agent["runtime"] == "acp" else "by hand once"
        return "no reply in time", f"it may wait for a permission or a login: {todo} the program {once}"
    if _NO_SANDBOX.search(error_text):
        return error_text, f"what a sandbox needs stands in {SANDBOX_PAGE}"
    if _NOT_THERE.search(error_text):
        return error_text, "install the program, or give its whole path in runtime.command (sessiond config check)"
    if _NO_LOGIN.search(error_text):
        if agent["sandboxed"]:
            return (
                error_text,
                f"in its sandbox the program does not find its login: the lines for it are in {SANDBOX_PAGE}",
            )
        method = ", or name its way to log in in runtime.authenticate, or its API key in runtime.env"
        method = method if agent["runtime"] == "acp" else ""
        return error_text, f"start the program by hand and log in, as the same user and with the same HOME{method}"
    return error_text or "the run failed", by_hand


COMMAND = Command(
    "test",
    "Try an agent: a message, and its reply or what is missing.",
    run=run,
    description="One turn of its model, in a session that is deleted afterwards. Exit 1 without a reply.",
    arguments=(Argument("name", "Which agent.", complete="agent"),),
    options=(
        Option("--timeout", "How long it may take (default: a minute).", kind="duration", metavar="SECONDS"),
        *CLIENT_OPTIONS,
    ),
    examples=("sessiond agents test claude",),
)
