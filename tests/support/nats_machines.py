"""Several machines on one nats-server: a real daemon and a real link each, with stores of their own.

    with linked(tmp_path, server, ["lap", "mars"], {("mars", "lap"): 'send = ["agent:ops:*"]'}) as machines:
        machines["lap"].call("sessions_send", sessionKey="mars/agent:ops:main", message="hello")

A rule is what the first machine lets the second one do and see.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.forked_daemon import ForkedProcess, fork_server
from support.namespaces import Network
from support.nats_server import Mode, NatsServer
from support.patience import PATIENCE_S
from support.real_daemon import PROGRAM, Daemon

from sessiond.link.identity import load_identity
from sessiond.link.server_setup import set_up
from sessiond.link.status import LinkStatus, read_status

# Agents that answer by themselves: `ops` says what it was told, `slow` waits for a file in its folder.
AGENTS = """
[tools.sessions]
visibility = "all"

[tools.agentToAgent]
enabled = true
allow = ["*"]

[session.agentToAgent]
maxPingPongTurns = 0

[limits]
messagesPerMinute = 100000

[agents.defaults]
maxConcurrent = 64

[agents.defaults.subagents]
allowAgents = ["*"]
maxChildrenPerAgent = 64

[[agents.list]]
id = "main"
runtime = { type = "echo" }

[[agents.list]]
id = "ops"
runtime = { type = "exec", command = ["sh", "-c", "printf 'ops heard: '; tail -n 1"] }

[[agents.list]]
id = "counter"
runtime = { type = "exec", command = ["sh", "-c", "cat .openclaw/attachments/*/*.csv | wc -c"] }
"""
Rules = Mapping[tuple[str, str], str]


class LinkedMachine:
    """One machine: its daemon, which `start` has started, and its link, which comes and goes."""

    def __init__(self, name: str, folder: Path, agents: str, prefix: Sequence[str] = ()) -> None:
        folder.mkdir(mode=0o700, parents=True)
        self.name, self.agents, self.prefix = name, agents, tuple(prefix)
        self.daemon = Daemon(folder)
        self.daemon.environ["SESSIOND_CONFIG"] = str(self.daemon.config)
        self.link: subprocess.Popen[bytes] | ForkedProcess | None = None
        self.link_log = folder / "link.log"

    @property
    def store(self) -> Path:
        return self.daemon.store

    def call(self, method: str, /, **params: Any) -> Any:
        """A call as the owner."""
        return self.daemon.call(method, **params)

    def link_command(self) -> list[str]:
        """The command line of its link."""
        return [*self.prefix, *PROGRAM, *self._link_words()]

    def _link_words(self) -> list[str]:
        return ["link", "run", "--store", str(self.store), "--config", str(self.daemon.config)]

    def start_link(self) -> None:
        (self.store / "link" / "status.json").unlink(missing_ok=True)
        if not self.prefix:
            self.link = fork_server().start(self._link_words(), self.daemon.environ, self.link_log)
            return
        with self.link_log.open("ab") as log:
            self.link = subprocess.Popen(
                self.link_command(),
                env=self.daemon.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def stop_link(self, how: signal.Signals = signal.SIGTERM) -> int | None:
        """Its exit code."""
        if self.link is None:
            return None
        with suppress(ProcessLookupError):
            self.link.send_signal(how)
        code = self.link.wait(PATIENCE_S)
        self.link = None
        return code

    def wait_for(self, condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        """Look until it is so."""
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                logs = (
                    f"{self.name}: {what}\n{self.link_log.read_text()[-3000:]}\n{self.daemon.log.read_text()[-3000:]}"
                )
                raise AssertionError(logs)
            time.sleep(0.02)

    def send(self, key: str, message: str, timeout_s: float = PATIENCE_S, **params: Any) -> Any:
        """Send a message to a session and wait for its answer."""
        return self.call("sessions_send", sessionKey=key, message=message, timeoutSeconds=timeout_s, **params)

    def status(self) -> LinkStatus:
        """How its link says that it is."""
        found = read_status(self.store)
        assert found is not None
        return found[0]

    def replicas(self, machine: str) -> dict[str, bytes]:
        """The bytes of what it has of another machine's sessions, by session id."""
        folder = self.store / "machines" / machine
        return {path.stem: path.read_bytes() for path in folder.glob("agents/*/sessions/*.jsonl")}

    def originals(self) -> dict[str, bytes]:
        """The bytes of its own live sessions, by session id."""
        return {path.stem: path.read_bytes() for path in self.store.glob("agents/*/sessions/*.jsonl")}


