"""The command lines around `sessiond mcp`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from real_daemon import Daemon

WITHOUT_SDK = """
import sys
sys.modules["mcp"] = None  # as if it were not installed
from sessiond.cli import run
sys.exit(run(["mcp"]))
"""


def test_a_person_who_writes_to_an_inbox_is_told_that_it_is_kept(daemon: Daemon) -> None:
    daemon.start()
    done = daemon.cli("send", "mcp:reader", "look at this")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.strip() == (
        "kept for mcp:reader: a program reads its messages there when it wants to, and no agent runs"
    )
    assert daemon.cli("history", "mcp:reader").stdout.rstrip().endswith("look at this")


def test_without_the_sdk_it_says_how_to_install_it(daemon: Daemon) -> None:
    command = [sys.executable, "-c", WITHOUT_SDK]
    done = subprocess.run(command, env=daemon.environ, capture_output=True, text=True, check=False, cwd=_checkout())
    assert (done.returncode, done.stdout) == (1, "")
    assert 'pip install "sessiond[mcp]"' in done.stderr


def test_a_session_that_does_not_count_is_mentioned(daemon: Daemon, tmp_path: Path) -> None:
    environ = {**daemon.environ, "SESSIOND_TOKEN_FILE": str(tmp_path / "token")}
    done = daemon.cli("mcp", "--session", "main", env=environ, input="")
    assert (done.returncode, done.stdout) == (0, "")
    assert "--session counts for nothing here" in done.stderr


def _checkout() -> Path:
    return Path(__file__).parents[2]
