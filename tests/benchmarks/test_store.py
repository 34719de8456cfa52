"""Runs the benchmarks of the store, which compare it with plain loops, each in its own process. `just bench`.

Each script also runs alone: `python tests/benchmarks/store_append.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmark

HERE = Path(__file__).parent


@pytest.mark.parametrize("script", ["bars", "store_append", "store_history", "store_list", "store_start"])
def test_the_store_reaches_its_goals(script, capsys):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # Without bytecode every start is far slower than for a user.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, str(HERE / f"{script}.py"), "--check"],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    with capsys.disabled():
        print(f"\n{done.stdout}", end="")
    assert done.returncode == 0, done.stdout + done.stderr