def configuration(machine: LinkedMachine, server: NatsServer, keys: Mapping[str, str], rules: Rules, more: str) -> str:
    """The config.toml of a machine."""
    peers = [
        f'[[link.peers]]\nname = "{peer}"\nkey = "{key}"\n{rules.get((machine.name, peer), "")}\n'
        for peer, key in keys.items()
        if peer != machine.name
    ]
    return "\n".join([machine.agents, server.link_table(machine.name) + more, *peers])


@contextmanager
def linked(
    folder: Path,
    server: NatsServer,
    names: Sequence[str],
    rules: Rules,
    *,
    agents: str = AGENTS,
    link: str = "",
    with_links: bool = True,
    net: Network | None = None,
) -> Iterator[dict[str, LinkedMachine]]:
    """The machines, which know each other; `link` is more of the [link] table. With `net` each is in a namespace of
    its own. All is killed at last.
    """
    machines = {
        name: LinkedMachine(name, folder / name, agents, net.prefix(name) if net is not None else ()) for name in names
    }
    try:
        for machine in machines.values():
            machine.daemon.start(agents, prefix=machine.prefix)
        keys = {name: load_identity(machine.store, make=True).public.text for name, machine in machines.items()}
        prepare_server(server, names, net)
        for machine in machines.values():
            machine.daemon.config.write_text(configuration(machine, server, keys, rules, link))
            reload_daemon(machine)
            if with_links:
                machine.start_link()
        if with_links:
            wait_until_together(machines)
        yield machines
    finally:
        for machine in machines.values():
            machine.stop_link(signal.SIGKILL)
            if machine.daemon.process is not None and machine.daemon.process.poll() is None:
                machine.daemon.kill()


@contextmanager
def linked_for_module(
    folder: Path, mode: Mode, names: Sequence[str], rules: Rules, **more: Any
) -> Iterator[tuple[NatsServer, dict[str, LinkedMachine]]]:
    """A server and its machines for all tests of a module: they take half a second of a processor to come up.

    Each test has sessions of its own, and leaves server, daemons and links running.
    """
    server = NatsServer(folder / "nats", mode, names).start()
    try:
        with linked(folder, server, names, rules, **more) as machines:
            yield server, machines
    finally:
        server.kill()


def wait_until_together(machines: Mapping[str, LinkedMachine]) -> None:
    """Wait until the link of each machine has seen all others."""
    for name, machine in machines.items():
        wait_until_there(machine, [other for other in machines if other != name])


def prepare_server(server: NatsServer, names: Sequence[str], net: Network | None) -> None:
    """Make the stream and the consumers."""
    if net is None:
        asyncio.run(set_up(server.settings(), names))
    else:
        net.run_there("switch", lambda: asyncio.run(set_up(server.settings(), names)))


def reload_daemon(machine: LinkedMachine) -> None:
    """Let the daemon take its new configuration, with the other machines as agents."""
    process = machine.daemon.process
    assert process is not None
    before = machine.call("daemon.status").get("reloadedAt")
    os.kill(process.pid, signal.SIGHUP)
    machine.wait_for(lambda: machine.call("daemon.status").get("reloadedAt") != before, "does not reload")


def wait_until_there(machine: LinkedMachine, others: Sequence[str]) -> None:
    """Wait until the machine's link has seen the others."""

    def sees_all() -> bool:
        assert machine.link is not None
        assert machine.link.poll() is None, machine.link_log.read_text()
        found = read_status(machine.store)
        return found is not None and all(found[0].machines.get(other) for other in others)

    machine.wait_for(sees_all, f"does not see {', '.join(others)}")
