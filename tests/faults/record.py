"""The calls that a piece of Python makes on files below a folder: what is synced, and in which order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.shim import Call, Control, compile_shim

# The shim is loaded already; from here on it counts and logs.
_BEGIN = """
import ctypes, sys
control, log, root = sys.argv[1:]
assert ctypes.CDLL(None).faults_attach(control.encode(), log.encode()) == 0
"""


def record(folder: Path, root: Path, code: str) -> list[Call]:
    """The calls that change something below `root` while `code` runs in a process of its own, where `root` is its path
    as text. `folder` is for the shim. Skips the test if the shim cannot be compiled.
    """
    folder.mkdir()
    shim = compile_shim(folder)
    if shim is None:
        pytest.skip("needs gcc, on a machine that the shim is for")
    control = Control(folder, root)
    try:
        control.arm(None)
        command = [sys.executable, "-c", _BEGIN + code, str(control.path), str(control.log_path), str(root)]
        subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(shim)}, check=True)
        return control.calls()
    finally:
        control.close()
