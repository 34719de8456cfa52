"""Shared by the benchmarks of the store: messages, stores of a given size, and printing of figures."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from sessiond.clock import iso_ms

T = 1_795_000_000_000
AGENT = "main"
LIMIT = 8 * 1024 * 1024


def text(number: int) -> dict[str, Any]:
    """A message of about 500 bytes, as an agent writes them."""
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": f"{number}: the quick brown fox jumps over the lazy dog. " * 4}],
        "provider": "fake",
        "model": "demo-1",
        "usage": {"input": 1200, "output": 33, "totalTokens": 1233, "cost": {"total": 0.0012}},
        "stopReason": "stop",
        "timestamp": T + number,
    }


def line(number: int) -> bytes:
    """The record of `text(number)`."""
    record = {
        "type": "message",
        "id": f"{number:016x}",
        "parentId": f"{number - 1:016x}",
        "timestamp": iso_ms(T + number),
        "message": text(number),
    }
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def header(session_id: str, key: str, at: int) -> bytes:
    """The first line of a transcript."""
    return (
        json.dumps(
            {
                "type": "session",
                "version": 3,
                "id": session_id,
                "timestamp": iso_ms(at),
                "cwd": "/home/user",
                "sessionKey": key,
                "agentId": AGENT,
            }
        ).encode()
        + b"\n"
    )


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on a real disk, because its sync is measured. SESSIOND_BENCH_DIR is its parent."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("SESSIOND_BENCH_DIR"), prefix="sessiond-bench-") as path:
        yield Path(path)


def make_sessions(store: Path, count: int, messages: int = 2) -> None:
    """A store of `count` sessions with a few messages each, without an index."""
    folder = store / "agents" / AGENT / "sessions"
    folder.mkdir(parents=True)
    for number in range(count):
        name = f"00000000-0000-4000-8000-{number:012d}"
        body = b"".join(line(number * messages + place) for place in range(messages))
        with (folder / f"{name}.jsonl").open("wb") as file:
            file.write(header(name, f"agent:{AGENT}:whatsapp:direct:{number:012d}", T + number) + body)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def best_of(rounds: int, function: Callable[[], object]) -> float:
    """Seconds of the fastest of `rounds`, which other programs disturbed least."""
    times = []
    for _ in range(rounds):
        start = perf_counter()
        function()
        times.append(perf_counter() - start)
    return min(times)


def verdict(what: str, ratio: float, *, at_least: float | None = None, at_most: float | None = None) -> bool:
    """Print a figure beside its goal. Whether it is met."""
    met = (at_least is None or ratio >= at_least) and (at_most is None or ratio <= at_most)
    goal = f"at least {at_least:g}" if at_least is not None else f"at most {at_most:g}"
    print(f"{'ok  ' if met else 'MISS'} {what}: {ratio:.2f} ({goal})")
    return met


def finish(results: list[bool]) -> None:
    """With `--check`, a goal that was missed ends the program with 1."""
    if "--check" in sys.argv[1:] and not all(results):
        raise SystemExit(1)
