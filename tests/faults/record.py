"""The calls that a piece of Python makes on files below a folder: what is synced, and in which order."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from faults.shim import Call, Control, Point, shim_server


def run_with_fault(
    folder: Path, root: Path, code: str, point: Point | None, *words: str
) -> tuple[subprocess.CompletedProcess[str], list[Call]]:
    """Run a script with a fault at one of the calls that change something below `root`; how it ended, and these calls.

    `folder` is for what the shim notes. Skips the test if there is no shim here.
    """
    server = shim_server()
    if server is None:
        pytest.skip("needs gcc, on a machine that the shim is for")
    folder.mkdir(parents=True, exist_ok=True)
    control = Control(folder, root)
    try:
        control.arm(point)
        attach = [str(control.path), str(control.log_path)]
        return server.run(list(words), os.environ, code=code, attach=attach), control.calls()
    finally:
        control.close()


def record(folder: Path, root: Path, code: str) -> list[Call]:
    """The calls that change something below `root` while `code` runs in a process of its own, where `root` is its path
    as text. `folder` is for the shim. Skips the test if the shim cannot be compiled.
    """
    done, calls = run_with_fault(folder, root, "import sys\n[root] = sys.argv[1:]\n" + code, None, str(root))
    assert done.returncode == 0, done.stderr
    return calls
