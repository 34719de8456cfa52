"""How long usage over many sessions takes, and what it costs to know it: the table of bars. `just bench`.

    python tests/benchmarks/usage.py [--check] [--sessions 2000] [--megabytes 2000] [--forks 40]

writes so many sessions of other programs, waits until the daemon of this checkout has folded them, and asks for usage:
of all time, of the last days, from within a day, and by the command. Last come forks: copies of the shorter half of the
sessions of Claude Code, each with a message more. The files lie in the page cache, as they were just written. `ccusage`
is asked for the same where $CCUSAGE names it. `--check` fails only where a limit is exceeded, which is several times
the bar.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bar_measures import MS, InstalledDaemon, call_on, daemon_wire, inject, request
from sources import Bar, cpu_s, last_message, percentile, said_line, size_of, wait_for_rows
from support.foreign_corpus import Corpus, session_id, write_corpus

_BAR_MS, _LIMIT_MS = 200, 2000
_ROUNDS = 15
_OWN = "agent:main:own"
# The turns of the corpus are all of the same minutes. In those of Claude Code this is between two answers:
# 2026-11-22T15:54:23.2Z.
_WITHIN_MS = 1_795_362_863_200
_DAY_MS = 86_400_000


class UsageBars:
    """One daemon on the corpus; the order of the rows matters."""

    def __init__(self, folder: Path, corpus: Corpus) -> None:
        self.corpus = corpus
        folder.mkdir()
        self.daemon = InstalledDaemon(folder)
        self.daemon.environ["HOME"] = str(corpus.home)
        self.daemon.config.write_text("[search]\nindex = false\n")
        self.daemon.run.mkdir(mode=0o700, parents=True)

    def all_rows(self, forks: int) -> Iterator[Bar]:
        wait_for_rows(self.daemon)
        self.daemon.call("sessions.create", key=_OWN)
        self.wait_until_counted(len(self.corpus.files))
        yield from self.answers()
        yield self.command()
        yield from self.appends_meanwhile()
        yield from self.forked(forks)
        self.daemon.stop()
        size = size_of(self.daemon.store / "cache") / 1e3 / len(self.corpus.files)
        yield Bar("the saved folds, for each session", size, "kB", 3, 10)

    def wait_until_counted(self, count: int) -> None:
        deadline = time.monotonic() + 1800
        while True:
            found = self.daemon.call("sessions.usage")
            if len(found["bySession"]) == count and "partial" not in found:
                return
            assert time.monotonic() < deadline, "it is not read whole"
            time.sleep(0.5)

    def answers(self) -> Iterator[Bar]:
        found = self.daemon.call("sessions.usage")
        note = f"{len(found['bySession'])} sessions, {found['totals']['totalTokens']:,} tokens"
        for what, more in (
            ("usage of all time", {}),
            ("usage of the last 7 days", {"since": _WITHIN_MS - 7 * _DAY_MS}),
            ("usage of one session", {"key": found["bySession"][0]["key"]}),
        ):
            first, others = self.ask(**more)
            yield Bar(what, statistics.median(others), "ms", _BAR_MS, _LIMIT_MS, None, f"the first {first:.0f}; {note}")
            note = ""
        first, others = self.ask(since=_WITHIN_MS)
        note = "at worst: nearly all were used on both sides of that moment, and are read"
        yield Bar("usage from within a day, first", first, "ms", 60_000, 600_000, None, note)

    def ask(self, **params: Any) -> tuple[float, list[float]]:
        """How long the first answer took, and each of some more."""
        with daemon_wire(self.daemon) as sock:
            sock.settimeout(600)
            call = call_on(sock, request("sessions.usage", **params))
            took = []
            for _ in range(_ROUNDS if "since" not in params or params["since"] < _WITHIN_MS else 1):
                began = time.perf_counter()
                call()
                took.append((time.perf_counter() - began) * MS)
        return took[0], took

    def command(self) -> Bar:
        took = []
        for _ in range(5):
            began = time.perf_counter()
            done = self.daemon.cli("usage", "--by", "model")
            took.append((time.perf_counter() - began) * MS)
            assert done.returncode == 0, done.stderr
        beside, note = None, ""
        if program := os.environ.get("CCUSAGE"):
            began = time.perf_counter()
            environ = {"HOME": str(self.corpus.home), "PATH": os.environ["PATH"]}
            subprocess.run([program, "daily", "--offline", "--json"], env=environ, capture_output=True, check=True)
            note = f"ccusage {(time.perf_counter() - began) * MS:,.0f} ms"
        return Bar("`sessiond usage`, the whole command", statistics.median(took), "ms", 500, 5000, beside, note)

    def appends_meanwhile(self) -> Iterator[Bar]:
        """What others wait while it is counted."""
        with daemon_wire(self.daemon) as writer, daemon_wire(self.daemon) as asker:
            append, alone, meanwhile = call_on(writer, inject(_OWN)), list[float](), list[float]()
            for took, is_asking in ((alone, False), (meanwhile, True)):
                for _ in range(40):
                    if is_asking:
                        asker.sendall(request("sessions.usage"))
                    began = time.perf_counter()
                    append()
                    took.append((time.perf_counter() - began) * MS)
                    if is_asking:
                        while not asker.recv(1 << 20).endswith(b"\n"):
                            pass
        one, two = statistics.median(meanwhile), statistics.median(alone)
        note = f"p95 {percentile(meanwhile, 0.95):.1f} and {percentile(alone, 0.95):.1f}"
        yield Bar("a durable append, more while it is counted", one - two, "ms", 10, 200, None, note)

    def forked(self, forks: int) -> Iterator[Bar]:
        count = len(self.corpus.files)
        claude = [path for path in self.corpus.files if ".claude" in path.parts]
        shorter = sorted(claude, key=lambda path: path.stat().st_size)[: max(forks, len(claude) // 2)]
        totals = self.daemon.call("sessions.usage")["totals"]
        size = 0
        for number, path in enumerate(shorter[:: max(1, len(shorter) // max(1, forks))][:forks]):
            copy = path.with_name(f"{session_id(count + 10 + number)}.jsonl")
            data = path.read_bytes().replace(path.stem.encode(), copy.stem.encode())
            copy.write_bytes(data + said_line(last_message(path), number))
            size += 2 * len(data)
        expected = totals["totalTokens"] + 2 * forks
        deadline = time.monotonic() + 300
        while self.daemon.call("sessions.usage")["totals"]["totalTokens"] != expected:
            assert time.monotonic() < deadline, "forks do not count once"
            time.sleep(1)
        # From a start on, nothing of them is in memory.
        self.daemon.stop()
        wait_for_rows(self.daemon, count + forks + 1)
        assert self.daemon.process is not None
        spent = cpu_s(self.daemon.process.pid)
        first, others = self.ask()
        note = (
            f"{size / 1e6:.0f} MB read once, CPU {cpu_s(self.daemon.process.pid) - spent:.2f} s with {_ROUNDS} answers"
        )
        yield Bar(f"usage with {forks} forks, first after a start", first, "ms", 1000, 10_000, None, note)
        yield Bar(f"usage with {forks} forks, then", statistics.median(others), "ms", _BAR_MS, _LIMIT_MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--forks", type=int, default=40)
    given = parser.parse_args()
    held = True
    with tempfile.TemporaryDirectory(prefix="bars-") as name:
        corpus = write_corpus(Path(name, "home"), given.sessions, given.megabytes)
        print(f"{len(corpus.files):,} sessions, {corpus.bytes / 1e6:,.0f} MB", flush=True)
        bars = UsageBars(Path(name, "ours"), corpus)
        try:
            for bar in bars.all_rows(given.forks):
                print(bar, flush=True)
                held = held and bar.holds
        finally:
            if bars.daemon.process is not None and bars.daemon.process.poll() is None:
                bars.daemon.kill()
    if given.check and not held:
        sys.exit(1)


if __name__ == "__main__":
    main()
