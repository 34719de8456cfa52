"""What `ccusage` and `agentsview` count in the recorded sessions of all programs, beside what sessiond does.

No request counts twice here; `tests/system/test_usage.py` has our numbers. Where others count something else the reason
stands beside it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.real_daemon import Daemon
from support.usage_home import write_usage_home

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from agentsview import Agentsview, installed_agentsview

pytestmark = pytest.mark.agents

# Tokens of input, output, and from the cache.
Sums = tuple[int, int, int]
ONE: Sums = (60, 7, 40)

# Of each program: by how many requests of ONE the other counts differently, or what it counts, and why.
CCUSAGE: dict[str, tuple[int | Sums, str]] = {
    "claude": (0, ""),
    "codex": (
        -1 - 2,
        "a fork in a file of its own goes on with its original's counter, and its first request is left out; so are the"
        " two of a sub-agent",
    ),
    "gemini": (0, ""),
    "opencode": (3, "a fork's three copies count, which have other ids"),
    "pi": (-3 + 2, "requests for a compaction and for two summaries of branches do not count; a fork's two copies do"),
}
AGENTSVIEW: dict[str, tuple[int | Sums, str]] = {
    "claude": (0, ""),
    "codex": (-20, "a request counts with the message it led to: those for calls of tools and for compaction do not"),
    "gemini": (
        (300, 56, 120),
        "the input is taken for a running sum, of which only the growth counts, with what is from the cache; a"
        " sub-agent's file is not read",
    ),
    "opencode": ((0, 0, 0), "the events in its database are not read"),
    "pi": (-3, "requests for a compaction and for two summaries of branches do not count"),
}


@pytest.fixture
def ours(daemon: Daemon, tmp_path: Path) -> dict[str, Sums]:
    """What sessiond counts, by program."""
    count = write_usage_home(tmp_path)
    daemon.start()

    def is_counted() -> bool:
        return daemon.call("daemon.status")["sessions"] == count and "partial" not in daemon.call("sessions.usage")

    daemon.wait_for(is_counted, "not every session was counted")
    rows = daemon.call("sessions.usage")["bySource"]
    return {row["source"]: (row["inputTokens"], row["outputTokens"], row["cacheRead"]) for row in rows}


def expected(ours: dict[str, Sums], differences: dict[str, tuple[int | Sums, str]]) -> dict[str, Sums]:
    found: dict[str, Sums] = {}
    for program, (difference, why) in differences.items():
        assert bool(why) == (difference != 0), program
        if isinstance(difference, int):
            sent, received, cached = (had + difference * one for had, one in zip(ours[program], ONE, strict=True))
            found[program] = sent, received, cached
        else:
            found[program] = difference
    return found


def test_ccusage_counts_the_same_but_for_known_differences(ours: dict[str, Sums], tmp_path: Path, model: Any) -> None:
    agents = sys.modules[type(model).__module__]
    program = agents.install(agents.Program("ccusage", "ccusage", "20.0.24", "", lambda home, port: {}))
    if isinstance(program, str):
        pytest.skip(program)
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [program, "session", "--offline", "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=120)
    counted: dict[str, Sums] = {}
    for row in json.loads(done.stdout)["session"]:
        had = counted.get(row["agent"], (0, 0, 0))
        more = row["inputTokens"], row["outputTokens"], row["cacheReadTokens"]
        counted[row["agent"]] = had[0] + more[0], had[1] + more[1], had[2] + more[2]
    assert counted == expected(ours, CCUSAGE)


def test_agentsview_counts_the_same_but_for_known_differences(
    ours: dict[str, Sums], daemon: Daemon, tmp_path: Path
) -> None:
    with installed_agentsview() as program:
        if program is None:
            pytest.skip("agentsview cannot be installed")
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        wanted, counted = expected(ours, AGENTSVIEW), dict[str, Sums]()

        def is_counted() -> bool:
            counted.update((name, agentsview_sums(program, tmp_path, name)) for name in wanted)
            return counted == wanted

        with Agentsview(program, tmp_path, tmp_path / "agentsview", port), suppress(AssertionError):
            daemon.wait_for(is_counted, "it counts otherwise")
        assert counted == wanted


def agentsview_sums(program: str, home: Path, agent: str) -> Sums:
    """What it has counted of one program so far."""
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "AGENTSVIEW_DATA_DIR": str(home / "agentsview")}
    command = [program, "usage", "daily", "--all", "--json", "--offline", "--no-sync", "--agent", agent]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    totals = json.loads(done.stdout or "{}").get("totals", {})
    sent, received, cached = (totals.get(name, 0) for name in ("inputTokens", "outputTokens", "cacheReadTokens"))
    return sent, received, cached
