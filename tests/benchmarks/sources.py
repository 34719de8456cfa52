"""The sessions of other programs: how soon they are shown, what that costs, how soon a line arrives. `just bench`.

    python tests/benchmarks/sources.py [--check] [--alone] [--sessions 2000] [--megabytes 2000]

measures the daemon of this checkout on a generated corpus, and agentsview from PyPI on the same where it can be
installed (or is named in $AGENTSVIEW). `--check` fails only where a limit is exceeded, which is several times the bar.
The corpus lies in the page cache, as it was just written; CPU time is that of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from agentsview import Agentsview, installed_agentsview
from bar_measures import MS, InstalledDaemon, call_on, daemon_wire, inject, request, round_trip
from support.foreign_corpus import Corpus, claude_file, session_id, write_corpus
from support.real_daemon import Daemon

_OWN = "agent:main:own"
_SOURCES = ["claude", "codex", "gemini", "pi"]
_PATIENCE_S = 1800.0


class Bar(NamedTuple):
    """One line of the table; `beside` is the same of agentsview, and `limit` what only a defect exceeds."""

    what: str
    ours: float
    unit: str
    bar: float
    limit: float
    beside: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.ours <= self.limit

    def __str__(self) -> str:
        beside = f"{self.beside:10,.2f}" if self.beside is not None else f"{'-':>10}"
        verdict = "FAILED" if not self.holds else "missed" if self.ours > self.bar else ""
        return (
            f"{self.what:52} {self.ours:9,.2f} {self.unit:4} bar {self.bar:7,.1f} (<= {self.limit:g})"
            f"  agentsview {beside}  {verdict:6} {self.note}"
        )


class Other(NamedTuple):
    """What agentsview took for the same."""

    shown_s: float | None = None
    complete_s: float | None = None
    cpu_s: float | None = None
    memory_mb: float | None = None
    data_mb: float | None = None
    line_ms: float | None = None


def cpu_s(pid: int) -> float:
    """The CPU time of a process and of its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def status_mb(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split(f"{name}:")[1].split()[0]) / 1024


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def said_line(last: dict[str, object], number: int) -> bytes:
    """A message as Claude Code writes it, after the one before."""
    message = {
        "id": f"msg_bars{number}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": f"line {number}"}], "usage": {"input_tokens": 1, "output_tokens": 1},
        "stop_reason": "end_turn",
    }  # fmt: skip
    parent, uuid = last["uuid"], f"{number:08x}-ffff-4a43-9dd9-161a40aec04a"
    last.update(type="assistant", message=message, parentUuid=parent, uuid=uuid, timestamp="2026-11-22T16:00:00.000Z")
    return json.dumps(last, separators=(",", ":")).encode() + b"\n"


def last_message(path: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    path.touch()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 400_000))
        for line in file.readlines()[1:]:
            if b'"type":"assistant"' in line:
                found = json.loads(line)
    return found or {"uuid": "00000000-ffff-4a43-9dd9-161a40aec04a", "sessionId": path.stem, "cwd": "/w"}


def wait_until_folded(daemon: Daemon) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while daemon.call("sessions_list", search="no session says this", limit=1).get("partial"):
        assert time.monotonic() < deadline, "it is not read whole"
        time.sleep(0.05)


def wait_for_rows(daemon: Daemon, least: int = 1) -> float:
    """Start the daemon; the seconds until it shows a session."""
    began = time.perf_counter()
    daemon.process = daemon._run(daemon.command())
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            status, shown = daemon.call("daemon.status"), daemon.call("sessions_list", sources=_SOURCES, limit=1)
            if status["sessions"] >= least and shown["sessions"]:
                return time.perf_counter() - began
        except OSError:
            daemon._expect_alive()
        assert time.monotonic() < deadline, "it shows nothing"
        time.sleep(0.005)


def wait_for_answer(daemon: Daemon) -> float:
    """Start the daemon; the seconds until it answers."""
    began = time.perf_counter()
    daemon.process = daemon._run(daemon.command())
    daemon.wait_for(daemon._answers, "it does not answer")
    return time.perf_counter() - began


