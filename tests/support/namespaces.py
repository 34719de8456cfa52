"""A small network of its own: a switch in one network namespace, and a namespace for each machine. For root only."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CLONE_NEWNET = 0x40000000
ADDRESS = "10.213.0.{}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def why_none() -> str | None:
    """Why this user can make no namespaces, None where that goes."""
    if os.geteuid() != 0:
        return "network namespaces are for root"
    try:
        name = f"sd{os.getpid()}"
        ip("netns", "add", name)
        ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces here: {error}"
    return None


class Network:
    """`server_host` is the address of the switch's namespace. A cable can be pulled."""

    def __init__(self, names: Sequence[str]) -> None:
        self._mark = f"{os.getpid() % 100_000}"
        self.server_host = ADDRESS.format(1)
        self.names = tuple(names)

    def namespace(self, name: str) -> str:
        return f"sd{self._mark}{name}"

    def prefix(self, name: str) -> list[str]:
        """The words before a command that runs there."""
        return ["ip", "netns", "exec", self.namespace(name)]

    def build(self) -> None:
        switch = self.namespace("switch")
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "addr", "add", f"{self.server_host}/24", "dev", "br0")
        for device in ("lo", "br0"):
            ip("-n", switch, "link", "set", device, "up")
        for number, name in enumerate(self.names, 2):
            space, port = self.namespace(name), f"port{number}"
            ip("netns", "add", space)
            ip("link", "add", port, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("-n", switch, "link", "set", port, "master", "br0", "up")
            ip("-n", space, "addr", "add", f"{ADDRESS.format(number)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", space, "link", "set", device, "up")

    def pull_cable(self, name: str) -> None:
        ip("-n", self.namespace(name), "link", "set", "eth0", "down")

    def plug_in(self, name: str) -> None:
        ip("-n", self.namespace(name), "link", "set", "eth0", "up")

    def remove(self) -> None:
        for name in ("switch", *self.names):
            subprocess.run(["ip", "netns", "del", self.namespace(name)], check=False, capture_output=True)

    def run_there(self, name: str, work: Callable[[], Any]) -> Any:
        """What the work returns, done by a thread of this process that has moved there."""
        found: list[Any] = []

        def move() -> None:
            with Path("/var/run/netns", self.namespace(name)).open() as file:
                assert ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) == 0
            found.append(work())

        thread = threading.Thread(target=move)
        thread.start()
        thread.join()
        return found[0]


@contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    made = Network(names)
    try:
        made.build()
        yield made
    finally:
        made.remove()
