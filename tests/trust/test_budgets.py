"""What tokens ask for never holds up the owner, and never fills the daemon: each attack alone, and all of them at once.

The bounds of time are lax here, since the machine is shared: only a defect goes beyond them. `just bench -k budgets`
measures; SESSIOND_SOAK_S says for how many seconds.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from real_daemon import PATIENCE_S, Daemon, RpcFailure

pytestmark = pytest.mark.system

MIB = 1 << 20
# The bar is 50 ms and 200 MB. What was there before took 7 s to 27 s.
LAX_S = 1.0
BAR_S = 0.050
GROWTH_BYTES = 200 * 1000 * 1000
KEY = "agent:main:large"

PINGER = """
import json, select, socket, sys, time
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.settimeout(60)
took = []
print("ready", flush=True)
while not select.select([0], [], [], 0.005)[0]:
    began = time.perf_counter()
    sock.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\\n')
    assert b'"result":{}' in sock.recv(65536)
    took.append(time.perf_counter() - began)
print(json.dumps(sorted(took)))
"""


class Attacker:
    """A connection with a token, which need not read what it asked for."""

    def __init__(self, daemon: Daemon, token: str, *, buffer: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(daemon.agent_socket))
        self.ask("initialize", protocol=1, client={"name": "attacker"}, token=token)
        self.read(1)

    def ask(self, method: str, **params: Any) -> None:
        self.socket.sendall(call(method, **params) + b"\n")

    def read(self, count: int) -> int:
        """Read so many lines; how many bytes they were."""
        size, found = 0, 0
        while found < count:
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the daemon closed the connection")
            size, found = size + len(data), found + data.count(b"\n")
        return size


def call(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def batch(call: bytes, count: int) -> bytes:
    return b"[" + b",".join(call.replace(b'"id": 1', b'"id": %d' % number) for number in range(count)) + b"]\n"


HISTORY = call("chat.history", sessionKey=KEY, maxBytes=16 * MIB, limit=1000)


def one_history(daemon: Daemon, token: str) -> None:
    attacker = Attacker(daemon, token)
    attacker.socket.sendall(HISTORY + b"\n")
    size = attacker.read(1)
    attacker.socket.close()
    if size < 10 * MIB:
        raise ConnectionError(f"turned away with {size} bytes")


def batch_of_histories(daemon: Daemon, token: str) -> None:
    attacker = Attacker(daemon, token)
    attacker.socket.sendall(batch(HISTORY, 48))
    attacker.read(1)
    attacker.socket.close()


def unread_histories(daemon: Daemon, token: str) -> None:
    """Thirty connections ask for 64 each and read nothing for a while."""
    attackers = [Attacker(daemon, token) for _ in range(30)]
    for attacker in attackers:
        attacker.socket.sendall(b"".join(HISTORY.replace(b'"id": 1', b'"id": %d' % n) + b"\n" for n in range(64)))
    during(2.0)
    for attacker in attackers:
        attacker.socket.close()


def batched_discovers(daemon: Daemon, token: str) -> None:
    for codec in ("json", "cbor"):
        attacker = Attacker(daemon, token)
        if codec == "json":
            attacker.socket.sendall(batch(call("rpc.discover"), 1000))
            attacker.read(1)
        attacker.socket.close()


def many_lists(daemon: Daemon, token: str) -> None:
    attackers = [Attacker(daemon, token) for _ in range(20)]
    for attacker in attackers:
        attacker.socket.sendall(batch(call("sessions_list", limit=200, messageLimit=20), 64))
    for attacker in attackers:
        with suppress(OSError):
            attacker.read(1)
        attacker.socket.close()


def long_messages(daemon: Daemon, token: str) -> None:
    """Half of a long message on thirty connections, and the other half later."""
    text = call("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "x" * 7 * MIB}])
    attackers = [Attacker(daemon, token) for _ in range(30)]
    for attacker in attackers:
        attacker.socket.setblocking(False)
        with suppress(BlockingIOError):
            for start in range(0, len(text) // 2, 1 << 18):
                attacker.socket.sendall(text[start : start + (1 << 18)])
    during(1.0)
    for attacker in attackers:
        attacker.socket.close()


def idle_connections(daemon: Daemon, token: str) -> None:
    with ExitStack() as stack:
        for _ in range(256):
            with suppress(OSError):
                stack.callback(Attacker(daemon, token).socket.close)
        with daemon.connect() as owner:
            assert owner.call("ping") == {}


def unread_deltas(daemon: Daemon, token: str) -> None:
    """An agent writes 300 deltas of 1 MB while somebody follows who does not read."""
    attacker = Attacker(daemon, token)
    attacker.ask("sessions.messages.subscribe", key="agent:loud:main")
    attacker.read(1)
    daemon.reply("agent:loud:main", "deltas")
    attacker.socket.close()


def junk_lines(daemon: Daemon, token: str) -> None:
    daemon.reply("agent:loud:main", "junk")


ATTACKS: dict[str, Callable[[Daemon, str], None]] = {
    attack.__name__: attack
    for attack in (
        one_history,
        batch_of_histories,
        unread_histories,
        batched_discovers,
        many_lists,
        long_messages,
        idle_connections,
        unread_deltas,
        junk_lines,
    )
}

AGENT = """
import json, sys
if "junk" in sys.stdin.read():
    for _ in range(4):
        sys.stdout.write("no json\\n" * 50_000)
