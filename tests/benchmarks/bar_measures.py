"""What the bars are measured with: daemons, baselines, clients that ask again and again, and figures beside limits."""

from __future__ import annotations

import json
import os
import selectors
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.real_daemon import Daemon

TEXT = "x" * 200
OPEN = """
[session]
agentToAgent = { maxPingPongTurns = 0 }
[limits]
maxConnections = 1024
"""
ECHO = """
import sys, trio
async def main(path):
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.bind(path)
    sock.listen(100)
    print("ready", flush=True)
    async def serve(stream):
        async for chunk in stream:
            await stream.send_all(chunk)
    await trio.serve_listeners(serve, [trio.SocketListener(sock)])
trio.run(main, sys.argv[1])
"""
MS = 1000.0


class Figure(NamedTuple):
    """One line of the table. `ratio` is ours to the baseline; `limit` is the most, or with a minus the least, of it."""

    what: str
    ours: float
    unit: str
    bar: float
    base: float
    ratio: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.ratio <= self.limit if self.limit > 0 else self.ratio >= -self.limit

    @property
    def meets_bar(self) -> bool:
        """Whether ours is as good as the bar, which is for a quiet machine. A rate or a part has to be higher."""
        return self.ours <= self.bar if self.limit > 0 else self.ours >= self.bar

    def __str__(self) -> str:
        bound = f"<= {self.limit:g}" if self.limit > 0 else f">= {-self.limit:g}"
        return (
            f"{self.what:48} {self.ours:10,.2f} {self.unit:5} bar {self.bar:8,.1f}"
            f"   base {self.base:9,.3f}  ratio {self.ratio:7.2f} ({bound})"
            f" {'FAILED' if not self.holds else '' if self.meets_bar else 'bar missed'}"
        )


class InstalledDaemon(Daemon):
    """The daemon of some interpreter, started as a user does it."""

    python = sys.executable

    def command(self, *extra: str) -> list[str]:
        return [self.python, "-P", *super().command(*extra)[1:]]  # not the sessiond of the working directory


@contextmanager
def daemon_of(config: str = OPEN, *, fill: Callable[[Path], None] | None = None) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="bars-") as name:
        daemon = InstalledDaemon(Path(name))
        if fill is not None:
            fill(daemon.store)
        daemon.start(config)
        try:
            yield daemon
        finally:
            daemon.kill()


@contextmanager
def bare_echo() -> Iterator[socket.socket]:
    """A connection to a bare Trio echo in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bars-") as name:
        path = Path(name) / "echo.sock"
        process = subprocess.Popen([InstalledDaemon.python, "-c", ECHO, str(path)], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
                yield sock
        finally:
            process.kill()
            process.communicate()


def request(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"


def inject(key: str) -> bytes:
    return request("chat.inject", sessionKey=key, messages=[{"role": "user", "content": TEXT}])


def round_trip(sock: socket.socket, line: bytes) -> bytes:
    sock.sendall(line)
    answer = sock.recv(1 << 20)
    while not answer.endswith(b"\n"):
        answer += sock.recv(1 << 20)
    return answer


def call_on(sock: socket.socket, line: bytes) -> Callable[[], None]:
    def call() -> None:
        assert b'"result"' in round_trip(sock, line)

    return call


def median_ms(work: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * MS


def in_turn(ours: Callable[[], float], base: Callable[[], float], rounds: int = 7) -> tuple[float, float, float]:
    """Median of ours, of the baseline, and of their quotient pair by pair."""
    ours(), base()
    pairs = [(ours(), base()) for _ in range(rounds)]
    return (
        statistics.median(one for one, _ in pairs),
        statistics.median(other for _, other in pairs),
        statistics.median(one / other for one, other in pairs),
    )


@contextmanager
def synced_writes(folder: Path) -> Iterator[Callable[[], None]]:
    fd = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    data = b"x" * 420 + b"\n"

    def write() -> None:
        os.write(fd, data)
        os.fdatasync(fd)

    try:
        yield write
    finally:
        os.close(fd)


@contextmanager
def daemon_wire(daemon: Daemon) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(daemon.socket))
        yield sock


def rate_of_clients(path: Path, lines: Sequence[bytes], seconds: float = 0.8) -> float:
    """Answers a second, one connection a line; each asks again when it has its answer. One thread with a selector."""
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for line in lines:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(str(path))
            selector.register(sock, selectors.EVENT_READ, line)
            sock.sendall(line)
        count, began = 0, time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            for ready, _ in selector.select():
                sock = cast("socket.socket", ready.fileobj)
                assert b'"result"' in sock.recv(65536)
                count += 1
                sock.sendall(ready.data)
        return count / (now - began)


def rate_of_threads(work: Sequence[Callable[[], None]], seconds: float = 0.8) -> float:
    counts = [0] * len(work)
    began = time.perf_counter()

    def repeat(number: int) -> None:
        while time.perf_counter() - began < seconds:
            work[number]()
            counts[number] += 1

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def rate_of_bare_files(folder: Path) -> float:
    """Synced writes a second of 16 threads, each into a file of its own."""
    with ExitStack() as stack:
        folders = [folder / f"bare{number}" for number in range(16)]
        for each in folders:
            each.mkdir(exist_ok=True)
        return rate_of_threads([stack.enter_context(synced_writes(each)) for each in folders])


def rate_of_sqlite(folder: Path, clients: int) -> float:
    """Commits a second with `synchronous=FULL` of so many threads, each with a connection of its own."""
    path = folder / "bare.sqlite"
    with ExitStack() as stack:
        work = []
        for _ in range(clients):
            made = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
            stack.callback(made.close)
            made.execute("pragma journal_mode=wal")
            made.execute("pragma synchronous=full")
            made.execute("create table if not exists said (session text, line text)")

            def insert(made: sqlite3.Connection = made) -> None:
                made.execute("insert into said values (?, ?)", ("one", TEXT * 2))

            work.append(insert)
        return rate_of_threads(work)


def make_sessions(store: Path, count: int, messages: int = 3) -> None:
    """So many sessions, as another program might have left them."""
    folder = store / "agents" / "main" / "sessions"
    folder.mkdir(parents=True, mode=0o700)
    for n in range(count):
        name = f"{n:08d}-0000-4000-8000-000000000000"
        stamp = f"2026-01-{n % 28 + 1:02d}T10:00:00.000Z"
        header = {
            "type": "session", "version": 3, "id": name, "timestamp": stamp, "cwd": "/w",
            "sessionKey": f"agent:main:s{n}", "agentId": "main",
        }  # fmt: skip
        lines = [json.dumps(header)]
        for m in range(messages):
            said = {"role": "user", "content": f"message {m} of {n}", "timestamp": 0}
            ids = {"id": f"{n:08x}{m:08x}", "parentId": f"{n:08x}{m - 1:08x}" if m else None}
            lines.append(json.dumps({"type": "message", **ids, "timestamp": stamp, "message": said}))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def wait_for_index(daemon: Daemon) -> None:
    daemon.wait_for(lambda: daemon.call("daemon.status").get("lastSaveAt") is not None, "the index is not saved")
