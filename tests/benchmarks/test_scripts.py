"""Runs the benchmarks that are programs of their own: a whole sessions_send, searching, usage. `just bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmark

HERE = Path(__file__).parent


def run_and_show(capsys: pytest.CaptureFixture[str], *command: str) -> int:
    """Run a program and show what it printed; its exit code."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    with capsys.disabled():
        print(f"\n{done.stdout}{done.stderr}", end="")
    return done.returncode


def test_a_send_takes_at_most_five_milliseconds_and_a_thousand_among_64_agents_all_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_and_show(capsys, str(HERE / "send.py")) == 0


def test_search_in_a_gigabyte(capsys: pytest.CaptureFixture[str]) -> None:
    """A tenth of it in some minutes: `python tests/benchmarks/search.py --sessions 200 --megabytes 100`."""
    assert run_and_show(capsys, str(HERE / "search.py"), "--check") == 0


def test_usage_over_two_thousand_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    """A tenth of it in half a minute: `python tests/benchmarks/usage.py --sessions 200 --megabytes 200`."""
    assert run_and_show(capsys, str(HERE / "usage.py"), "--check") == 0
