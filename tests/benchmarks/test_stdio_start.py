"""The time to the first answer of `sessiond mcp` and of `sessiond acp`, compared with an empty Python program.

Agent programs offer a server's tools in their first turn only if the server answers within about a second. The bound is
much lower, for slower machines. `just bench`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import pytest
from support.real_daemon import Daemon

pytestmark = pytest.mark.benchmark

ROUNDS = 15
BAR_S = 0.150
HELLOS = {
    "mcp": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
    "acp": {"protocolVersion": 1},
}


def first_answer_s(daemon: Daemon, server_name: str) -> float:
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLOS[server_name]}
    began = time.perf_counter()
    command = [sys.executable, "-m", "sessiond", server_name]
    with subprocess.Popen(command, env=daemon.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(request).encode() + b"\n")
        server.stdin.flush()
        result = json.loads(server.stdout.readline())["result"]
        assert (result.get("serverInfo") or result["agentInfo"])["name"] == "sessiond"
        took_s = time.perf_counter() - began
        server.stdin.close()
    return took_s


def python_s(daemon: Daemon) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=daemon.environ, check=True)
    return time.perf_counter() - began


@pytest.mark.parametrize("server_name", sorted(HELLOS))
def test_the_first_answer_comes_within_150_ms(daemon: Daemon, server_name: str) -> None:
    daemon.start()
    first_answer_s(daemon, server_name)  # writes the bytecode
    both = [(first_answer_s(daemon, server_name), python_s(daemon)) for _ in range(ROUNDS)]
    answer_s, bare_s = (statistics.median(times) for times in zip(*both, strict=True))
    print(f"\nsessiond {server_name}, first answer: {answer_s * 1000:.0f} ms, {answer_s / bare_s:.1f}x python3 -c pass")
    assert answer_s <= BAR_S
