"""`sessiond demo`: show a message and a spawn with a file live, on a daemon with a temporary store and two agents.

Everything is done by the commands of this program with a real daemon; the agents are scripts of a few lines.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from sessiond import cli
from sessiond.cli.demo_daemon import DemoDaemon, prepare, words_to_type
from sessiond.cli.frame.command import JSON, Args, Command, Option
from sessiond.cli.frame.failures import CommandFailed
from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.output import as_json
from sessiond.cli.terminal.screen import Screen, clip, screen_of
from sessiond.cli.terminal.times import now_ms
from sessiond.cli.watch import line
from sessiond.client.blocking import Client
from sessiond.client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sessiond.client.wire import Event

SETTLE_S = 10.0
MAX_LINE = 160


class DemoWatcher:
    """Prints events as they happen, and lets the demo wait for a certain one."""

    def __init__(self, client: Client, on: Screen) -> None:
        self._client = client
        self._on = on
        self._seen: list[Event] = []
        self._news = threading.Condition()
        self._failure: ClientError | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def wait_for(self, is_there: Callable[[list[Event]], bool]) -> bool:
        """Whether `is_there(events)` is true now or becomes true within `SETTLE_S`."""
        with self._news:
            return self._news.wait_for(lambda: is_there(self._seen), SETTLE_S)

    def wait_until_subscribed(self) -> None:
        """Return when the daemon counts the subscription, so that all later events are shown."""
        pause, deadline = threading.Event(), time.monotonic() + SETTLE_S
        while not self._client.call("daemon.status")["subscribers"]:
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > deadline:
                raise CommandFailed("the demo stopped: the daemon did not confirm its subscription in time")
            pause.wait(0.01)

    def _watch(self) -> None:
        on = Screen(self._on.width and self._on.width - 2, colour=self._on.colour)
        try:
            for event in self._client.subscribe():
                with self._news:
                    self._show(line(event, now_ms(), on))
                    self._seen.append(event)
                    self._news.notify_all()
        except ClientError as error:
            self._failure = error

    def _show(self, text: str | None) -> None:
        if text is not None:
            sys.stdout.write(f"{self._on.paint('│', 'dim')} {text}\n")
            sys.stdout.flush()


def run(args: Args) -> int:
    os.environ.pop("SESSIOND_TOKEN_FILE", None)  # a token for another daemon is not valid for the demo's
    folder = Path(tempfile.mkdtemp(prefix="sessiond-demo-"))
    try:
        with DemoDaemon(prepare(folder)) as daemon:
            if args.json:
                as_json(_collect_facts(daemon))
            else:
                _run_story(daemon, screen_of())
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if not args.json:
        _print_farewell(folder, daemon, kept=args.keep)
    return 0


def _run_story(daemon: DemoDaemon, on: Screen) -> None:
    heading = _Heading(on)
    socket = ["--socket", str(daemon.socket)]
    heading(f"A daemon of its own runs (pid {daemon.pid}). Store: {daemon.store}")
    with Client(str(daemon.socket), name="sessiond-demo") as client:
        _run_command(["agents", *socket], on)
        heading("Everything that happens is shown as it happens, after a │, as by: sessiond watch")
        watcher = DemoWatcher(client, on)
        watcher.wait_until_subscribed()

        heading("A message to the agent `main`, and its reply:")
        _run_command(["send", *socket, "main", "hello, is anybody there?"], on)
        watcher.wait_for(_first_run_ended)

        heading("The session in the list, and the lines on disk:")
        _run_command(["list", *socket], on)
        _show_file(client, on)

        heading("A task for a sub-agent of the agent `reader`, with a file:")
        _run_command(
            ["spawn", *socket, "--agent", "reader", "--attach", str(daemon.attachment), "--wait", "how long is it?"], on
        )
        watcher.wait_for(_main_agent_answered)

        heading("The main session was told of the result, as data with a source:")
        _run_command(["history", *socket, "main"], on)


def _first_run_ended(events: list[Event]) -> bool:
    return any(event.name == "sessions.changed" and event.get("phase") == "end" for event in events)


def _main_agent_answered(events: list[Event]) -> bool:
    """Whether the main agent has answered the announcement: two messages of its own in its session."""
    messages = [event for event in events if event.name == "session.message"]
    own = [event for event in messages if event["message"]["role"] == "assistant"]
    return len([event for event in own if event["sessionKey"] == own[0]["sessionKey"]]) > 1


class _Heading:
    def __init__(self, on: Screen) -> None:
        self._on = on
        self._number = 0

    def __call__(self, text: str) -> None:
        self._number += 1
        sys.stdout.write(f"\n{self._on.paint(f'{self._number}. {text}', 'bold')}\n")
        sys.stdout.flush()


def _run_command(words: list[str], on: Screen) -> None:
    """Print a command of this program as one would type it, then run it."""
    at = words.index("--socket")
    typed = [f'"{word}"' if " " in word else word for word in [*words[:at], *words[at + 2 :]]]
    sys.stdout.write(on.paint(f"$ sessiond {' '.join(typed)}", "cyan") + "\n")
    sys.stdout.flush()
    status = cli.run(words)
    if status:
        raise CommandFailed(f"the demo stopped: that command ended with exit code {status}")


def _show_file(client: Client, on: Screen) -> None:
    path = client.call("sessions_list", limit=1)["sessions"][0]["transcriptPath"]
    sys.stdout.write(on.paint(f"$ cat {path}", "cyan") + "\n")
    with open(path, encoding="utf-8") as file:
        for text in file:
            sys.stdout.write(clip(one_line(text), on.width or MAX_LINE) + "\n")
    sys.stdout.flush()


def _collect_facts(daemon: DemoDaemon) -> dict[str, object]:
    """The result of the demo for `--json`: what was sent, answered and written, and where."""
    with Client(str(daemon.socket), name="sessiond-demo") as client:
        sent = client.call("chat.send", sessionKey="main", message="hello, is anybody there?")
        reply = client.wait(sent["runId"])
        sessions = client.call("sessions_list")["sessions"]
        return {"store": str(daemon.store), "socket": str(daemon.socket), "reply": reply, "sessions": sessions}


def _print_farewell(folder: Path, daemon: DemoDaemon, *, kept: bool) -> None:
    typed = words_to_type()
    if kept:
        sys.stdout.write(
            f"\nThe daemon is stopped. All of it is in {folder}: store/, agents/, config.toml, daemon.log.\n"
            f"Run it again: {typed} serve --store {daemon.store} --config {daemon.config}\n"
        )
    else:
        sys.stdout.write(
            f"\nThe daemon is stopped and {folder} is removed; keep it another time with: {typed} demo --keep\n"
            f'For real: {typed} serve   and in another terminal: {typed} send main "hello"\n'
        )


COMMAND = Command(
    "demo",
    "Show what this is: a throw-away daemon, two agents, a message, a spawn with a file.",
    run=run,
    options=(Option("--keep", "Leave the store and the log where they are.", kind="flag"), JSON),
    examples=("sessiond demo", "sessiond demo --keep"),
)
