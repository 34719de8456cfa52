"""`sessiond send`: send a message to a session and print its reply."""

from __future__ import annotations

from sessiond.cli.frame.away import note_away
from sessiond.cli.frame.command import CLIENT_OPTIONS, Args, Argument, Command, Option
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S, connect, drop_absent
from sessiond.cli.frame.failures import INTERRUPTED, USAGE, CommandFailed, note
from sessiond.cli.frame.input import text_or_stdin
from sessiond.cli.frame.streaming import ReplyStream, stream_of
from sessiond.cli.frame.waiting import describe_circle, finish, wait
from sessiond.cli.terminal.escape import escape
from sessiond.cli.terminal.output import as_json, lines
from sessiond.client import files
from sessiond.ranges import THINKING_LEVELS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client.blocking import Client


def run(args: Args) -> int | None:
    key, text = address(args)
    attachments = [files.read_attachment(path) for path in args.attach]
    with connect(args) as client:
        if key is None:
            found = client.call(
                "sessions.resolve", drop_absent({"label": args.label, "agentId": args.agent}), timeout_s=CALL_TIMEOUT_S
            )
            key = found["key"]
        # Asked first: it waits for a daemon that is starting and shows why, whereas the stream would wait silently.
        is_session = bool(client.caller.get("sessionKey"))
        with stream_of(args, key) as stream:
            accepted = _send(client, key, text, attachments, args, is_session=is_session)
            # chat.send names the session only where it is not the one that was named, but goes on with it.
            continued = accepted.get("sessionKey") if "cursor" in accepted else None
            return _await_reply(client, continued or key, accepted, args, stream, elsewhere=continued is not None)


def _await_reply(
    client: Client, key: str, accepted: dict[str, Any], args: Args, stream: ReplyStream | None, *, elsewhere: bool
) -> int | None:
    """Wait for the reply to an accepted message, if there will be one, and print it; the exit code. `elsewhere`: the
    run is in another session than the one that is followed.
    """
    if accepted.get("status") == "handled":  # a command such as /reset or /stop was carried out; there is no run
        _print(accepted, escape(str(accepted.get("reply", "")), lines=True), args)
        return None
    if accepted.get("reason") == "inbox":
        if args.json:
            as_json(accepted)
        note(_describe_keeping(key, accepted.get("sessionKey")))
        return None
    note_away(client, key)
    if args.no_wait:
        _print(accepted, accepted["runId"], args)
        return None
    # If the run waits for the caller's own run, a wait would never end.
    answer = accepted
    if accepted.get("reason") != "ancestor_busy":
        if stream is not None:
            stream.begin(accepted["runId"], elsewhere=elsewhere)
        answer = wait(client, accepted["runId"], args.timeout, f"waiting for {key}", stream)
    if answer.get("reason") == "ancestor_busy":
        _print(accepted, accepted["runId"], args)
        # Name the session, because inside a run `main` is the main session of the agent itself, which may not be meant.
        note(describe_circle(answer.get("sessionKey", key)))
        return None
    return finish({"sessionKey": key, **answer}, json=args.json, where=key, stream=stream)


def _describe_keeping(key: str, answered: str | None) -> str:
    """Where a message waits; `answered` is the session's key in the answer, in which one of ours may have none."""
    if answered is not None and not answered.startswith("agent:"):
        return (
            f"{answered} is open in a terminal: it gets the message with the next prompt that is typed there;"
            f" what waits: sessiond inbox {answered} --peek"
        )
    return f"kept for {key}: a program reads its messages there when it wants to, and no agent runs"


def address(args: Args) -> tuple[str | None, str]:
    """The key (None: look for the label) and the text, from the words of the command line.

    With --agent the key is one of that agent's sessions, its main one where there is only the text.
    """
    words = list(args.words)
    key: str | None = None
    if args.label is None and (args.agent is None or len(words) > 1):
        key = words.pop(0) if words else None
    if not words or (key is None and args.label is None and args.agent is None):
        raise CommandFailed(
            "there is nothing to send",
            hint='write: sessiond send KEY TEXT (or --label NAME TEXT; "-" reads standard input)',
            status=USAGE,
        )
    if args.label is None and args.agent is not None:
        key = _of_agent(args.agent, key or "main")
    return key, text_or_stdin(words)


def _of_agent(agent_id: str, key: str) -> str:
    if not key.startswith("agent:"):
        return f"agent:{agent_id}:{key}"
    if key.split(":")[1] != agent_id:
        raise CommandFailed(f"{key} is no session of agent {agent_id}: leave --agent out", status=USAGE)
    return key


def _send(
    client: Client, key: str, text: str, attachments: list[dict[str, str]], args: Args, *, is_session: bool
) -> dict[str, Any]:
    """The accepted run. The owner's message counts as that of a person; other callers send as their session."""
    # sessions_send takes no files; chat.send records the sender as well.
    if is_session and not attachments:
        params: dict[str, Any] = {"sessionKey": key, "message": text, "timeoutSeconds": 0}
        method = "sessions_send"
    else:
        params = {"sessionKey": key, "message": text, "thinking": args.thinking, "model": args.model}
        params["attachments"] = attachments or None
        method = "chat.send"
    try:
        accepted: dict[str, Any] = client.call(
            method, drop_absent({**params, "idempotencyKey": args.idempotency_key}), timeout_s=CALL_TIMEOUT_S
        )
    except KeyboardInterrupt:
        raise CommandFailed(
            f"interrupted before the daemon answered: the message to {key} may have arrived",
            hint=f"see: sessiond history {key}",
            status=INTERRUPTED,
        ) from None
    return accepted


def _print(accepted: dict[str, Any], text: str, args: Args) -> None:
    if args.json:
        as_json(accepted)
    else:
        lines([text])


COMMAND = Command(
    "send",
    "Send a message to a session, wait for the reply and print it.",
    run=run,
    description="The wait survives a restart of the daemon; --timeout ends the wait, never the run. Inside a run "
    "`main` is the agent's own main session; another one has its full key, like agent:main:main.",
    arguments=(
        Argument(
            "words",
            "KEY, then the text; with --label the text alone. `-` reads standard input.",
            required=False,
            many=True,
            complete="key",
            shown="KEY TEXT...",
        ),
    ),
    options=(
        Option(
            "--timeout",
            "Wait at most this long for the reply (exit 5; the run goes on).",
            kind="duration",
            metavar="SECONDS",
        ),
        Option("--no-wait", "Print the run's id and do not wait.", kind="flag"),
        Option("--label", "The session with this label.", metavar="NAME"),
        Option("--agent", "A session of this agent (its main one, without KEY).", metavar="AGENT", complete="agent"),
        Option("--attach", "A file for the agent; may be repeated.", many=True, metavar="FILE", complete="file"),
        Option("--model", "The model for this run.", metavar="MODEL"),
        Option("--thinking", f"How much it thinks in this run: {', '.join(THINKING_LEVELS)}.", metavar="LEVEL"),
        Option("--idempotency-key", "Sent twice with the same key, a message runs once.", metavar="WORD"),
        *CLIENT_OPTIONS,
    ),
    examples=(
        'sessiond send main "what is new?"',
        "git diff | sessiond send agent:reviewer:main -",
        'sessiond send main --attach report.pdf "what does it say?"',
        'sessiond send claude:1a2b3c4d "go on"',
        'sessiond send --label research --timeout 60 "and now?"',
    ),
)
