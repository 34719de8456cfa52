"""What one client can do to delay others or to fill the daemon's memory: each attack, and its outcomes.

Used by `trust/test_budgets.py` in small and by `benchmarks/test_budgets.py` whole.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import cbor2
from support.real_daemon import PATIENCE_S, Daemon

MIB = 1 << 20
GROWTH_BYTES = 200 * 1000 * 1000
LARGE, LOUD = "agent:main:large", "agent:loud:main"
# The error codes with which the daemon refuses an attack: overloaded (-32007), too large (-32005).
EXPECTED_REFUSALS = frozenset({"-32005", "-32007", "closed"})

_ERROR = re.compile(rb'"error":\{"code":(-\d+)')
_CBOR_ERROR = re.compile(rb"\x65error[\xa0-\xa9]\x64code\x39(..)", re.DOTALL)
_CBOR_ANSWER = b"\x67jsonrpc\x632.0\x62id"

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

AGENT = """
import json, sys
asked = sys.stdin.read().split()
if asked[0] == "junk":
    for _ in range(int(asked[1])):
        sys.stdout.write("no json\\n" * 50_000)
else:
    for _ in range(int(asked[1])):
        print(json.dumps({"type": "delta", "text": "d" * 1_000_000}))
print(json.dumps({"role": "assistant", "content": "done"}))
"""


@dataclass(frozen=True)
class Size:
    """The size of each attack: `whole` is what was found to be too much."""

    history_bytes: int = 15_000_000
    connections: int = 30
    deltas: int = 300
    junk: int = 4
    histories: int = 48
    lists: int = 64
    unread_s: float = 2.0
    record_bytes: int = 7 * MIB


@dataclass
class Attack:
    """One client's token, and the outcomes of its requests: "served", "closed", or the code of the error."""

    daemon: Daemon
    token: str
    size: Size
    outcomes: Counter[str] = field(default_factory=Counter)
    attackers: list[Attacker] = field(default_factory=list)

    def connect(self, *, codec: str = "json", buffer: int | None = None) -> Attacker | None:
        """Open another authenticated connection; None if the daemon refuses it."""
        try:
            attacker = Attacker(self, codec, buffer)
        except OSError:
            self.outcomes["closed"] += 1
            return None
        self.attackers.append(attacker)
        return attacker

    def close(self) -> None:
        """Close the connections that a refused attack left open."""
        for attacker in self.attackers:
            attacker.close()


