"""Runs the benchmark of other programs' sessions, 2,000 of them. `just bench`.

A tenth of it, in a minute: `python tests/benchmarks/sources.py --sessions 200 --megabytes 200`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmark


def test_sessions_of_other_programs_are_shown_soon_and_cost_little(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # Without bytecode every start is far slower than for a user.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("sources.py")), "--check"],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    with capsys.disabled():
        print(f"\n{done.stdout}", end="")
    assert done.returncode == 0, done.stdout + done.stderr
