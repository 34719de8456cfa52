"""Failures of commands: the exit code of every error, and its text on stderr. Source: cli.md, "Exit codes"."""

from __future__ import annotations

import sys

from sessiond.cli.terminal.escape import escape
from sessiond.client.errors import (
    BadEnvironment,
    CallTimeout,
    ClientError,
    ConnectionLost,
    DaemonNotRunning,
    NotPermitted,
    RpcError,
)

FAILED = 1
USAGE = 2
NOT_RUNNING = 3
NOT_FOUND = 4
TIMED_OUT = 5
PERMISSION = 77
BAD_CONFIG = 78
INTERRUPTED = 130  # the shell's convention: 128 + SIGINT
# For the help and the man page; `serve` has the codes 69, 71 and 74 of its own.
EXIT_CODES = {
    0: "done",
    FAILED: "failed",
    USAGE: "usage",
    NOT_RUNNING: "the daemon is not running",
    NOT_FOUND: "not found or forbidden",
    TIMED_OUT: "timed out (what was asked goes on)",
    69: "another daemon has the store",
    71: "no thread can be started",
    74: "the store was taken away",
    PERMISSION: "permission",
    BAD_CONFIG: "configuration",
    INTERRUPTED: "interrupted",
}

START_IT = "start it: sessiond serve (or, where it is installed as a service: systemctl --user start sessiond)"

_BY_SLUG = {
    "not_found": NOT_FOUND,
    "forbidden": NOT_FOUND,
    "unauthenticated": PERMISSION,
    "invalid_params": USAGE,
    "method_not_found": USAGE,
}
_HINTS = {
    "not_found": 'the sessions that are there: "sessiond list"',
    "native_session_not_found": 'the ids of programs\' own sessions: "sessiond list --json", nativeId',
    "unauthenticated": "the token comes from the file that SESSIOND_TOKEN_FILE names; without it you are the owner",
    "stopping": "the daemon is going down; try again when it is back",
    "storage": "what is wrong with the store and its disk: sessiond doctor",
}

# Their sentences say what to do next.
_COMPLETE = ("run_not_found", "question_not_found", "machine_not_reached")

# Wire methods and parameters, and the commands and options that stand for them.
_COMMANDS = {
    "sessions_list": "sessiond list",
    "sessions_history": "sessiond history",
    "sessions_send": "sessiond send",
    "agents_list": "sessiond agents",
    "questions.list": "sessiond questions",
    "tokens.list": "sessiond token list",
    "sessions.reset": "sessiond reset",
}
_ARGUMENTS = {
    "sessionKey": "KEY",
    "thinkingLevel": "--thinking",
    "key": "KEY",
    "message": "TEXT",
    "task": "TASK",
    "query": "TEXT",
    "runId": "RUN",
    "agentId": "--agent",
    "timeoutSeconds": "--timeout",
    "runTimeoutSeconds": "--timeout",
    "attachments": "--attach",
    "resumeSessionId": "--resume-session",
    "ttlSeconds": "--ttl",
    "scopes": "--scope",
    "id": "ID",
    "cursor": "--before",
}


def exit_code_legend() -> str:
    """All exit codes with their meanings, on one line."""
    return ", ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())


class CommandFailed(Exception):
    """Ends a command: the sentence for stderr, a hint what to do next, and the exit code."""

    def __init__(self, message: str, *, hint: str | None = None, status: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status


def describe(error: ClientError) -> CommandFailed:
    """The failure to report for an error of the client."""
    match error:
        case RpcError():
            message = in_words_of_the_command_line(error.message)
            # The hints are about sessions and about trying again. The sentence about a run or a question that is not
            # found says where ids come from, and a request that may have been done must not be sent again.
            is_complete = error.reason in _COMPLETE or error.data.get("begun")
            hint = None if is_complete else _HINTS.get(error.reason or "") or _HINTS.get(error.slug)
            if hint is not None and "sessiond list" in hint and "sessiond list" in message:
                hint = None  # the message contains it already
            return CommandFailed(message, hint=hint, status=_BY_SLUG.get(error.slug, FAILED))
        case DaemonNotRunning():
            return CommandFailed(str(error), hint=START_IT, status=NOT_RUNNING)
        case ConnectionLost():
            return CommandFailed(
                f"{error} before it answered; what was asked may have been done",
                hint='see how it is with "sessiond status"',
                status=NOT_RUNNING,
            )
        case CallTimeout():
            return CommandFailed(str(error), hint='see how it is with "sessiond status"', status=TIMED_OUT)
        case NotPermitted():
            return CommandFailed(str(error), status=PERMISSION)
        case BadEnvironment():
            return CommandFailed(str(error), status=BAD_CONFIG)
    return CommandFailed(str(error))


def in_words_of_the_command_line(message: str) -> str:
    """A message of the daemon, with parameters and methods replaced by options and commands."""
    import re

    for method, command in _COMMANDS.items():
        message = re.sub(rf"`?\b{re.escape(method)}\b`?", f'"{command}"', message)
    message = message.replace("; null clears it", "; --clear clears it")
    return re.sub(r"`?\$\.([A-Za-z]+)`?", lambda found: _option(found[1]), message)


def _option(param: str) -> str:
    import re

    return _ARGUMENTS.get(param) or "--" + re.sub(r"([A-Z])", r"-\1", param).lower()


def report(failure: CommandFailed) -> int:
    """Print the failure on stderr; its exit code."""
    say(failure.message)
    if failure.hint:
        note(failure.hint)
    return failure.status


def say(message: str) -> None:
    """Print an error message on stderr."""
    sys.stderr.write(f"sessiond: {escape(message, lines=True)}\n")


def note(message: str) -> None:
    """Print a remark on stderr, so that stdout has the requested output only."""
    sys.stderr.write(f"  {escape(message, lines=True)}\n")
