"""How fast a search is, beside `rg` and agentsview, and how little it delays: the table of bars. `just bench`.

    python tests/benchmarks/search.py [--check] [--alone] [--sessions 2000] [--megabytes 1000]

writes so many megabytes of conversation text into sessions of Claude Code, waits until the daemon of this checkout has
folded and indexed them, and measures over its socket. The text is that of Python's own library, cut anywhere, with
words planted in it. `rg -c` reads the same files from the page cache, agentsview has them in its database. `--check`
fails only where a limit is exceeded, which is several times the bar.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from agentsview import Agentsview, installed_agentsview
from bar_measures import MS, InstalledDaemon, call_on, daemon_wire, inject
from sources import Bar, cpu_s, percentile, size_of, wait_for_rows, wait_until_folded

_OWN = "agent:main:own"
_PATIENCE_S = 3600.0
_NEWEST_MS = 1_795_000_000_000
# So many of each planted word; every search is for another one.
_ROUNDS = 15
_MESSAGE_CHARS = (200, 400, 800, 1500, 3000)
_ANSWER = {"type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "stop_reason": "end_turn"}
_EAST = "検索は一度で答える会話全文索引速度確認漢字文章記録送信受信設定場所時間"


class SearchedCorpus(NamedTuple):
    """What was written: files, bytes of files, and bytes of the text of messages."""

    files: list[Path]
    bytes: int
    text_bytes: int


def read_prose() -> str:
    """A few megabytes of text that people wrote: English and code."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in library.glob("*.py")) + sorted(library.glob("*/*.py"))
    pieces, size = [], 0
    for path in files:
        pieces.append(path.read_text(errors="replace"))
        size += len(pieces[-1])
        if size > 25_000_000:
            break
    return "".join(pieces)


def planted(kind: str, number: int) -> str:
    """A word that occurs nowhere else: `rare` and `east` once, `many` in 200 messages."""
    rng = random.Random(f"{kind} {number}")
    if kind == "east":
        return "".join(rng.choices(_EAST, k=9))
    return kind + "".join(rng.choices("bcdfghjklmnpqrstvwxz", k=8))


def write_corpus(home: Path, sessions: int, megabytes: float) -> SearchedCorpus:
    """Sessions one after the other in time, each a few hours long."""
    prose, rng = read_prose(), random.Random(7)
    mean, files, total, text_bytes = megabytes * 1e6 / sessions, [], 0, 0
    plants: dict[int, list[str]] = {}
    for number in range(_ROUNDS):
        for kind, times in (("rare", 1), ("east", 1), ("many", 200)):
            for _ in range(times):
                plants.setdefault(rng.randrange(sessions), []).append(planted(kind, number))
    for number in range(sessions):
        name = session_name(number)
        path = home / ".claude" / "projects" / f"-home-me-p{number % 40}" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = int(mean * rng.choice((0.2, 0.5, 1.0, 2.3)))
        data, written = write_session(number, size, prose, rng, plants.get(number, []))
        path.write_bytes(data)
        files.append(path)
        total, text_bytes = total + len(data), text_bytes + written
    return SearchedCorpus(files, total, text_bytes)


def session_name(number: int) -> str:
    return f"{number:08x}-2222-4222-8333-0123456789ab"


def write_session(number: int, size: int, prose: str, rng: random.Random, words: list[str]) -> tuple[bytes, int]:
    """The lines of one session, and how many bytes its texts have."""
    name = session_name(number)
    lines, written, at, turn = [], 0, _NEWEST_MS - number * 7_200_000, 0
    places = sorted(rng.randrange(size) for _ in words)
    while written < size or words:
        begin = rng.randrange(len(prose) - 4000)
        text = prose[begin : begin + rng.choice(_MESSAGE_CHARS)]
        if rng.random() < 0.02:
            text += "".join(rng.choices(_EAST, k=300))
        while words and (written >= size or places[len(places) - len(words)] <= written):
            text = f"{text} {words.pop()} {text[:100]}"
        turn, at = turn + 1, at + 9_000
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // 1000)) + ".000Z"
        head = {"parentUuid": None, "isSidechain": False, "userType": "external", "cwd": f"/home/me/p{number % 40}"}
        head |= {"sessionId": name, "version": "2.1.330", "gitBranch": "main"}
        message: dict[str, object] = {"role": "user", "content": text}
        if not turn % 2:
            message = {**_ANSWER, "id": f"msg_{turn}", "content": [{"type": "text", "text": text}]}
        kind = "user" if turn % 2 else "assistant"
        line = {**head, "type": kind, "message": message, "uuid": f"{turn:08x}{name[8:]}", "timestamp": stamp}
        lines.append(json.dumps(line, separators=(",", ":"), ensure_ascii=False))
        written += len(text.encode())
    return ("\n".join(lines) + "\n").encode(), written


class Measuring:
    """One daemon on the corpus, row by row; the order matters."""

    def __init__(self, folder: Path, home: Path, corpus: SearchedCorpus, agentsview_ms: float | None) -> None:
        self.home, self.corpus, self.agentsview_ms = home, corpus, agentsview_ms
        self.daemon = InstalledDaemon(folder)
        self.daemon.environ["HOME"] = str(home)
        self.daemon.run.mkdir(mode=0o700, parents=True)

    def all_rows(self) -> Iterator[Bar]:
        yield from self.without_index()
        yield from self.building()
        yield from self.indexed()
        yield from self.beside()

    def start(self, config: str) -> None:
        self.daemon.config.write_text(config)
        wait_for_rows(self.daemon)
        wait_until_folded(self.daemon)

    def without_index(self) -> Iterator[Bar]:
        self.start("[search]\nindex = false\n")
        self.daemon.call("sessions.create", key=_OWN)
        took = [self.search_ms(planted("rare", number), 1) for number in range(3)]
        scan = f"{self.corpus.bytes / 1e6 / (statistics.median(took) / MS):,.0f} MB/s"
        yield Bar("a rare word, by scan alone", statistics.median(took), "ms", 8000, 80_000, None, scan)
        with daemon_wire(self.daemon) as sock:
            alone = self.append(sock, 400)
            with Searching(self.daemon):
                meanwhile = self.append(sock, 400)
        yield self.delay("p99 of an append, more while a scan goes on", alone, meanwhile)
        self.daemon.stop()

    def building(self) -> Iterator[Bar]:
        self.start("")
        with daemon_wire(self.daemon) as sock:
            meanwhile = self.append(sock, 1000)
            state = self.daemon.call("daemon.status")["search"]
            note = f"then {state['indexedBytes'] / 1e6:,.0f} of {state['totalBytes'] / 1e6:,.0f} MB were indexed"
            self.daemon.stop()
            self.start("[search]\nbudget = 1.0\n")
            began = time.perf_counter()
            self.wait_until_ready()
            took = time.perf_counter() - began
        with daemon_wire(self.daemon) as sock:
            alone = self.append(sock, 1000)
        yield self.delay("p99 of an append, more while it is indexed", alone, meanwhile, note)
        note = f"{self.corpus.text_bytes / 1e6 / took:.1f} MB/s with the whole of a core"
        yield Bar("indexing the rest", took, "s", 300, 3000, None, note)
        index = sum(path.stat().st_size for path in (self.daemon.store / "cache").glob("search.sqlite*"))
        yield Bar("index, of the text", index / self.corpus.text_bytes, "x", 0.25, 0.6, None, f"{index / 1e6:,.0f} MB")

    def indexed(self) -> Iterator[Bar]:
        rounds = range(_ROUNDS)
        for what, words, least in (
            ("a rare word", [planted("rare", number) for number in rounds], 1),
            ("a part of a word", [planted("rare", number)[2:9] for number in rounds], 1),
            ("CJK", [planted("east", number) for number in rounds], 1),
            ("50 hits", [planted("many", number) for number in rounds], 50),
            ("a word that is nowhere", [f"{planted('none', number)}" for number in rounds], 0),
            ("a word that is everywhere", ["return", "import", "def ", "self", "None"], 50),
        ):
            took = [self.search_ms(word, least) for word in words]
            beside = self.agentsview_ms if what == "a rare word" else None
            note = f"worst {max(took):.1f}"
            yield Bar(what, statistics.median(took), "ms", 30, 300, beside, note)
        took = []
        for number in rounds:
            word = planted("new", number)
            self.daemon.call("chat.inject", sessionKey=_OWN, messages=[{"role": "user", "content": f"a {word}!"}])
            took.append(self.search_ms(word, 1))
        yield Bar("a message just written", statistics.median(took), "ms", 30, 300)
        with daemon_wire(self.daemon) as sock:
            alone = self.append(sock, 1000)
            with Searching(self.daemon):
                meanwhile = self.append(sock, 1000)
        yield self.delay("p99 of an append, more while searches go on", alone, meanwhile)
        process = self.daemon.process
        assert process is not None
        before = cpu_s(process.pid)
        time.sleep(10)
        yield Bar("CPU in 10 idle seconds", cpu_s(process.pid) - before, "s", 0.05, 1)

    def beside(self) -> Iterator[Bar]:
        rg = shutil.which("rg")
        if rg is None:
            print("without rg: it is not installed")
            return
        took = []
        for number in range(5):
            command = [rg, "-c", "--no-messages", planted("rare", number), str(self.home / ".claude")]
            began = time.perf_counter()
            done = subprocess.run(command, capture_output=True, check=False)
            took.append((time.perf_counter() - began) * MS)
            assert done.stdout.count(b":") == 1, done
        yield Bar("rg -c of a rare word, for comparison", statistics.median(took), "ms", 1e6, 1e9)

    def search_ms(self, word: str, least: int) -> float:
        """How long one search takes, on a connection that is open already."""
        with self.daemon.connect() as wire:
            wire.call("ping")
            began = time.perf_counter()
            found = wire.call("sessions_search", query=word, limit=50)
            took = (time.perf_counter() - began) * MS
        assert len(found["matches"]) == least, (word, len(found["matches"]), least)
        return took

    def append(self, sock: socket.socket, times: int) -> list[float]:
        call, took = call_on(sock, inject(_OWN)), []
        for _ in range(times):
            began = time.perf_counter()
            call()
            took.append((time.perf_counter() - began) * MS)
            time.sleep(0.01)
        return took

    def delay(self, what: str, alone: list[float], meanwhile: list[float], note: str = "") -> Bar:
        one, two = percentile(meanwhile, 0.99), percentile(alone, 0.99)
        told = f"{one:.1f} and {two:.1f}; medians {statistics.median(meanwhile):.1f} and {statistics.median(alone):.1f}"
        return Bar(what, one - two, "ms", 2, 500, None, "; ".join(filter(None, (told, note))))

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while self.daemon.call("daemon.status")["search"]["state"] != "ready":
            assert time.monotonic() < deadline, "it is not indexed"
            time.sleep(0.2)


class Searching:
    """Searches that go on one after the other beside something else."""

    def __init__(self, daemon: InstalledDaemon) -> None:
        self._daemon, self._over = daemon, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with self._daemon.connect() as wire:
            number = 0
            while not self._over.is_set():
                number += 1
                wire.call("sessions_search", query=f"nowhere {number}", withinMs=300)


def measure_agentsview(program: str, home: Path, corpus: SearchedCorpus, data: Path) -> float | None:
    """The median of the same searches in milliseconds. It is stopped afterwards, and its database removed."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    began = time.perf_counter()
    with Agentsview(program, home, data, port) as server:
        assert server.process is not None
        while server.count_sessions() < len(corpus.files):
            if server.process.poll() is not None or time.perf_counter() - began > _PATIENCE_S:
                return None
            time.sleep(0.5)
        took = time.perf_counter() - began
        print(f"agentsview: complete after {took:.0f} s, {size_of(data) / 1e6:,.0f} MB", flush=True)
        times = []
        for number in range(_ROUNDS):
            moment, count = server.search(planted("rare", number))
            print(f"agentsview: {moment * MS:.1f} ms, {count} results", flush=True) if number < 3 else None
            times.append(moment * MS)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--alone", action="store_true", help="without agentsview")
    given = parser.parse_args()
    held = True
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bars-")))
        home = folder / "home"
        corpus = write_corpus(home, given.sessions, given.megabytes)
        print(f"{len(corpus.files):,} sessions, {corpus.text_bytes / 1e6:,.0f} MB of text in {corpus.bytes / 1e6:,.0f}")
        program = None if given.alone else stack.enter_context(installed_agentsview())
        agentsview_ms = None
        if program is None:
            print("without agentsview" + ("" if given.alone else ": it cannot be installed here"))
        else:
            agentsview_ms = measure_agentsview(program, home, corpus, folder / "agentsview")
            shutil.rmtree(folder / "agentsview", ignore_errors=True)
        measuring = Measuring(folder / "ours", home, corpus, agentsview_ms)
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