class Attacker:
    """A connection with a token, which need not read its answers."""

    def __init__(self, attack: Attack, codec: str, buffer: int | None) -> None:
        self._attack, self.codec = attack, codec
        self.socket = socket.socket(socket.AF_UNIX)
        if buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(PATIENCE_S)
        try:
            self.socket.connect(str(attack.daemon.agent_socket))
            self.send(request("initialize", protocol=1, client={"name": "attacker"}, token=attack.token))
            answer = self._line() if codec == "json" else self.socket.recv(1 << 16)
            if b"error" in answer:
                raise ConnectionError("refused")
        except OSError:
            self.socket.close()
            raise

    def send(self, message: Any) -> None:
        """Send one whole message."""
        self.socket.sendall(self._encoded(message))

    def send_half(self, message: Any) -> None:
        """Send as much of half a message as fits without waiting."""
        data = self._encoded(message)
        self.socket.setblocking(False)
        with suppress(OSError):
            self.socket.sendall(data[: len(data) // 2])

    def _encoded(self, message: Any) -> bytes:
        return cbor2.dumps(message) if self.codec == "cbor" else json.dumps(message).encode() + b"\n"

    def read(self, asked: int) -> int:
        """Read one answer, to a batch of `asked` requests or to one; its number of bytes."""
        outcomes = self._attack.outcomes
        try:
            data = self._line()
        except OSError:
            outcomes["closed"] += asked
            return 0
        errors = [code.decode() for code in _ERROR.findall(data)]
        outcomes.update(errors)
        outcomes["served"] += asked - len(errors)
        return len(data)

    def _line(self) -> bytes:
        pieces = []
        while not pieces or not pieces[-1].endswith(b"\n"):
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the daemon closed the connection")
            pieces.append(data)
        return b"".join(pieces)

    def read_cbor(self, asked: int) -> None:
        """The same for the last CBOR answer on this connection, without decoding it, which would be slow."""
        pieces, outcomes = [], self._attack.outcomes
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            while data := self.socket.recv(1 << 18):
                pieces.append(data)
        data = b"".join(pieces)
        errors = [str(-1 - int.from_bytes(code, "big")) for code in _CBOR_ERROR.findall(data)]
        outcomes.update(errors)
        answers = data.count(_CBOR_ANSWER)
        outcomes["served"] += answers - len(errors)
        outcomes["closed"] += max(0, asked - answers)

    def close(self) -> None:
        self.socket.close()


def request(method: str, number: int = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def batch(count: int, method: str, **params: Any) -> list[dict[str, Any]]:
    return [request(method, number, **params) for number in range(count)]


def read_all(attackers: list[Attacker], asked: int) -> None:
    """Read the answers on all connections at once, because reading one by one would cause delays itself."""

    def read(attacker: Attacker) -> None:
        attacker.read(asked) if attacker.codec == "json" else attacker.read_cbor(asked)
        attacker.close()

    threads = [threading.Thread(target=read, args=(attacker,)) for attacker in attackers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


_WHOLE: dict[str, Any] = {"sessionKey": LARGE, "maxBytes": 16 * MIB, "limit": 1000}


def one_history(attack: Attack) -> None:
    attacker = attack.connect()
    if attacker is not None:
        attacker.send(request("chat.history", **_WHOLE))
        attacker.read(1)
        attacker.close()


def batch_of_histories(attack: Attack) -> None:
    attacker = attack.connect()
    if attacker is not None:
        attacker.send(batch(attack.size.histories, "chat.history", **_WHOLE))
        attacker.read(attack.size.histories)
        attacker.close()


def unread_histories(attack: Attack) -> None:
    """Many connections ask for 64 histories each and do not read for a while, with small buffers."""
    attackers = [attack.connect(buffer=4096) for _ in range(attack.size.connections)]
    there = [attacker for attacker in attackers if attacker is not None]
    for attacker in there:
        for number in range(64):
            attacker.send(request("chat.history", number, **_WHOLE))
    wait_seconds(attack.size.unread_s)
    # Whether an answer has arrived.
    waiting = select.select([attacker.socket for attacker in there], [], [], 0)[0]
    attack.outcomes["served"] += len(waiting)
    attack.outcomes["waiting"] += len(there) - len(waiting)
    for attacker in there:
        attacker.close()


def batched_discovers(attack: Attack) -> None:
    """As many as a connection accepts, on many of them; then the same in CBOR, which takes 200 times as long."""
    for codec, part in (("json", 2), ("cbor", 10)):
        attackers = [attack.connect(codec=codec) for _ in range(attack.size.connections // part)]
        there = [attacker for attacker in attackers if attacker is not None]
        for attacker in there:
            attacker.send(batch(64, "rpc.discover"))
        read_all(there, 64)


def many_lists(attack: Attack) -> None:
    attackers = [attack.connect() for _ in range(attack.size.connections * 2 // 3)]
    there = [attacker for attacker in attackers if attacker is not None]
    for attacker in there:
        attacker.send(batch(attack.size.lists, "sessions_list", limit=200, messageLimit=20))
    read_all(there, attack.size.lists)


def long_messages(attack: Attack) -> None:
    """Half of a long message on many connections, without the other half."""
    message = request("chat.inject", sessionKey=LARGE, messages=[{"role": "user", "content": "x" * 7 * MIB}])
    attackers = [attack.connect() for _ in range(attack.size.connections)]
    there = [attacker for attacker in attackers if attacker is not None]
    for attacker in there:
        attacker.send_half(message)
    attack.outcomes["served"] += len(there)
    wait_seconds(attack.size.unread_s / 2)
    for attacker in there:
        attacker.close()


def idle_connections(attack: Attack) -> None:
    """More connections than one token may have; the owner can still connect."""
    attackers = [attack.connect() for _ in range(256)]
    there = [attacker for attacker in attackers if attacker is not None]
    attack.outcomes["served"] += len(there)
    with attack.daemon.connect() as owner:
        assert owner.call("ping") == {}
    for attacker in there:
        attacker.close()


def unread_deltas(attack: Attack) -> None:
    """An agent writes deltas of 1 MB while a subscriber does not read."""
    attacker = attack.connect()
    if attacker is not None:
        attacker.send(request("sessions.messages.subscribe", key=LOUD))
        attacker.read(1)
        attack.daemon.reply(LOUD, f"deltas {attack.size.deltas}")
        attacker.close()


def junk_lines(attack: Attack) -> None:
    attack.daemon.reply(LOUD, f"junk {attack.size.junk}")
    attack.outcomes["served"] += 1


def many_messages(attack: Attack) -> None:
    """A thousand messages in one call, and a long one whose text is full of quotes and brackets."""
    many = [{"role": "user", "content": "x" * (attack.size.record_bytes // 2000)}] * 1000
    with _session_for(attack) as (key, _), suppress(OSError):
        for messages in (many, [_long_message(attack)]):
            attacker = attack.connect()
            if attacker is not None:
                attacker.send(request("chat.inject", sessionKey=key, messages=messages))
                attacker.read(1)
                attacker.close()


def long_records(attack: Attack) -> None:
    """Another program writes such a message into a transcript."""
    record = {"type": "message", "id": "long", "parentId": None, "message": _long_message(attack)}
    with _session_for(attack) as (key, path):
        for _ in range(2):
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")

        def is_folded() -> bool:
            return attack.daemon.call("sessions_history", sessionKey=key, limit=1, maxBytes=1)["positions"] != []

        attack.daemon.wait_for(is_folded, "the record was not read")
    attack.outcomes["served"] += 1


def _long_message(attack: Attack) -> dict[str, Any]:
    piece = 'she said: "a [b] {c}"\n'
    return {"role": "assistant", "content": piece * (attack.size.record_bytes // len(json.dumps(piece)))}


@contextmanager
def _session_for(attack: Attack) -> Iterator[tuple[str, Path]]:
    """A new session and its transcript; both are removed afterwards, so that the disk does not fill up."""
    key = f"agent:main:{uuid4()}"
    path = attack.daemon.store / "agents" / "main" / "sessions"
    path /= attack.daemon.call("sessions.create", key=key)["sessionId"] + ".jsonl"
    yield key, path
    attack.daemon.call("sessions.delete", key=key)
    (path.parent / "archive" / path.name).unlink()


ATTACKS: dict[str, Callable[[Attack], None]] = {
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
        many_messages,
        long_records,
    )
}


class TimedDaemon(Daemon):
    """A daemon that measures the steps of its event loop."""

    def command(self, *extra: str) -> list[str]:
        python, _, _, *serve = super().command(*extra)
        return [python, str(Path(__file__).with_name("loop_stopwatch.py")), str(self._report), *serve]

    @property
    def _report(self) -> Path:
        return self.folder / "steps.json"

    def steps(self) -> dict[str, Any]:
        """The measurements of the loop since the last call."""
        assert self.process is not None
        self._report.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR2)
        self.wait_for(self._report.exists, "no report of the stopwatch")
        report: dict[str, Any] = json.loads(self._report.read_text())
        return report


def start_target(daemon: Daemon, size: Size) -> None:
    """Start a daemon with a large transcript full of secrets, and an agent that writes large deltas."""
    agent = daemon.folder / "agent.py"
    agent.write_text(AGENT)
    command = json.dumps([sys.executable, str(agent)])
    daemon.start(
        '[[agents.list]]\nid = "main"\ndefault = true\nruntime = { type = "echo" }\n'
        f'[[agents.list]]\nid = "loud"\nruntime = {{ type = "exec", command = {command}, output = "jsonl" }}\n'
    )
    daemon.call("sessions.create", key=LARGE)
    daemon.call("sessions.create", key=LOUD)
    text = ("the quick brown fox api_key: abcdefghijklmnop0123 jumps over token=0123456789abcdef0123 " * 200)[:15_000]
    message = {"role": "user", "content": text}
    for _ in range(size.history_bytes // 15_000 // 100):
        daemon.call("chat.inject", sessionKey=LARGE, messages=[message] * 100)
    # The first call loads what all later ones use.
    daemon.call("rpc.discover")
    first = Attack(daemon, mint_token(daemon), size).connect(codec="cbor")
    assert first is not None
    first.close()


def mint_token(daemon: Daemon) -> str:
    """A token with every scope that a token can have."""
    token: str = daemon.call("tokens.mint", scopes=["list", "read", "send", "admin"])["token"]
    return token


def resident_bytes(daemon: Daemon) -> int:
    assert daemon.process is not None
    pages = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def wait_seconds(seconds: float) -> None:
    """Wait while the attack goes on."""
    time.sleep(seconds)  # noqa: TID251


@dataclass(frozen=True)
class Measurement:
    """The sorted times of the owner's pings during an attack, and the peak growth of the daemon's memory."""

    pings_s: list[float]
    grown_bytes: int

    @property
    def p99_s(self) -> float:
        return self.pings_s[int(len(self.pings_s) * 0.99)]

    def __str__(self) -> str:
        p50, p99, worst = (1000 * s for s in (self.pings_s[len(self.pings_s) // 2], self.p99_s, self.pings_s[-1]))
        grown = self.grown_bytes / 1e6
        return f"{len(self.pings_s)} pings, p50 {p50:.1f}, p99 {p99:.1f}, worst {worst:.0f} ms, grown {grown:.0f} MB"


def measure(daemon: Daemon, attack: Callable[[], object]) -> Measurement:
    """Ping as the owner and watch the daemon's memory during `attack`."""
    rest, most, done = resident_bytes(daemon), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, resident_bytes(daemon))

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
    return Measurement(json.loads(out), most - rest)
