"""The daemon's memory, which holds the signing key, is never dumped."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import PATIENCE_S
from support.real_daemon import Daemon

PROBE = """
import ctypes, os, resource, subprocess, sys
from sessiond.daemon.dumps import forbid_dumps
dumpable = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
forbid_dumps()
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)
# The programs of agents stay dumpable.
subprocess.run([sys.executable, "-c", dumpable], check=True)
"""


def test_the_process_is_not_dumpable_and_its_children_are() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["0 0", "1"]


@pytest.mark.system
def test_a_daemon_that_crashes_leaves_no_core_file(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path).start()
    try:
        daemon.call("tokens.mint", scopes=["list"])
        assert daemon.process is not None
        limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
        [core] = [line for line in limits.splitlines() if line.startswith("Max core file size")]
        assert core.split()[4] == "0"
        daemon.process.send_signal(signal.SIGABRT)
        daemon.process.wait(PATIENCE_S)
    finally:
        daemon.kill()
    assert list(tmp_path.rglob("core*")) == []
