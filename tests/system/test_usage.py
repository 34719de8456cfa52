"""What a real daemon says was used by the recorded sessions of all programs: each request once, and how it is shown."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.real_daemon import PROGRAM, Daemon
from support.usage_home import write_usage_home

pytestmark = pytest.mark.system

# One request to the stub: 60 tokens of input, 40 from the cache, 7 of output.
INPUT, OUTPUT, CACHED = 60, 7, 40
# How many requests the sessions of each program say, counted by hand; `tests/agents/test_usage_beside.py` has what
# other programs count. Some answers were cut off after a token of output.
REQUESTS = {"claude": 54, "codex": 41, "gemini": 11, "opencode": 8, "pi": 10}
CUT_OFF = {"claude": 12, "pi": 6}
CLAUDE_TALK, CLAUDE_FORK = "890db435-bd07-5611-ad2f-c5d051e65a28", "8f21703f-ac01-5f0f-b347-5b388110899e"


def sum_of(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["inputTokens"], row["outputTokens"], row["cacheRead"]


def codex_counters(home: Path) -> dict[str, int]:
    """What Codex itself has counted in each of its sessions, from the first request of a fork on."""
    counted: dict[str, list[int]] = {}
    for path in (home / ".codex").rglob("*.jsonl"):
        infos = [
            payload["info"]["total_token_usage"]["total_tokens"]
            for line in path.read_bytes().splitlines()
            if (payload := json.loads(line).get("payload") or {}).get("type") == "token_count" and payload["info"]
        ]
        counted[f"codex:{path.stem[-36:]}"] = infos
    return {key: infos[-1] for key, infos in counted.items() if infos}


def own_transcript(store: Path, native_id: str) -> None:
    """A session of ours that Claude Code worked for, under that id of its own."""
    usage = {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3}
    message = {"role": "assistant", "content": [], "model": "m", "usage": usage}
    records = [
        {"type": "session", "version": 3, "id": "s1", "timestamp": "2026-11-22T15:00:00.000Z", "cwd": "/w",
         "sessionKey": "agent:main:own", "agentId": "main"},
        {"type": "custom", "customType": "sessiond/native", "id": "a", "data": {"nativeId": native_id}},
        {"type": "message", "id": "b", "timestamp": "2026-11-21T15:00:00.000Z", "message": message},
    ]  # fmt: skip
    folder = store / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    (folder / "s1.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def wait_until_counted(daemon: Daemon, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def is_counted() -> bool:
        found.clear()
        if daemon.call("daemon.status")["sessions"] != count:
            return False
        found.update(daemon.call("sessions.usage"))
        return "partial" not in found

    daemon.wait_for(is_counted, "not every session was counted")
    return found


def test_each_request_of_the_recorded_sessions_counts_once(daemon: Daemon, tmp_path: Path) -> None:
    count = write_usage_home(tmp_path)
    daemon.start()
    found = wait_until_counted(daemon, count)
    sums = {row["source"]: sum_of(row) for row in found["bySource"]}
    assert sums == {
        program: (requests * INPUT, requests * OUTPUT - CUT_OFF.get(program, 0), requests * CACHED)
        for program, requests in REQUESTS.items()
    }
    tokens = {row["key"]: row["totalTokens"] for row in found["bySession"]}
    # Codex counts as well: a fork goes on with the counter of its original.
    talk, fork = "codex:01a203f8-e903-7e03-86bf-72a7dcbc2490", "codex:01a203f8-f984-72d1-9b69-0206cf560eeb"
    older, legacy = "codex:01a203f9-0398-70f3-841f-c2c890569480", "codex:01a203f9-0642-73b3-ba57-de2cc963c3e4"
    counters = codex_counters(tmp_path)
    counters |= {fork: counters[fork] - counters[talk], legacy: counters[legacy] - counters[older]}
    assert {key: total for key, total in tokens.items() if key.startswith("codex:")} == {
        key: total for key, total in counters.items() if total
    }
    # Claude Code says what a session has cost, and a fork what it cost with its original's part.
    costs = {row["key"]: row.get("costUsd") for row in found["bySession"]}
    assert (costs[f"claude:{CLAUDE_TALK}"], costs[f"claude:{CLAUDE_FORK}"]) == (0.001188, 0.000297)
    assert costs[talk] is None
    check_commands(daemon, found)
    # After a start it is the same, whatever was read before.
    daemon.stop()
    own_transcript(daemon.store, CLAUDE_TALK)
    daemon.start()
    # What Claude Code wrote of a run of ours counts in our session. Of the fork nobody knows now what it has copied.
    less = tuple(had - one for had, one in zip(sums["claude"], (INPUT, OUTPUT, CACHED), strict=True))
    wanted = {**sums, "sessiond": (1, 2, 0), "claude": less}
    again: dict[str, tuple[int, ...]] = {}

    def is_same() -> bool:
        again.clear()
        again.update((row["source"], sum_of(row)) for row in daemon.call("sessions.usage")["bySource"])
        return again == wanted

    # How many sessions there are says nothing here: ours are there before the others are listed.
    with suppress(AssertionError):
        daemon.wait_for(is_same, "it is not the same")
    assert again == wanted


def check_commands(daemon: Daemon, found: dict[str, Any]) -> None:
    """`sessiond usage` prints the same numbers, however it is asked."""
    assert json.loads(daemon.cli("usage", "--json").stdout) == found
    lists = {"day": "byDay", "model": "byModel", "project": "byProject", "agent": "byAgent", "source": "bySource"}
    for by, name in lists.items():
        rows = list(csv.DictReader(io.StringIO(daemon.cli("usage", "--by", by, "--csv").stdout)))
        assert [int(row["totalTokens"]) for row in rows] == [row["totalTokens"] for row in found[name]], by
    # Never guessed: no cost where neither a transcript nor the configuration says one.
    rows = list(csv.DictReader(io.StringIO(daemon.cli("usage", "--by", "source", "--csv").stdout)))
    assert {row["source"]: bool(row["costUsd"]) for row in rows} == {
        "claude": True, "codex": False, "gemini": False, "opencode": True, "pi": True,
    }  # fmt: skip
    assert daemon.cli("usage", "--since", "1m", "--csv").stdout.count("\n") == 1
    drawn = on_terminal(daemon, "usage")
    assert "█" in drawn and "2026-11-22" in drawn and "total" in drawn


def on_terminal(daemon: Daemon, *args: str) -> str:
    """What `sessiond ARGS` draws on a terminal."""
    here, there = pty.openpty()
    environ = {**daemon.environ, "TERM": "xterm", "COLUMNS": "120"}
    subprocess.run([*PROGRAM, *args], env=environ, stdin=there, stdout=there, stderr=there, check=True, timeout=60)
    os.close(there)
    drawn = b""
    try:
        while chunk := os.read(here, 65536):
            drawn += chunk
    except OSError:
        pass  # a terminal without a program ends so
    os.close(here)
    return drawn.decode()
