"""The hook itself: tell the daemon what happened, wait for an answer, print it. Prints nothing where anything is amiss.

Standard library only: it runs at every turn of an agent in a terminal. Source: hooks.md, "What happens".
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from contextlib import suppress

from sessiond import __version__
from sessiond.cli.hooks.answer import print_context, print_decision
from sessiond.cli.hooks.event import read_event, read_permission
from sessiond.client import wire
from sessiond.client.ancestry import TOKEN_FILE, run_environment
from sessiond.client.errors import CallTimeout, ClientError, ConnectionLost
from sessiond.client.link import ClientLink
from sessiond.client.locate import socket_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sessiond.cli.hooks.event import HookEvent

# So long the daemon has for everything but a person's answer.
ANSWER_S = 1.0
# A program writes its JSON at once; one that does not is no program.
STDIN_S = 10.0
MAX_STDIN_BYTES = 32 * 1024 * 1024
# Who gets what waits for it, and who is asked.
HANDING_OVER = ("UserPromptSubmit", "SessionStart")
ASKING = "PermissionRequest"


def run_hook(socket: str | None) -> None:
    """Answer one hook on standard input. Never raises."""
    data = read_stdin()
    event = read_event(data) if data is not None else None
    # What the daemon runs itself asks over its own road, and is no session in a terminal; and a script that calls
    # the program must not wait for a person.
    if event is None or run_environment().get(TOKEN_FILE) or is_unattended(os.environ):
        return
    # RecursionError: what can just be read may be nested too deeply to be written.
    with suppress(ClientError, OSError, MemoryError, RecursionError):
        _answer(event, socket)


def is_unattended(environ: Mapping[str, str]) -> bool:
    """Whether nobody sits at the program, as with `claude -p`: it calls its hooks then, too, and waits for them."""
    attended = environ.get("CLAUDE_CODE_SESSION_ATTENDED")
    # Older versions say only from where they were started.
    return attended == "0" or (attended is None and environ.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk"))


def _answer(event: HookEvent, socket: str | None) -> None:
    deadline = time.monotonic() + ANSWER_S
    link = ClientLink(socket_path(socket), ANSWER_S)
    try:
        link.initialize({"protocol": 1, "client": {"name": "sessiond-hook", "version": __version__}})
        told = _call(link, "hooks.report", event.params(), deadline)
        if _is_discarded(1):
            return  # nobody would hear of a decision, nor get a message
        if event.name == ASKING and told.get("known") is True:
            _ask(link, event)
        elif event.name in HANDING_OVER and told.get("context") and _write(print_context(event.name, told["context"])):
            # Read there only once the program has it.
            _call(link, "hooks.report", {**event.params(), "receipt": told.get("receipt")}, deadline + ANSWER_S)
    finally:
        link.close()


def _ask(link: ClientLink, event: HookEvent) -> None:
    permission = read_permission(event)
    if permission is None:
        return
    params = {"title": permission.title, "detail": permission.detail, "options": permission.options}
    answer = _call(link, "hooks.ask", {**event.params(), **params, **permission.use}, None)
    decision = print_decision(permission, answer)
    if decision is not None:
        _write(decision)


def _call(link: ClientLink, method: str, params: dict[str, Any], deadline: float | None) -> dict[str, Any]:
    """The result of a call. ClientError where there is none, at once where the connection or the program ends."""
    request_id, data = link.wire.request(method, params)
    link.send(data)
    while True:
        _wait_readable(link, deadline)
        for message in link.receive(deadline):
            # Without an id the daemon refuses what it cannot read, and says nothing else about it.
            if isinstance(message, wire.CallResponse) and message.id in (request_id, None):
                if message.error is not None or not isinstance(message.result, dict):
                    raise message.error or ClientError("no result")
                return message.result


def _wait_readable(link: ClientLink, deadline: float | None) -> None:
    """Return when the daemon has said something. ConnectionLost when nobody reads what this would print."""
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    poll.register(1, 0)
    left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    ready = dict(poll.poll(left_ms))
    if not ready:
        raise CallTimeout("sessiond did not answer in time")
    if link.fileno() not in ready:
        raise ConnectionLost("the program has ended")


def _is_discarded(fd: int) -> bool:
    """Whether what is written there goes nowhere, as where it was closed (`cli.main` sees to that)."""
    device = os.fstat(fd)
    return stat.S_ISCHR(device.st_mode) and device.st_rdev == os.stat(os.devnull).st_rdev


def read_stdin(fd: int = 0, *, most: int = MAX_STDIN_BYTES, limit_s: float = STDIN_S) -> bytes | None:
    """Everything on standard input; None where that is too much, or does not end."""
    parts: list[bytes] = []
    size, deadline = 0, time.monotonic() + limit_s
    try:
        while select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(fd, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
            if size > most:
                return None
    except (OSError, ValueError):
        pass
    return None


def _write(text: str) -> bool:
    """Whether the line was written; the program may be gone."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError:
        # Nothing is left for Python to write at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return False
    return True
