"""Four processes that append at once, half of them through the daemon and half straight into the files, and one
subscriber that loses its connection again and again.

For the stress test of the default run, and for the full one among the benchmarks.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_S
from support.real_daemon import Daemon, Wire

# The programs of the processes. Arguments: where to append, the number of messages, and their name.
_THROUGH_THE_DAEMON = """
import json, random, socket, sys
path, name, count, *keys = sys.argv[1:]
sock = socket.socket(socket.AF_UNIX)
sock.connect(path)
answers = sock.makefile("rb")
chance = random.Random(name)
sent = waiting = 0
sys.stdin.readline()
while sent < int(count):
    size = min(chance.randint(1, 20), int(count) - sent)
    messages = [{"role": "user", "content": f"{name} {sent + n} " + "x" * chance.randint(0, 200)} for n in range(size)]
    sent += size
    params = {"sessionKey": chance.choice(keys), "messages": messages}
    request = {"jsonrpc": "2.0", "id": sent, "method": "chat.inject", "params": params}
    sock.sendall(json.dumps(request).encode() + b"\\n")
    waiting += 1
    while waiting >= 8 or (waiting and sent == int(count)):
        assert "result" in json.loads(answers.readline())
        waiting -= 1
"""
_STRAIGHT_INTO_THE_FILE = """
import json, os, random, sys
name, count, *paths = sys.argv[1:]
files = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in paths]
chance = random.Random(name)
sent = 0
sys.stdin.readline()
while sent < int(count):
    size = min(chance.randint(1, 20), int(count) - sent)
    lines = []
    for n in range(size):
        text = f"{name} {sent + n} " + "x" * chance.randint(0, 200)
        message = {"role": "assistant", "content": text}
        lines.append(json.dumps({"type": "message", "id": f"{name}{sent + n}", "message": message}) + "\\n")
    sent += size
    data = "".join(lines).encode()
    assert os.write(chance.choice(files), data) == len(data)
    if sent % 100 < 20:
        os.sched_yield()
"""


class ConcurrentAppenders:
    """`records` messages into `keys` of a running daemon, while `follow` loses its connection `cuts` times."""

    def __init__(self, daemon: Daemon, keys: tuple[str, ...], records: int, cuts: int, seed: int = 1) -> None:
        self.daemon, self.keys, self.records = daemon, keys, records
        chance = random.Random(seed)
        # Not during the last hundred messages, so that each lost connection can miss some.
        self.cut_at = sorted(chance.randrange(1, max(2, records - 100)) for _ in range(cuts))
        self.heard: dict[str, list[str]] = {key: [] for key in keys}
        self.cursors: dict[str, str] = {}
        self.connections = 0
        self.resyncs = 0
        self.seconds = 0.0
        # The subscriber reads its first event when so many messages have been published.
        self.read_after = 0
        self._paths: dict[str, Path] = {}

    def run(self) -> None:
        """Run the appenders, and read events until every record has arrived."""
        for key in self.keys:
            self.daemon.call("sessions.create", key=key)
            page = self.daemon.call("sessions_history", sessionKey=key)
            self.cursors[key] = page["cursor"]
        rows = {row["key"]: row for row in self.daemon.rows()}
        self._paths = {key: Path(rows[key]["transcriptPath"]) for key in self.keys}
        appenders = self._start()
        began = time.monotonic()
        try:
            for process in appenders:
                assert process.stdin is not None
                process.stdin.write(b"\n")
                process.stdin.flush()
            self._follow()
            self.seconds = time.monotonic() - began
            assert [process.wait(PATIENCE_S) for process in appenders] == [0] * len(appenders)
        finally:
            for process in appenders:
                process.kill()
                process.communicate()

    def _start(self) -> list[subprocess.Popen[bytes]]:
        share = self.records // 4
        files = [str(path) for path in self._paths.values()]
        commands = [
            (_THROUGH_THE_DAEMON, [str(self.daemon.socket), "a", str(share), *self.keys]),
            (_THROUGH_THE_DAEMON, [str(self.daemon.socket), "b", str(share), *self.keys]),
            (_STRAIGHT_INTO_THE_FILE, ["c", str(share), *files]),
            (_STRAIGHT_INTO_THE_FILE, ["d", str(self.records - 3 * share), *files]),
        ]
        return [
            subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE)
            for code, arguments in commands
        ]

    def _follow(self) -> None:
        cuts = iter([*self.cut_at, self.records])
        while sum(map(len, self.heard.values())) < self.records:
            with self.daemon.connect() as wire:
                self.connections += 1
                for key in self.keys:
                    wire.call("sessions.messages.subscribe", key=key, cursor=self.cursors[key])
                until = next(cuts)
                while sum(map(len, self.heard.values())) < until:
                    self._hear(wire)

    def _hear(self, wire: Wire) -> None:
        if self.read_after:
            published, self.read_after = self.read_after, 0
            self.daemon.wait_for(lambda: self._count_published() >= published, "too little is published")
        message = wire.events.pop(0) if wire.events else wire.receive()
        params = message["params"]
        if message["method"] == "session.message":
            self.heard[params["sessionKey"]].append(params["message"]["content"])
        elif message["method"] == "session.resync":
            assert params["reason"] == "lagged", params
            # The cursor is behind as many messages as were received.
            assert int(params["cursor"].split("-")[1]) == len(self.heard[params["sessionKey"]])
            self.resyncs += 1
        self.cursors[params["sessionKey"]] = params["cursor"]

    def _count_published(self) -> int:
        # Not what is in the files: a daemon that has yet to read it has told its subscribers nothing of it.
        return sum(row["messageCount"] for row in self.daemon.rows() if row["key"] in self.keys)

    def texts_in_file(self, key: str) -> list[str]:
        """The texts in the session's file, in order."""
        records: list[dict[str, Any]] = [
            json.loads(line) for line in self._paths[key].read_bytes().splitlines() if line
        ]
        return [record["message"]["content"] for record in records if record["type"] == "message"]

    def check(self) -> None:
        """Every record exactly once and in file order."""
        written = {key: self.texts_in_file(key) for key in self.keys}
        assert self.heard == written
        assert sum(map(len, written.values())) == self.records
        assert self.connections == len(self.cut_at) + 1