else:
    for _ in range(300):
        print(json.dumps({"type": "delta", "text": "d" * 1_000_000}))
print(json.dumps({"role": "assistant", "content": "done"}))
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("budgets")
    agent = folder / "agent.py"
    agent.write_text(AGENT)
    made = Daemon(folder)
    command = json.dumps([sys.executable, str(agent)])
    made.start(
        '[[agents.list]]\nid = "main"\ndefault = true\nruntime = { type = "echo" }\n'
        f'[[agents.list]]\nid = "loud"\nruntime = {{ type = "exec", command = {command}, output = "jsonl" }}\n'
    )
    made.call("sessions.create", key=KEY)
    made.call("sessions.create", key="agent:loud:main")
    text = ("the quick brown fox api_key: abcdefghijklmnop0123 jumps over token=0123456789abcdef0123 " * 200)[:15_000]
    for _ in range(4):
        made.call("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": text}] * 256)
    yield made
    assert made.stop() == 0
    assert "internal error" not in made.log.read_text()


def minted(daemon: Daemon) -> str:
    token: str = daemon.call("tokens.mint", scopes=["list", "read", "send", "admin"])["token"]
    return token


def resident(daemon: Daemon) -> int:
    assert daemon.process is not None
    pages = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def during(seconds: float) -> None:
    """Let it go on."""
    time.sleep(seconds)  # noqa: TID251


def measure(daemon: Daemon, attack: Callable[[], object]) -> tuple[list[float], int]:
    """How long the owner's pings took meanwhile, in order, and by how much the daemon had grown at most."""
    rest, most, done = resident(daemon), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, resident(daemon))

    with subprocess.Popen(
        [sys.executable, "-c", PINGER, str(daemon.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as pinger:
        assert pinger.stdout is not None and pinger.stdout.readline() == "ready\n"
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            attack()
        finally:
            done.set()
            watcher.join()
            out, _ = pinger.communicate("enough\n", timeout=PATIENCE_S)
    times: list[float] = json.loads(out)
    return times, most - rest


def percentile(times: list[float]) -> float:
    return times[int(len(times) * 0.99)]


def described(times: list[float], grown: int) -> str:
    """The numbers, for whoever measures."""
    p50, p99, worst = (1000 * value for value in (times[len(times) // 2], percentile(times), times[-1]))
    return f"{len(times)} pings, p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {worst:.0f} ms, grown {grown / 1e6:.0f} MB"


@pytest.mark.parametrize("name", list(ATTACKS))
def test_the_owner_is_answered_and_the_daemon_stays_small(daemon: Daemon, name: str) -> None:
    token = minted(daemon)
    times, grown = measure(daemon, lambda: ATTACKS[name](daemon, token))
    print(f"{name}: {described(times, grown)}")
    assert percentile(times) < LAX_S
    assert grown < GROWTH_BYTES


def mixed(daemon: Daemon, seconds: float) -> None:
    """Eight tokens, each with every attack in an order of its own."""
    ends = time.monotonic() + seconds
    attacks = list(ATTACKS.values())

    def attacker(first: int, token: str) -> None:
        turn = first
        while time.monotonic() < ends:
            # Turned away is one way of keeping it small.
            with suppress(OSError, RpcFailure):
                attacks[turn % len(attacks)](daemon, token)
            turn += 1

    threads = [threading.Thread(target=attacker, args=(place, minted(daemon))) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.benchmark
def test_budgets_under_a_mixed_attack(daemon: Daemon) -> None:
    seconds = float(os.environ.get("SESSIOND_SOAK_S", "30"))
    times, grown = measure(daemon, lambda: mixed(daemon, seconds))
    print(f"mixed, {seconds:g} s: {described(times, grown)}")
    assert percentile(times) < BAR_S
    assert grown < GROWTH_BYTES


def test_long_messages_in_a_row_fit_into_little_memory(tmp_path: Path) -> None:
    """24 messages of 7 MiB (8 unless SESSIOND_SOAK_S is set), under a limit of addresses of 400 MB: all are taken."""
    count = 24 if "SESSIOND_SOAK_S" in os.environ else 8
    daemon = Daemon(tmp_path)
    daemon.start('[store]\ndurability = "os"\n', prefix=("bash", "-c", 'ulimit -v 400000; exec "$@"', "limited"))
    daemon.call("sessions.create", key=KEY)
    text = call("chat.inject", sessionKey=KEY, messages=[{"role": "user", "content": "x" * 7 * MIB}])

    with daemon.connect() as wire:

        def send() -> None:
            for number in range(count):
                wire.send(text.replace(b'"id": 1', b'"id": %d' % number) + b"\n")

        sender = threading.Thread(target=send)
        sender.start()
        answers = [wire.receive() for _ in range(count)]
        sender.join()
    assert [answer for answer in answers if "error" in answer] == []
    assert daemon.stop() == 0
