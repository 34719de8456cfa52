"""Messages between three machines while links, daemons and the server are killed, messages deleted, the network cut and
the server's disk full: each is executed once and answered, and copies are equal to their originals.

`python tests/support/machine_kills.py 10000` is the long run.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
from support.nats_machines import AGENTS, LinkedMachine, linked
from support.nats_server import NatsServer
from support.real_daemon import RpcFailure

NAMES = ("lap", "mars", "moon")
EXPORTED = "main"
RULES = {
    (one, other): f'export = [{{agents=["{EXPORTED}"]}}]\nsend = ["agent:main:*"]\nspawn = ["main"]'
    for one in NAMES
    for other in NAMES
    if one != other
}
# So many conversations has each pair of machines at once.
SESSIONS = 6
# What the daemon may have lost for good: a run that was executing when it was killed ends so.
INTERRUPTED = ("interrupted", "restart")


class KillRun:
    """`count` messages, while `seed` decides what breaks."""

    def __init__(self, machines: Mapping[str, LinkedMachine], server: NatsServer, count: int, seed: int) -> None:
        self.machines, self.server, self.count = machines, server, count
        self._random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self._sent = threading.Event()
        self._fault: BaseException | None = None
        # Message number -> sender, receiver, run at the sender.
        self.runs: dict[int, tuple[str, str, str]] = {}

    def run(self, patience_s: float) -> None:
        """Send all, break things meanwhile, mend everything, and wait until all is answered and copied."""
        for machine in self.machines.values():
            for number in range(SESSIONS):
                machine.call("sessions.create", key=f"agent:main:s{number}")
        breaking = threading.Thread(target=self._break_things)
        breaking.start()
        try:
            self._send_all()
        finally:
            self._sent.set()
            breaking.join()
        if self._fault is not None:
            raise self._fault
        self._heal()
        self._wait_for("all are answered", self._unanswered, patience_s)
        self._wait_for("all copies are whole", self._unequal_copies, patience_s)
        self._check()

    # Sending.

    def _send_all(self) -> None:
        threads = [threading.Thread(target=self._send_share, args=(lane,)) for lane in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _send_share(self, lane: int) -> None:
        pairs = [(one, other) for one in NAMES for other in NAMES if one != other]
        pace = random.Random(lane)
        for number in range(lane, self.count, 6):
            sender, receiver = pairs[lane]
            key = f"{receiver}/agent:main:s{number // 6 % SESSIONS}"
            sent = self._ask(
                sender,
                "sessions_send",
                sessionKey=key,
                message=f"message {number} of {sender}",
                timeoutSeconds=0,
                idempotencyKey=f"send-{number}",
            )
            self.runs[number] = (sender, receiver, sent["runId"])
            time.sleep(pace.uniform(0, 0.6))  # so that things break before, while and after it travels

    def _ask(self, name: str, method: str, **params: Any) -> Any:
        """One call, again for as long as the daemon is away."""
        while True:
            try:
                return self.machines[name].call(method, **params)
            except (OSError, ValueError):
                pass
            except RpcFailure as failure:
                if failure.args[0]["data"].get("type") not in ("stopping", "overloaded", "storage"):
                    raise
            time.sleep(0.05)

    # Breaking.

    def _break_things(self) -> None:
        ways: list[tuple[int, Callable[[], None]]] = [
            (6, self._kill_link),
            (3, self._kill_daemon),
            (3, self._kill_server),
            (1, self._cut_network),
            (4, self._delete_messages),
            (2, self._fill_server),
            (2, self._stop_link_gently),
        ]
        weights, actions = zip(*ways, strict=True)
        try:
            while not self._sent.is_set():
                action = self._random.choices(actions, weights)[0]
                action()
                self.happened[action.__name__.strip("_")] += 1
                self._sent.wait(self._random.uniform(0.05, 0.8))
            for action in actions:  # a short run, too, has had each of them
                action()
                self.happened[action.__name__.strip("_")] += 1
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            self._fault = error

    def _any(self) -> LinkedMachine:
        return self.machines[self._random.choice(NAMES)]

    def _kill_link(self) -> None:
        machine = self._any()
        machine.stop_link(signal.SIGKILL)
        machine.start_link()

    def _stop_link_gently(self) -> None:
        machine = self._any()
        code = machine.stop_link(signal.SIGTERM)
        assert code in (0, -signal.SIGTERM), f"{machine.name}: {code}\n{machine.link_log.read_text()[-3000:]}"
        time.sleep(self._random.uniform(0, 0.5))
        machine.start_link()

    def _kill_daemon(self) -> None:
        machine = self._any()
        machine.daemon.kill()
        machine.daemon.start()

    def _kill_server(self) -> None:
        self.server.kill()
        self.server.start()

    def _cut_network(self) -> None:
        self.server.stop()
        time.sleep(self._random.uniform(0.5, 3))
        self.server.start()

    def _delete_messages(self) -> None:
        asyncio.run(self._with_server(self._delete_some))

    async def _delete_some(self, client: Any) -> None:
        state = (await client.jsm().stream_info("X")).state
        for number in range(state.first_seq, state.last_seq + 1):
            if self._random.random() < 0.5:
                with suppress(nats.js.errors.APIError):
                    await client.jsm().delete_msg("X", number)

    def _fill_server(self) -> None:
        asyncio.run(self._with_server(self._shrink))
        time.sleep(self._random.uniform(0.2, 1.5))
        asyncio.run(self._with_server(self._grow))

    async def _shrink(self, client: Any) -> None:
        state = (await client.jsm().stream_info("X")).state
        await self._limit(client, max(1, state.bytes))

    async def _grow(self, client: Any) -> None:
        await self._limit(client, 1 << 30)

    async def _limit(self, client: Any, max_bytes: int) -> None:
        config = (await client.jsm().stream_info("X")).config
        config.max_bytes = max_bytes
        await client.jsm().update_stream(config)

    async def _with_server(self, work: Callable[[Any], Any]) -> None:
        client = await nats.connect(self.server.url)
        try:
            await work(client)
        finally:
            await client.close()

    # Afterwards.

    def _heal(self) -> None:
        asyncio.run(self._with_server(self._grow))
        for machine in self.machines.values():
            if machine.link is None or machine.link.poll() is not None:
                assert machine.link is None, f"{machine.name}: the link ended\n{machine.link_log.read_text()[-4000:]}"
                machine.start_link()

    def _wait_for(self, what: str, left: Callable[[], list[str]], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while found := left():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{one.name}:\n{one.link_log.read_text()[-2500:]}" for one in self.machines.values())
                raise AssertionError(f"not: {what}: {len(found)} left, as {found[:5]}\n{dict(self.happened)}\n{logs}")
            time.sleep(0.2)

    def _unanswered(self) -> list[str]:
        self.ends = {
            number: self._ask(sender, "agent.wait", runId=run_id, timeoutMs=0)
            for number, (sender, _, run_id) in self.runs.items()
        }
        return [f"{number}: {self.runs[number]}" for number, end in self.ends.items() if end["status"] == "running"]

    def _unequal_copies(self) -> list[str]:
        found = []
        for one in NAMES:
            originals = exported(self.machines[one])
            for other in NAMES:
                if other != one:
                    copies = self.machines[other].replicas(one)
                    names = originals.keys() | copies.keys()
                    found += [f"{one} on {other}: {id_}" for id_ in names if originals.get(id_) != copies.get(id_)]
        return found

    def _check(self) -> None:
        said = Counter(
            text
            for machine in self.machines.values()
            for data in exported(machine).values()
            for text in messages_in(data)
        )
        wrong = []
        for number, (sender, _, _) in self.runs.items():
            times, end = said[f"message {number} of {sender}"], self.ends[number]
            is_cut = end["status"] == "error" and any(word in end.get("error", "") for word in INTERRUPTED)
            if times != 1 or (end["status"] != "ok" and not is_cut):
                wrong.append((number, sender, times, end))
        assert not wrong, f"{len(wrong)} of {self.count} messages went wrong: {wrong[:5]}\n{dict(self.happened)}"
        assert len(self.runs) == self.count


def exported(machine: LinkedMachine) -> dict[str, bytes]:
    """The bytes of the sessions that others get."""
    return {path.stem: path.read_bytes() for path in machine.store.glob(f"agents/{EXPORTED}/sessions/*.jsonl")}


def messages_in(data: bytes) -> list[str]:
    """The texts of the users' messages of a transcript."""
    import json

    found = []
    for line in data.splitlines():
        message = json.loads(line).get("message") if line.strip() else None
        if isinstance(message, dict) and message.get("role") == "user":
            content = message["content"]
            found.append(content if isinstance(content, str) else "".join(one.get("text", "") for one in content))
    return found


def run_kills(folder: Path, server: NatsServer, count: int, seed: int, patience_s: float) -> Counter[str]:
    """What happened meanwhile, by kind. AssertionError where anything was lost, doubled or differs."""
    with linked(folder, server, NAMES, RULES, agents=AGENTS) as machines:
        made = KillRun(machines, server, count, seed)
        made.run(patience_s)
        return made.happened


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6)
    print(f"{count} messages, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mk-") as name:
        server = NatsServer(Path(name) / "nats", "open", NAMES).start()
        began = time.monotonic()
        try:
            happened = run_kills(Path(name), server, count, seed, patience_s=600)
        finally:
            server.kill()
    print(f"each once and answered, in {time.monotonic() - began:.0f} s; {dict(happened)}")


if __name__ == "__main__":
    main()