class Measuring:
    """One daemon on the corpus, row by row; the order matters."""

    def __init__(self, folder: Path, corpus: Corpus, other: Other) -> None:
        self.folder, self.corpus, self.other = folder, corpus, other
        self.daemon = InstalledDaemon(folder)
        self.daemon.environ["HOME"] = str(corpus.home)
        self.daemon.run.mkdir(mode=0o700, parents=True)
        # The search index is measured by search.py, also what it costs those who write.
        self.daemon.config.write_text("[search]\nindex = false\n")

    @property
    def pid(self) -> int:
        assert self.daemon.process is not None
        return self.daemon.process.pid

    def all_rows(self) -> Iterator[Bar]:
        yield from self.first_start()
        yield from self.next_start()
        yield from self.lines()
        yield from self.long_file()
        yield from self.idle()

    def first_start(self) -> Iterator[Bar]:
        daemon, other, count = self.daemon, self.other, len(self.corpus.files)
        before = [(path.stat().st_size, path.stat().st_mtime_ns) for path in self.corpus.files]
        wait_for_rows(daemon)
        daemon.call("sessions.create", key=_OWN)
        daemon.stop()
        shutil.rmtree(daemon.store / "cache", ignore_errors=True)
        began = time.perf_counter()
        took = wait_for_rows(daemon)
        yield Bar("first rows, from nothing", took, "s", 3, 30, other.shown_s, f"CPU {cpu_s(self.pid):.1f} s")
        while daemon.call("daemon.status")["sessions"] < count + 1:
            time.sleep(0.1)
        took = time.perf_counter() - began
        yield Bar("all rows, from nothing", took, "s", 3, 60, other.complete_s, f"CPU {cpu_s(self.pid):.1f} s")
        with daemon_wire(daemon) as sock:
            meanwhile = self.append_until_folded(sock)
            took = time.perf_counter() - began
            note = f"CPU {cpu_s(self.pid):.1f} s" + (f", agentsview {other.cpu_s:.1f} s" if other.cpu_s else "")
            yield Bar("folded whole", took, "s", 120, 1200, other.complete_s, note)
            alone = self.append(sock, max(400, len(meanwhile)))
        one, two = percentile(meanwhile, 0.99), percentile(alone, 0.99)
        note = f"{one:.1f} with {len(meanwhile)} appends, {two:.1f} without; medians"
        note += f" {statistics.median(meanwhile):.1f} and {statistics.median(alone):.1f}"
        yield Bar("p99 of a durable append, more while it folds", one - two, "ms", 2, 500, None, note)
        peak = f"peak {status_mb(self.pid, 'VmHWM'):.0f}"
        yield Bar("memory then", status_mb(self.pid, "VmRSS"), "MB", 120, 300, other.memory_mb, peak)
        daemon.stop()
        cache = size_of(daemon.store / "cache") / 1e6
        kept = size_of(daemon.store / "kept") if (daemon.store / "kept").exists() else 0
        after = [(path.stat().st_size, path.stat().st_mtime_ns) for path in self.corpus.files]
        assert before == after, "a file of another program was changed"
        note = f"snapshot of folds {cache:.1f} MB"
        yield Bar("megabytes of transcripts copied", kept / 1e6, "MB", 0, 0, other.data_mb, note)

    def append_until_folded(self, sock: socket.socket) -> list[float]:
        """The durations of appends of ours until everything is folded."""
        call, took, last_look = call_on(sock, inject(_OWN)), list[float](), 0.0
        while True:
            took.append(self.timed_ms(call))
            time.sleep(0.01)
            if time.monotonic() - last_look > 0.5:
                answer = self.daemon.call("sessions_list", search="no session says this", limit=1)
                last_look = time.monotonic()
                if not answer.get("partial"):
                    return took

    def append(self, sock: socket.socket, times: int) -> list[float]:
        call, took = call_on(sock, inject(_OWN)), []
        for _ in range(min(times, 3000)):
            took.append(self.timed_ms(call))
            time.sleep(0.01)
        return took

    @staticmethod
    def timed_ms(call: object) -> float:
        began = time.perf_counter()
        call()  # type: ignore[operator]
        return (time.perf_counter() - began) * MS

    def next_start(self) -> Iterator[Bar]:
        bare = InstalledDaemon(self.folder / "bare")
        bare.run.mkdir(mode=0o700, parents=True)
        for what, least in (("first rows", 1), ("all rows", len(self.corpus.files) + 1)):
            took, without = [], []
            for _ in range(5):
                without.append(wait_for_answer(bare))
                took.append(wait_for_rows(self.daemon, least))
                note = f"least {min(took):.2f}, CPU {cpu_s(self.pid):.2f} s; without sources {min(without):.2f}, "
                note += f"CPU {cpu_s(bare.process.pid if bare.process else 0):.2f} s"
                self.daemon.stop()
                bare.stop()
            yield Bar(f"{what}, from the snapshot", statistics.median(took), "s", 0.5, 15, None, note)
        wait_for_rows(self.daemon, len(self.corpus.files) + 1)
        wait_until_folded(self.daemon)

    def lines(self) -> Iterator[Bar]:
        path = self.corpus.files[0]
        took = self.line_times(path, 60)
        note = f"p95 {percentile(took, 0.95):.1f}"
        yield Bar("a line until a subscriber has it", statistics.median(took), "ms", 5, 60, self.other.line_ms, note)

    def line_times(self, path: Path, times: int) -> list[float]:
        last, took = last_message(path), []
        line = request("sessions.messages.subscribe", key=f"claude:{path.stem}")
        with daemon_wire(self.daemon) as sock, path.open("ab", buffering=0) as file:
            answer = round_trip(sock, line)
            assert b'"subscribed":true' in answer, answer
            sock.settimeout(60)
            for number in range(times):
                time.sleep(0.03)
                data, got = said_line(last, number), b""
                awaited = b'"line %d"' % number
                began = time.perf_counter()
                file.write(data)
                while awaited not in got:
                    got += sock.recv(1 << 20)
                took.append((time.perf_counter() - began) * MS)
        return took

    def long_file(self) -> Iterator[Bar]:
        scale = 500 if self.corpus.bytes > 1e9 else 50
        number = len(self.corpus.files) + 1
        claude = self.corpus.home / ".claude"
        outside = claude_file(self.folder / "long", number, scale)
        long = claude / outside.relative_to(self.folder / "long" / ".claude")
        empty = long.with_name(f"{session_id(number + 1)}.jsonl")
        long.parent.mkdir(parents=True, exist_ok=True)
        outside.rename(long)
        empty.write_bytes(said_line(last_message(empty), 0))
        self.daemon.wait_for(lambda: self.knows(long) and self.knows(empty), "a new file is not shown")
        self.daemon.call("sessions_history", sessionKey=f"claude:{long.stem}", limit=1)
        pairs = [(self.line_times(long, 25), self.line_times(empty, 25)) for _ in range(5)]
        ratio = statistics.median(statistics.median(one) / statistics.median(other) for one, other in pairs)
        one = statistics.median(value for pair in pairs for value in pair[0])
        other = statistics.median(value for pair in pairs for value in pair[1])
        note = f"{one:.1f} ms and {other:.1f} ms"
        yield Bar(f"a line in a file of {scale} MB, to an empty one", ratio, "x", 1.3, 8, None, note)

    def knows(self, path: Path) -> bool:
        return bool(self.daemon.call("sessions_list", search=path.stem, limit=1)["sessions"])

    def idle(self) -> Iterator[Bar]:
        wait_until_folded(self.daemon)
        # Half a minute until the snapshot is saved, and ten seconds until the thread that did it ends for want of work.
        time.sleep(45)
        before = self.switches()
        time.sleep(10)
        yield Bar("wake-ups in 10 idle seconds", self.switches() - before, "", 0, 5)

    def switches(self) -> int:
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        text = "\n".join((task / "status").read_text() for task in tasks)
        return sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)


