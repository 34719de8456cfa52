"""What the daemon adds to the time of an ACP agent that is warm already. `just bench`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import acp_agent_path
from support.real_daemon import Daemon

pytestmark = pytest.mark.benchmark

ROUNDS = 100
MOST_ADDED_MS = 20.0
COMMAND = [sys.executable, "-S", str(acp_agent_path.PATH)]
CONFIG = f"""
[[agents.list]]
id = "main"
runtime = {{ type = "acp", command = {json.dumps(COMMAND)} }}
"""


def bare_turns_ms(folder: Path) -> list[float]:
    """How long turns of the agent take without a daemon."""
    agent = subprocess.Popen(COMMAND, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin is not None and agent.stdout is not None

    def ask(number: int, method: str, **params: object) -> None:
        frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        print(json.dumps(frame), file=agent.stdin, flush=True)
        while json.loads(agent.stdout.readline()).get("id") != number:
            pass

    ask(0, "initialize", protocolVersion=1)
    ask(1, "session/new", cwd=str(folder), mcpServers=[])
    taken = []
    for number in range(2, ROUNDS + 2):
        began = time.perf_counter()
        prompt = [{"type": "text", "text": f"hello {number}"}]
        ask(number, "session/prompt", sessionId=f"native-{agent.pid}-0", prompt=prompt)
        taken.append(1000 * (time.perf_counter() - began))
    agent.communicate()
    return taken


def test_a_warm_turn_takes_at_most_20_ms_more_than_the_agent_itself(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    bare = bare_turns_ms(tmp_path / "bare")
    daemon.start(CONFIG)
    taken = []
    with daemon.connect() as wire:
        for number in range(ROUNDS + 1):
            began = time.perf_counter()
            sent = wire.call("chat.send", sessionKey="main", message=f"hello {number}")
            assert wire.call("agent.wait", runId=sent["runId"], timeoutMs=60_000)["status"] == "ok"
            taken.append(1000 * (time.perf_counter() - began))
    cold, *warm = taken
    added = statistics.median(warm) - statistics.median(bare)
    print(f"\nagent alone {statistics.median(bare):.1f} ms, warm {statistics.median(warm):.1f} ms, cold {cold:.0f} ms")
    assert added <= MOST_ADDED_MS
