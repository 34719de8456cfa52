"""Latency and throughput of events to subscribers, each with a baseline of the same run. `just bench`.

Medians, because other programs run on the machine.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from support.concurrent_appenders import ConcurrentAppenders
from support.real_daemon import Daemon

pytestmark = pytest.mark.benchmark

KEY = "agent:main:live"


def request(method: str, params: dict[str, Any], number: int = 1) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


def message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def record(text: str) -> bytes:
    return json.dumps({"type": "message", "id": text[:20], "message": message(text)}).encode() + b"\n"


def connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return sock


def subscribe(daemon: Daemon, key: str | None = KEY) -> socket.socket:
    """A connection with a subscription that was acknowledged."""
    sock = connect(daemon.socket)
    method, params = ("sessions.subscribe", {}) if key is None else ("sessions.messages.subscribe", {"key": key})
    sock.sendall(request(method, params))
    assert b'"subscribed":true' in sock.recv(65536)
    return sock


def create_session(daemon: Daemon) -> Path:
    """Create a session; the path of its transcript."""
    daemon.call("sessions.create", key=KEY)
    return Path(daemon.rows()[0]["transcriptPath"])


class Arrivals:
    """Measures when each of several descriptors has a whole line."""

    def __init__(self, *files: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._files = files
        for file in files:
            os.set_blocking(file, False)
            self._selector.register(file, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()

    def warm_up(self, write: Callable[[], object], last: int) -> None:
        """Write until `last` has data, and read everything that arrived."""
        came: set[int] = set()
        while last not in came:
            write()
            time.sleep(0.2)
            while ready := self._selector.select(0.2):
                for key, _ in ready:
                    os.read(key.fd, 262144)
                    came.add(key.fd)

    def wait(self, ends: bytes = b"\n") -> dict[int, float]:
        """The time of each descriptor's arrival, by descriptor."""
        got: dict[int, float] = {}
        while len(got) < len(self._files):
            ready = self._selector.select(10)
            assert ready, "nothing came"
            for key, _ in ready:
                if os.read(key.fd, 262144).endswith(ends):
                    got[key.fd] = time.perf_counter()
        return got


def milliseconds(times: list[float]) -> str:
    ordered = sorted(times)
    return f"{statistics.median(times) * 1e3:.2f} ms (p90 {ordered[len(ordered) * 9 // 10] * 1e3:.2f})"