def measure_agentsview(program: str, corpus: Corpus, data: Path) -> Other:
    """The same with agentsview. It is stopped afterwards, and its database removed."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    began = time.perf_counter()
    with Agentsview(program, corpus.home, data, port) as server:
        assert server.process is not None
        shown = None
        while server.count_sessions() < len(corpus.files):
            assert server.process.poll() is None, "agentsview has ended"
            if shown is None and server.count_sessions():
                shown = time.perf_counter() - began
            if time.perf_counter() - began > _PATIENCE_S:
                return Other(shown_s=shown)
            time.sleep(0.05)
        complete = time.perf_counter() - began
        pid = server.process.pid
        spent, memory, size = cpu_s(pid), status_mb(pid, "VmRSS"), size_of(data) / 1e6
        path = corpus.files[0]
        last, took = last_message(path), []
        with server.watch(path.stem) as moments, path.open("ab", buffering=0) as file:
            time.sleep(3)
            for number in range(1000, 1006):
                while not moments.empty():
                    moments.get()
                line = said_line(last, number)
                wrote = time.perf_counter()
                file.write(line)
                took.append((moments.get(timeout=60) - wrote) * MS)
                time.sleep(3)
    return Other(shown or complete, complete, spent, memory, size, statistics.median(took))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--alone", action="store_true", help="without agentsview")
    given = parser.parse_args()
    held = True
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bars-")))
        corpus = write_corpus(folder / "home", given.sessions, given.megabytes)
        print(f"{len(corpus.files):,} sessions, {corpus.bytes / 1e6:,.0f} MB", flush=True)
        other = Other()
        program = None if given.alone else stack.enter_context(installed_agentsview())
        if program is None:
            print("without agentsview" + ("" if given.alone else ": it cannot be installed here"))
        else:
            other = measure_agentsview(program, corpus, folder / "agentsview")
            shutil.rmtree(folder / "agentsview", ignore_errors=True)
        measuring = Measuring(folder / "ours", corpus, other)
        try:
            for bar in measuring.all_rows():
                print(bar, flush=True)
                held = held and bar.holds
        finally:
            if measuring.daemon.process is not None and measuring.daemon.process.poll() is None:
                measuring.daemon.kill()
    if given.check and not held:
        sys.exit(1)


if __name__ == "__main__":
    main()
