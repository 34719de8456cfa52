"""How fast a search is, and how it delays other calls: `python tests/benchmarks/search.py [MB] [sessions]`.

Writes a store of that size (1000 MB in 400 sessions), starts the real daemon on it, and measures over the real socket:
a first page of matches, a search through everything, a search whose every line is a candidate, pings meanwhile, and how
long a cancelled search takes to end. It is run by hand: it takes a minute and a gigabyte.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.real_daemon import Daemon, Wire

DAY_MS = 86_400_000
START_MS = 1_795_000_000_000
RARE = "the platypus in the attic"
AGENT = "agent:main:s{}"


def build(folder: Path, megabytes: int, sessions: int) -> None:
    """Sessions of equal size, one after the other in time; the text that is looked for stands in the oldest one."""
    random.seed(7)
    words = [f"{random.getrandbits(random.choice((12, 20, 28))):x}" for _ in range(4000)]
    pool = [" ".join(random.choices(words, k=random.choice((20, 60, 250)))) for _ in range(2000)]
    folder.mkdir(parents=True)
    size = megabytes * 1_000_000 // sessions
    at = START_MS
    for number in range(sessions):
        name = f"s{number:05}"
        head = {"type": "session", "version": 3, "id": name, "timestamp": stamp(at), "cwd": "/"}
        lines = [json.dumps({**head, "sessionKey": AGENT.format(number), "agentId": "main"}, separators=(",", ":"))]
        written = 0
        while written < size:
            at += 1000
            role = "assistant" if written % 2 else "user"
            text = RARE if number == 0 and written == 0 else random.choice(pool)
            message = {"role": role, "content": [{"type": "text", "text": text}], "timestamp": at}
            record = {"type": "message", "id": f"{at:016x}", "parentId": f"{at - 1000:016x}", "timestamp": stamp(at)}
            lines.append(json.dumps({**record, "message": message}, separators=(",", ":")))
            written += len(lines[-1]) + 1
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def stamp(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at / 1000)) + f".{at % 1000:03d}Z"


def search_and_format(daemon: Daemon, **params: object) -> str:
    with daemon.connect() as wire:
        began = time.perf_counter()
        found = wire.call("sessions_search", **params)
        return f"{(time.perf_counter() - began) * 1000:.1f} ms, {len(found['matches'])} matches"


class Pings:
    """Pings on a connection of their own while something else goes on; their times in milliseconds."""

    def __init__(self, daemon: Daemon, method: str = "ping", **params: object) -> None:
        self.times: list[float] = []
        self._wire: Wire = daemon.connect()
        self._over = threading.Event()
        self._call = (method, params)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._wire.close()

    def _run(self) -> None:
        method, params = self._call
        while not self._over.is_set():
            began = time.perf_counter()
            self._wire.call(method, **params)
            self.times.append((time.perf_counter() - began) * 1000)
            time.sleep(0.002)

    def __str__(self) -> str:
        ordered = sorted(self.times)
        at = lambda part: ordered[min(len(ordered) - 1, int(len(ordered) * part))]  # noqa: E731
        return f"{len(ordered)} answers, median {at(0.5):.2f} ms, p99 {at(0.99):.2f} ms, worst {ordered[-1]:.2f} ms"


def measure_cancel_ms(daemon: Daemon) -> float:
    with daemon.connect() as wire:
        wire.send({"jsonrpc": "2.0", "id": 1, "method": "sessions_search", "params": {"query": "nowhere at all"}})
        time.sleep(0.1)
        began = time.perf_counter()
        wire.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}})
        answer = wire.receive()
        assert answer["error"]["code"] == -32800, answer
        return (time.perf_counter() - began) * 1000


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    sessions = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(Path(folder))
        build(daemon.store / "agents" / "main" / "sessions", megabytes, sessions)
        print(f"{megabytes} MB in {sessions} sessions")
        began = time.perf_counter()
        daemon.start()
        print(f"first start, every transcript read: {time.perf_counter() - began:.1f} s")
        try:
            print(f"first page of a common word: {search_and_format(daemon, query='a', limit=50)}")
            for what, query, others in (
                ("one match in the oldest session", RARE.upper(), ("ping", {})),
                ("no match at all", "nowhere at all", ("sessions_list", {"limit": 50})),
                ("not ASCII, no match", "дом", ("ping", {})),
                ("every line a candidate, no match", "parentid", ("ping", {})),
            ):
                with Pings(daemon, others[0], **others[1]) as pings:
                    print(f"{what}: {search_and_format(daemon, query=query)}")
                print(f"  {others[0]} meanwhile: {pings}")
            print(f"a cancelled search ended after {measure_cancel_ms(daemon):.1f} ms")
        finally:
            daemon.stop()


if __name__ == "__main__":
    main()
