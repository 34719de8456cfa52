"""How quickly sessions are seen on another machine, and what that costs: the table of bars. `just bench`.

    python tests/benchmarks/machines.py [--check] [--megabytes 1000] [--sessions 10000] [--rounds 200]
        [--machines 100] [ROW...]

runs nats-server (synced after each message, as the page says) and two daemons with their links, all on
this machine. Rows: live, catch-up, rows, idle, and crowd: one machine among many simulated ones. `--check` fails only
where a limit is exceeded, which is several times the bar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self
from urllib.request import urlopen

from simulated_machines import MachineCrowd
from support.copied_transcripts import copies_in
from support.nats_machines import AGENTS, LinkedMachine, configuration, linked, reload_daemon
from support.nats_server import NatsServer
from support.real_daemon import Wire

from sessiond.link.identity import load_identity, new_identity
from sessiond.link.presence import INTERVAL_S
from sessiond.link.server_setup import set_up

EXPORT = {("lap", "mars"): 'export = [{agents = ["*"]}]'}
KEY = "agent:main:live"
MS = 1000.0


class MachineBar(NamedTuple):
    """One line of the table. A rate has to be above its bar, a time below."""

    what: str
    ours: float
    unit: str
    bar: float
    limit: float
    is_rate: bool = False
    note: str = ""

    def misses(self, value: float) -> bool:
        return self.ours < value if self.is_rate else self.ours > value

    @property
    def holds(self) -> bool:
        return not self.misses(self.limit)

    def __str__(self) -> str:
        sign = ">=" if self.is_rate else "<="
        verdict = "FAILED" if not self.holds else "missed" if self.misses(self.bar) else ""
        return (
            f"{self.what:62} {self.ours:9,.2f} {self.unit:5} bar {self.bar:7,.1f} ({sign} {self.limit:g})"
            f"  {verdict:6} {self.note}"
        )


@contextmanager
def two_machines(*, with_links: bool = True) -> Iterator[dict[str, LinkedMachine]]:
    with tempfile.TemporaryDirectory(prefix="machines-") as name:
        server = NatsServer(Path(name, "nats"), "open").start()
        try:
            with linked(Path(name), server, ["lap", "mars"], EXPORT, with_links=with_links) as machines:
                yield machines
        finally:
            server.kill()


def inject(machine: LinkedMachine, wire: Wire, text: str) -> None:
    wire.call("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": text}])


def live(rounds: int) -> Iterator[MachineBar]:
    with two_machines() as machines:
        lap, mars = machines["lap"], machines["mars"]
        lap.call("sessions.create", key=KEY)
        with lap.daemon.connect() as there, mars.daemon.connect() as here:
            here.call("sessions.subscribe")
            inject(lap, there, "first")
            here.event("session.message")
            took = []
            for number in range(rounds):
                began = time.perf_counter()
                inject(lap, there, f"message {number}")
                event = here.event("session.message")
                took.append(MS * (time.perf_counter() - began))
                assert event["message"]["content"] == f"message {number}", event
                assert event["sessionKey"] == f"lap/{KEY}", event
                time.sleep(0.02)
    took.sort()
    yield MachineBar(
        "an append here until a subscriber there has it", statistics.median(took), "ms", 10, 60,
        note=f"p99 {took[int(len(took) * 0.99)]:.1f}, least {took[0]:.1f}",
    )  # fmt: skip


def fill(lap: LinkedMachine, megabytes: int) -> int:
    """One transcript of that size; its bytes."""
    lap.call("sessions.create", key=KEY)
    [path] = lap.store.glob("agents/main/sessions/*.jsonl")
    text = "x" * 10_000
    with path.open("ab") as file:
        for number in range(megabytes * 100):
            message = {"role": "user", "content": f"{number} {text}"}
            record = {"type": "message", "id": f"{number:08x}", "parentId": None, "message": message}
            file.write(json.dumps({**record, "timestamp": "2026-01-01T00:00:00.000Z"}).encode() + b"\n")
        size = file.tell()

    def folded() -> bool:
        got = lap.call("sessions.bytes", sessionId=path.stem, maxBytes=1)
        return bool(got["size"] == size)

    lap.wait_for(folded, "the transcript is not folded")
    return size


class AnswerTimes:
    """How long a daemon takes for short calls, one after another, while something goes on."""

    def __init__(self, machine: LinkedMachine) -> None:
        self._machine = machine
        self._over = threading.Event()
        self.took_ms: list[float] = []
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        with self._machine.daemon.connect() as wire:
            while not self._over.wait(0.005):
                began = time.perf_counter()
                wire.call("sessions_list", limit=20)
                self.took_ms.append(MS * (time.perf_counter() - began))

    @property
    def p99(self) -> float:
        return sorted(self.took_ms)[int(len(self.took_ms) * 0.99)]


def catch_up(megabytes: int) -> Iterator[MachineBar]:
    with two_machines() as machines:
        lap, mars = machines["lap"], machines["mars"]
        mars.stop_link()
        lap.stop_link()
        size = fill(lap, megabytes)
        with AnswerTimes(lap) as quiet:
            time.sleep(5)
        lap.start_link()
        lap.wait_for(lambda: "the server is there" in lap.link_log.read_text()[-2000:], "no link")
        with AnswerTimes(lap) as busy:
            began = time.perf_counter()
            mars.start_link()

            def copied() -> bool:
                return sum(path.stat().st_size for path in (mars.store / "machines").rglob("*.jsonl")) >= size

            mars.wait_for(copied, "the copy is not whole", 600)
            took = time.perf_counter() - began
        assert copies_in(mars, "lap") == lap.originals()
    note = f"{took:.1f} s, the start of the link included"
    yield MachineBar(f"catching up {megabytes:,} MB", size / 1e6 / took, "MB/s", 50, 10, is_rate=True, note=note)
    yield MachineBar(
        "and other answers' p99 meanwhile rises by", busy.p99 - quiet.p99, "ms", 10, 60,
        note=f"{quiet.p99:.1f} before, {busy.p99:.1f} meanwhile",
    )  # fmt: skip


def rows(count: int) -> Iterator[MachineBar]:
    """Mars is linked; lap comes with all its sessions, of which mars knows none."""
    with two_machines() as machines:
        lap, mars = machines["lap"], machines["mars"]
        lap.stop_link()
        lap.daemon.stop()
        folder = lap.store / "agents" / "main" / "sessions"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            write_session(folder, number)
        lap.daemon.start()
        assert lap.call("daemon.status")["sessions"] >= count
        spent = Spent(lap, mars)
        began = time.perf_counter()
        lap.start_link()
        mars.wait_for(lambda: mars.call("daemon.status")["sessions"] >= count, "the rows are not there", 600)
        took = time.perf_counter() - began
        note = spent.since()
    yield MachineBar(f"a machine joins: {count:,} sessions are listed", took, "s", 5, 60, note=note)


class Spent:
    """How much of a processor the daemons and links of machines use from now on."""

    def __init__(self, *machines: LinkedMachine) -> None:
        self._machines = machines
        self._before = self._look()

    def _look(self) -> dict[str, float]:
        found = {}
        for machine in self._machines:
            for kind, process in (("daemon", machine.daemon.process), ("link", machine.link)):
                found[f"{kind} of {machine.name}"] = 0.0 if process is None else processor_s(process.pid)
        return found

    def since(self) -> str:
        """In words."""
        now = self._look()
        return "processor: " + ", ".join(f"{name} {now[name] - before:.2f} s" for name, before in self._before.items())


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def write_session(folder: Path, number: int) -> None:
    name, when = str(uuid.UUID(int=number + 1, version=4)), "2026-01-01T00:00:00.000Z"
    header = {"type": "session", "version": 3, "id": name, "timestamp": when, "cwd": "/tmp"}
    message = {"role": "user", "content": f"session {number}"}
    lines = [
        {**header, "sessionKey": f"agent:main:dashboard:{number}"},
        {"type": "message", "id": "00000001", "parentId": None, "timestamp": when, "message": message},
    ]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def idle(seconds: int = 30) -> Iterator[MachineBar]:
    with two_machines() as machines:
        lap, mars = machines["lap"], machines["mars"]
        lap.call("sessions.create", key=KEY)
        with lap.daemon.connect() as wire:
            inject(lap, wire, "hello")
        mars.wait_for(lambda: copies_in(mars, "lap") == lap.originals(), "no copy")
        time.sleep(5)
        link = lap.link
        assert link is not None
        before = wake_ups(link.pid)
        time.sleep(seconds)
        yield MachineBar("an idle link wakes", (wake_ups(link.pid) - before) / seconds, "/s", 1, 5)


def crowd(count: int, seconds: int = 60, sessions: int = 20) -> Iterator[MachineBar]:
    """One real machine among many simulated ones."""
    names = [f"sim-{number}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="machines-") as folder:
        server = NatsServer(Path(folder, "nats"), "open").start()
        real = LinkedMachine("real", Path(folder, "real"), AGENTS)
        try:
            real.daemon.start(AGENTS)
            key = load_identity(real.store, make=True).public
            identities = {name: new_identity() for name in names}
            began = time.perf_counter()
            asyncio.run(set_up(server.settings(), ["real", *names]))
            yield MachineBar(f"the administrator sets up {count} machines", time.perf_counter() - began, "s", 60, 600)
            keys = {name: identity.public.text for name, identity in identities.items()}
            real.daemon.config.write_text(configuration(real, server, keys, {}, ""))
            reload_daemon(real)
            with MachineCrowd(server, identities, "real", key, sessions) as machines:
                yield from _measure_crowd(real, machines, seconds, server)
        finally:
            real.stop_link(signal.SIGKILL)
            real.daemon.kill()
            server.kill()


def _measure_crowd(real: LinkedMachine, crowd: MachineCrowd, seconds: int, server: NatsServer) -> Iterator[MachineBar]:
    count, wanted = len(crowd.machines), sum(len(one.transcripts) for one in crowd.machines)
    spent, began = Spent(real), time.perf_counter()
    real.start_link()
    real.wait_for(lambda: real.call("daemon.status")["sessions"] >= wanted, "the rows are not there", 600)
    took = time.perf_counter() - began
    yield MachineBar(f"{count} machines with {wanted:,} sessions are listed", took, "s", 5, 60, note=spent.since())
    crowd.look_each(INTERVAL_S)
    time.sleep(20)
    link, daemon = real.link, real.daemon.process
    assert link is not None and daemon is not None
    before = {pid: (wake_ups(pid), processor_s(pid)) for pid in (link.pid, daemon.pid)}
    time.sleep(seconds)
    # The daemon indexes what it has got, for searches.
    for name, pid, bar in (("link", link.pid, 1), ("daemon", daemon.pid, 5)):
        woke, used = (
            (now - then) / seconds for now, then in zip((wake_ups(pid), processor_s(pid)), before[pid], strict=True)
        )
        yield MachineBar(
            f"a {name} with {count} idle machines wakes", woke, "/s", bar, 50,
            note=f"{100 * used:.2f} % of a processor, {memory_mb(pid):.0f} MB",
        )  # fmt: skip
    took_ms = []
    with real.daemon.connect() as here:
        here.call("sessions.subscribe")
        for number in range(200):
            machine = crowd.machines[number % count]
            began = time.perf_counter()
            crowd.run(machine.append(f"message {number}"))
            while here.event("session.message")["message"]["content"] != f"message {number}":
                pass
            took_ms.append(MS * (time.perf_counter() - began))
    took_ms.sort()
    yield MachineBar(
        f"an append on one of {count} until a subscriber here has it", statistics.median(took_ms), "ms", 10, 60,
        note=f"p99 {took_ms[int(len(took_ms) * 0.99)]:.1f}",
    )  # fmt: skip
    with urlopen(f"{server.monitor}/varz") as varz, urlopen(f"{server.monitor}/jsz") as jsz:
        facts, stored = json.load(varz), json.load(jsz)
    note = f"{stored['consumers']} consumers, {stored['messages']} messages wait, {facts['mem'] / 1e6:.0f} MB"
    yield MachineBar("connections to the server", facts["connections"], "", count + 5, 3 * count + 10, note=note)


def wake_ups(pid: int) -> int:
    """How often the threads of a process went to sleep by themselves so far."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        total += int(fields["voluntary_ctxt_switches"])
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="live, catch-up, rows, idle, crowd; all by default")
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    measures = {
        "live": lambda: live(given.rounds),
        "catch-up": lambda: catch_up(given.megabytes),
        "rows": lambda: rows(given.sessions),
        "idle": idle,
        "crowd": lambda: crowd(given.machines),
    }
    held = True
    for name in given.rows or measures:
        for bar in measures[name]():
            print(bar, flush=True)
            held = held and bar.holds
    if given.check and not held:
        sys.exit(1)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