@contextmanager
def tail(path: Path) -> Iterator[int]:
    """The output of `tail -F` on a file."""
    process = subprocess.Popen(["tail", "-n0", "-F", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        yield process.stdout.fileno()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("subscribers", [1, 100])
def test_events_of_the_daemons_own_append_follow_its_acknowledgement_within_the_bound(
    daemon: Daemon, subscribers: int
) -> None:
    daemon.start()
    path = create_session(daemon)
    after_ack, after_send, synced = [], [], []
    with ExitStack() as stack:
        followers = [stack.enter_context(subscribe(daemon)).fileno() for _ in range(subscribers)]
        asking = stack.enter_context(connect(daemon.socket))
        arrivals = stack.enter_context(Arrivals(asking.fileno(), *followers))
        plain = os.open(path.parent / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in range(300):
            line = request("chat.inject", {"sessionKey": KEY, "messages": [message(f"{number} " + "x" * 200)]})
            began = time.perf_counter()
            asking.sendall(line)
            got = arrivals.wait()
            last = max(got[file] for file in followers)
            after_send.append(last - began)
            after_ack.append(max(0.0, last - got[asking.fileno()]))
            began = time.perf_counter()
            os.write(plain, line)
            os.fdatasync(plain)
            synced.append(time.perf_counter() - began)
        os.close(plain)
    print(
        f"\nown append, {subscribers} subscribers: ack to last event {milliseconds(after_ack)},"
        f" asked to last event {milliseconds(after_send)}; bare write and sync {milliseconds(synced)}"
    )
    assert statistics.median(after_ack) <= (0.002 if subscribers == 1 else 0.003)


@pytest.mark.parametrize(
    ("watcher", "subscribers", "most_s"), [("inotify", 1, 0.0015), ("inotify", 100, 0.003), ("watchfiles", 1, 0.025)]
)
def test_events_of_another_programs_append_arrive_within_the_bound(
    daemon: Daemon, watcher: str, subscribers: int, most_s: float
) -> None:
    daemon.start(f'[store]\nwatcher = "{watcher}"\n')
    path = create_session(daemon)
    took, tail_took = [], []
    with ExitStack() as stack:
        followers = [stack.enter_context(subscribe(daemon)).fileno() for _ in range(subscribers)]
        tailing = stack.enter_context(tail(path))
        with path.open("ab", buffering=0) as file:
            arrivals = stack.enter_context(Arrivals(tailing, *followers))
            arrivals.warm_up(lambda: file.write(record("for tail to be there")), tailing)
            for number in range(300 if watcher == "inotify" else 60):
                began = time.perf_counter()
                file.write(record(f"{number} " + "x" * 200))
                got = arrivals.wait()
                took.append(max(got[one] for one in followers) - began)
                tail_took.append(got[tailing] - began)
    ratio = statistics.median(one / other for one, other in zip(took, tail_took, strict=True))
    print(
        f"\nappend by another program, {watcher}, {subscribers} subscribers: {milliseconds(took)},"
        f" `tail -F` on the same file {milliseconds(tail_took)}, ratio {ratio:.1f}"
    )
    assert statistics.median(took) <= most_s


def test_a_hundred_subscribers_get_a_tenth_of_the_throughput_of_bare_sends(daemon: Daemon) -> None:
    daemon.start()
    path = create_session(daemon)
    rates, bare = [], []
    count = 500
    with ExitStack() as stack:
        followers = [stack.enter_context(subscribe(daemon)) for _ in range(100)]
        for round_ in range(5):
            lines = b"".join(record(f"{round_} {number} " + "x" * 200) for number in range(count))
            began = time.perf_counter()
            with path.open("ab", buffering=0) as file:
                file.write(lines)
            received = drain(followers, count)
            rates.append(100 * count / (time.perf_counter() - began))
            bare.append(bare_rate(received // (100 * count), count))
    ratio = statistics.median(one / other for one, other in zip(rates, bare, strict=True))
    print(
        f"\n100 subscribers: {statistics.median(rates):.0f} events/s, the same bytes by a bare loop of sends"
        f" {statistics.median(bare):.0f}/s, ratio {ratio:.2f}"
    )
    assert ratio >= 0.1


def drain(followers: list[socket.socket], count: int) -> int:
    """Read `count` lines from each; the number of bytes."""
    left = {sock.fileno(): count for sock in followers}
    size = 0
    with selectors.DefaultSelector() as selector:
        for file in left:
            os.set_blocking(file, False)
            selector.register(file, selectors.EVENT_READ)
        while left:
            ready = selector.select(20)
            assert ready, left
            for key, _ in ready:
                data = os.read(key.fd, 262144)
                size += len(data)
                left[key.fd] -= data.count(b"\n")
                if left[key.fd] == 0:
                    del left[key.fd]
                    selector.unregister(key.fd)
    return size


def bare_rate(size: int, count: int) -> float:
    """Lines of that size per second from a child process to this one over 100 socket pairs."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(100)]
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
        child = os.fork()
        if child == 0:
            line = b"x" * (size - 1) + b"\n"
            for _ in range(count):
                for _, end in pairs:
                    end.sendall(line)
            os._exit(0)
        began = time.perf_counter()
        drain([end for end, _ in pairs], count)
        rate = 100 * count / (time.perf_counter() - began)
        os.waitpid(child, 0)
        return rate


def resident_bytes(daemon: Daemon) -> int:
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def append_and_receive(daemon: Daemon, listener: socket.socket, records: int) -> float:
    """Append so many messages, a hundred at a time, until the listener has all of them; the duration in seconds."""
    ended: list[int] = []

    def listen() -> None:
        ended.append(drain([listener], 2 * records))

    thread = threading.Thread(target=listen)
    began = time.perf_counter()
    thread.start()
    with daemon.connect() as wire:
        for _ in range(records // 100):
            wire.call("chat.inject", sessionKey=KEY, messages=[message("x" * 200)] * 100)
    thread.join()
    return time.perf_counter() - began


def test_a_stopped_subscriber_costs_little_and_slows_nobody(daemon: Daemon) -> None:
    daemon.start()
    create_session(daemon)
    alone, beside = [], []
    with subscribe(daemon, None) as listener:
        append_and_receive(daemon, listener, 10_000)
        for _ in range(7):
            alone.append(append_and_receive(daemon, listener, 5000))
            with subscribe(daemon, None):
                append_and_receive(daemon, listener, 2000)  # until the new subscriber is behind
                beside.append(append_and_receive(daemon, listener, 5000))
        before = resident_bytes(daemon)
        append_and_receive(daemon, listener, 100_000)
        grown_alone = resident_bytes(daemon) - before
        with subscribe(daemon, None) as stopped:
            before = resident_bytes(daemon)
            append_and_receive(daemon, listener, 100_000)
            grown = resident_bytes(daemon) - before
            assert json.loads(stopped.makefile().readline())["method"] == "session.message"
    slower = statistics.median(one / other for one, other in zip(beside, alone, strict=True)) - 1
    rate = 5000 / statistics.median(beside)
    print(
        f"\none stopped subscriber while 100,000 messages pass: {grown / 1e6:.1f} MB"
        f" (without one {grown_alone / 1e6:.1f}), the other {slower:+.1%} slower, {rate:.0f} messages/s"
    )
    assert grown <= 8_000_000
    assert slower < 0.2


def test_idle_costs_nothing(daemon: Daemon) -> None:
    daemon.start()
    path = create_session(daemon)
    assert daemon.process is not None
    tasks = Path(f"/proc/{daemon.process.pid}/task")
    with subscribe(daemon, None) as listener:
        with path.open("ab") as file:
            file.write(record("wake up"))
        drain([listener], 2)
        time.sleep(3)  # the index is saved a second after the last change
        before = _cpu_and_switches(tasks)
        began = time.perf_counter()
        time.sleep(5)
        elapsed = time.perf_counter() - began
        after = _cpu_and_switches(tasks)
    share = (after[0] - before[0]) / 1e9 / elapsed
    wakes = (after[1] - before[1]) / elapsed
    print(f"\nidle: {share:.4%} of a core, {wakes:.1f} wake-ups a second")
    assert share <= 0.001
    assert wakes <= 1


def _cpu_and_switches(tasks: Path) -> tuple[int, int]:
    """CPU nanoseconds and context switches of all threads."""
    spent = switches = 0
    for task in tasks.iterdir():
        spent += int((task / "schedstat").read_text().split()[0])
        switches += sum(
            int(line.split()[1]) for line in (task / "status").read_text().splitlines() if "ctxt_switches" in line
        )
    return spent, switches


def test_a_subscriber_with_fifty_lost_connections_gets_a_hundred_thousand_records_once_and_in_order(
    daemon: Daemon,
) -> None:
    daemon.start()
    appenders = ConcurrentAppenders(daemon, ("agent:main:a", "agent:main:b"), records=100_000, cuts=50)
    appenders.run()
    appenders.check()
    print(
        f"\n100,000 records, four processes, {appenders.connections} connections, {appenders.resyncs} resyncs:"
        f" each once and in order, {appenders.records / appenders.seconds:.0f} records/s"
    )
