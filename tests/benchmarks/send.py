"""A whole sessions_send with the echo agent, wait included, and a thousand of them among 64 attached agents.

`python tests/benchmarks/send.py` starts the real daemon, durability on, and measures over its real socket. Printed
beside a baseline of the same minute: two bare fdatasyncs, which no durable send can do without.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.real_daemon import Daemon, Wire

from sessiond.client import TrioClient
from sessiond.client.agent import AttachedRun

SENDS = 300
AGENTS, AMONG = 64, 1000
OPEN = """
[session]
agentToAgent = { maxPingPongTurns = 0 }
[limits]
maxConnections = 1024
"""


def milliseconds(work: Callable[[], object], times: int) -> float:
    """The median of so many."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def two_syncs(folder: Path) -> float:
    fd = os.open(folder / "bare", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def once() -> None:
        for _ in range(2):
            os.write(fd, b"x" * 600)
            os.fdatasync(fd)

    try:
        return milliseconds(once, SENDS)
    finally:
        os.close(fd)


def latency(folder: Path) -> bool:
    daemon = Daemon(folder).start(OPEN)
    daemon.reply("main", "warm")
    with daemon.connect() as wire:
        ask = {"sessionKey": "main", "message": "x" * 200}

        def send() -> None:
            assert wire.call("sessions_send", **ask)["status"] == "ok"

        milliseconds(send, 50)
        ours = milliseconds(send, SENDS)
        ping = milliseconds(lambda: wire.call("ping"), SENDS)
        settle(daemon)
    bare = two_syncs(folder)
    daemon.stop()
    return verdict("a whole sessions_send", ours, "ms", 5.0, f"ping {ping:.2f} ms, two bare syncs {bare:.2f} ms")


def syncs(folder: Path) -> bool:
    """How many times the disk was waited for, for one send and all that follows it, by the kernel's own count."""
    if shutil.which("strace") is None:
        print("fdatasyncs: not counted, strace is not installed")
        return True
    daemon = Daemon(folder).start(OPEN)
    daemon.reply("main", "warm")
    settle(daemon)
    assert daemon.process is not None
    counts = folder / "counts"
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(daemon.process.pid), "-e", "trace=fdatasync", "-o", str(counts)],
        stderr=subprocess.PIPE,
    )
    assert tracer.stderr is not None
    tracer.stderr.readline()
    answered = []
    with daemon.connect() as wire:
        for _ in range(20):
            before = lines(counts)
            wire.call("sessions_send", sessionKey="main", message="x")
            answered.append(lines(counts) - before)
            settle(daemon)
    all_of_it = lines(counts) / 20
    tracer.terminate()
    tracer.wait()
    tracer.stderr.close()
    daemon.stop()
    until = statistics.median(answered)
    return verdict("fdatasyncs until the answer", until, "", 3.0, f"{all_of_it:.1f} with the announce step after it")


def lines(path: Path) -> int:
    return path.read_text().count("fdatasync(") if path.exists() else 0


def settle(daemon: Daemon) -> None:
    """Return when nothing runs any more."""
    with daemon.connect() as wire:
        daemon.wait_for(lambda: not busy(wire), "runs go on")


def busy(wire: Wire) -> bool:
    status = wire.call("daemon.status")
    return bool(status["liveRuns"] or status["queuedRuns"])


def resident_mb(daemon: Daemon) -> float:
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def among_many(folder: Path) -> bool:
    agents = "".join(
        f'[[agents.list]]\nid = "a{number}"\nruntime = {{ type = "attached" }}\n' for number in range(AGENTS)
    )
    daemon = Daemon(folder).start(OPEN + agents)
    for number in range(AGENTS):
        daemon.call("sessions.create", key=f"agent:a{number}:main")
    turns: Counter[str] = Counter()
    memory: list[float] = []
    rate = trio.run(_among_many, daemon, turns, memory)
    daemon.stop()
    good = verdict(
        "sends a second among 64 attached agents",
        rate,
        "",
        None,
        f"{len(turns)} runs, one of them twice: {max(turns.values()) > 1}",
    )
    good &= max(turns.values()) == 1 and len(turns) == 2 * AMONG * len(memory)
    grown = memory[-1] - memory[1]
    return good & verdict(
        "memory grown over the last 2,000 of 4,000 sends", grown, "MB", 8.0, f"{memory[-1]:.0f} MB resident"
    )


async def _among_many(daemon: Daemon, turns: Counter[str], memory: list[float]) -> float:
    async def handler(run: AttachedRun) -> str:
        turns[run.run_id] += 1
        return "ANNOUNCE_SKIP" if run.step == "announce" else run.message

    rates = []
    async with trio.open_nursery() as nursery:
        for number in range(AGENTS):
            nursery.start_soon(_agent, daemon, f"a{number}", handler)
        everyone = partial(daemon.wait_for, partial(_all_there, daemon), "the agents do not attach")
        await trio.to_thread.run_sync(everyone)
        async with TrioClient(str(daemon.socket)) as client:
            for _ in range(4):
                began = time.perf_counter()
                await _send_all(client)
                rates.append(AMONG / (time.perf_counter() - began))
                await trio.to_thread.run_sync(settle, daemon)
                memory.append(resident_mb(daemon))
        nursery.cancel_scope.cancel()
    return statistics.median(rates)


def _all_there(daemon: Daemon) -> bool:
    return len(daemon.call("daemon.status")["attachedAgents"]) == AGENTS


async def _agent(daemon: Daemon, name: str, handler: Any) -> None:
    async with TrioClient(str(daemon.socket)) as client:
        await client.attach(name, handler)


async def _send_all(client: TrioClient) -> None:
    free = trio.CapacityLimiter(48)

    async def send(number: int) -> None:
        async with free:
            key = f"agent:a{number % AGENTS}:main"
            got = await client.call("sessions_send", sessionKey=key, message=str(number), timeoutSeconds=60)
            assert (got["status"], got["reply"]) == ("ok", str(number)), got

    async with trio.open_nursery() as nursery:
        for number in range(AMONG):
            nursery.start_soon(send, number)


def verdict(what: str, figure: float, unit: str, most: float | None, beside: str) -> bool:
    good = most is None or figure <= most
    goal = "" if most is None else f" (goal: {most:g} {unit})".replace(" )", ")")
    print(f"{'' if good else 'MISSED: '}{what}: {figure:.2f} {unit}{goal}; {beside}")
    return good


def main() -> int:
    good = True
    for part in (latency, syncs, among_many):
        with tempfile.TemporaryDirectory() as folder:
            good &= part(Path(folder))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
