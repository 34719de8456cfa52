"""Restarts under load: each accepted message is there once, its run has one end, its idempotency key gives that run.

SIGTERM and SIGKILL alternate. The socket is held outside the daemon, as systemd does, so that clients wait instead of
failing. One restart by default, six with SESSIOND_TESTS=whole, any number with `SESSIOND_RESTARTS=100`.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
from support.real_daemon import PATIENCE_S, Daemon
from support.sampling import amount, whole_only

FINAL = {"ok", "error", "timeout", "aborted"}
RESTARTS = int(os.environ.get("SESSIOND_RESTARTS", amount(6, 1)))
SENDERS, PIPELINED_MESSAGES, MESSAGES_BETWEEN_RESTARTS = 3, 8, amount(25, 10)
CONFIG = """
[agents.defaults]
maxConcurrent = 3

[[agents.list]]
id = "main"
default = true
runtime = { type = "echo" }

[[agents.list]]
id = "slow"
runtime = { type = "exec", command = ["sh", "-c", "sleep 0.02; cat"] }
"""
KEYS = ["agent:main:load:a", "agent:main:load:b", "agent:slow:load:c"]
HAND_OVER = """
import os, sys
if int(sys.argv[1]) != 3:
    os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""
RESET_KEY = "agent:main:load:reset"


class HeldSocketDaemon(Daemon):
    """A daemon whose socket outlives it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.run.mkdir(mode=0o700)
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(self.socket))
        self.listening.listen(128)
        self.environ |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "sessiond"}

    def start_with_socket(self, config: str | None = None) -> None:
        fd = self.listening.fileno()
        prefix = (sys.executable, "-c", HAND_OVER, str(fd))
        self.start(config, prefix=prefix, pass_fds=(fd,))


class Load:
    """Clients that send until the block ends, and repeat each message until it is accepted."""

    def __init__(self, daemon: HeldSocketDaemon) -> None:
        self.daemon = daemon
        self.over = threading.Event()
        # Run ids and session keys by the text of the message.
        self.accepted: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.faults: list[str] = []
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(SENDERS)]
        self._threads.append(threading.Thread(target=self._reset))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(4 * PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads), "a client hangs"

    def _send(self, number: int) -> None:
        chance, count = random.Random(number), 0
        waiting: list[tuple[str, str]] = []
        while waiting or not self.over.is_set():
            while len(waiting) < PIPELINED_MESSAGES and not self.over.is_set():
                count += 1
                waiting.append((f"message {number}-{count}.", chance.choice([*KEYS, *KEYS, RESET_KEY])))
            waiting = self._attempt(waiting)

    def _attempt(self, messages: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Send messages on one connection without waiting between them; returns those without an answer."""
        left = dict(enumerate(messages))
        with suppress(OSError), self.daemon.connect() as wire:
            for number, (text, key) in left.items():
                params = {"sessionKey": key, "message": text, "idempotencyKey": text}
                wire.send({"jsonrpc": "2.0", "id": number, "method": "chat.send", "params": params})
            while left:
                self._take(wire.receive(), left)
            # Wait for a run before sending more, so that restarts also cut off waiting clients.
            wire.ask("agent.wait", runId=self.accepted[messages[0][0]], timeoutMs=5000)
        return list(left.values())

    def _take(self, answer: dict[str, Any], left: dict[int, tuple[str, str]]) -> None:
        if "error" in answer:
            # -32008: the daemon is stopping, the message is sent again. Any other error is a fault.
            if answer["error"]["code"] == -32008:
                raise ConnectionError
            self.faults.append(str(answer["error"]))
        text, key = left.pop(answer["id"])
        run_id = answer["result"]["runId"] if "result" in answer else ""
        if self.accepted.setdefault(text, run_id) != run_id:
            self.faults.append(f"{text} has two runs")
        self.keys[text] = key

    def _reset(self) -> None:
        while not self.over.is_set():
            with suppress(OSError), self.daemon.connect() as wire:
                while not self.over.wait(0.2):
                    wire.ask("sessions.reset", key=RESET_KEY)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[HeldSocketDaemon]:
    made = HeldSocketDaemon(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()
    made.listening.close()


@whole_only("test_every_message_acknowledged_before_kill_9_is_in_the_transcript")
def test_restarts_under_load_neither_lose_nor_repeat_messages(daemon: HeldSocketDaemon) -> None:
    daemon.start_with_socket(CONFIG)
    for key in (*KEYS, RESET_KEY):
        daemon.call("sessions.create", key=key)
    with Load(daemon) as load:
        for number in range(RESTARTS):
            wanted = len(load.accepted) + MESSAGES_BETWEEN_RESTARTS
            daemon.wait_for(lambda wanted=wanted: len(load.accepted) >= wanted or load.faults, "nothing is accepted")
            if number % 2:
                daemon.kill()
            else:
                assert daemon.stop() == 0, daemon.log.read_text()
            daemon.start_with_socket()
    assert load.faults == []
    with daemon.connect() as wire:
        for number, (text, run_id) in enumerate(reversed(load.accepted.items())):
            ended = wire.call("agent.wait", runId=run_id, timeoutMs=PATIENCE_S * 1000)
            assert ended["status"] in FINAL, (text, ended)
            # A session remembers only a thousand keys, so not every message is repeated.
            if number < 300:
                again = wire.call("chat.send", sessionKey=load.keys[text], message=text, idempotencyKey=text)
                assert again["runId"] == run_id, (text, again)
    assert daemon.stop() == 0
    check_transcripts(daemon, load)


def check_transcripts(daemon: HeldSocketDaemon, load: Load) -> None:
    messages: Counter[str] = Counter()
    steps: dict[str, list[str]] = {}
    for path in daemon.store.glob("agents/*/sessions/**/*.jsonl"):
        for line in path.read_bytes().splitlines():
            record = json.loads(line) if line.strip() else {}
            if record.get("customType") == "sessiond/run":
                steps.setdefault(record["data"]["runId"], []).append(record["data"]["status"])
            elif record.get("type") == "message" and record["message"]["role"] == "user":
                messages[str(record["message"]["content"])] += 1
    assert len(load.accepted) >= RESTARTS * MESSAGES_BETWEEN_RESTARTS
    for text, run_id in load.accepted.items():
        found = steps[run_id]
        assert found[0] == "accepted" and found.count("accepted") == 1, (text, found)
        assert found[-1] in FINAL and sum(status in FINAL for status in found) == 1, (text, found)
        assert found.count("running") == messages[text] <= 1, (text, found, messages[text])
        # Only a reset ends a run that has not begun.
        assert messages[text] or (load.keys[text] == RESET_KEY and found[-1] == "aborted"), (text, found)
    assert set(messages) <= set(load.accepted)
